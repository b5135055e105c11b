"""What is replaced while a long job runs: certificates, passwords, tokens."""

from __future__ import annotations

import base64
import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from elastic_agent.rendezvous.etcd import credentials
from elastic_agent.rendezvous.etcd.client import EtcdClient
from elastic_agent.rendezvous.etcd.credentials import Login, Tls, Token
from elastic_agent.rendezvous.etcd.errors import EtcdLoginRefused, EtcdWatchLost
from elastic_agent.rendezvous.etcd.ops import Put, Read
from elastic_agent.rendezvous.store import StoreUnreachable
from support.etcd_certificates import Certificates
from support.etcd_servers import VERSIONS, Servers, ServerTls, serving

BOUND_S = 60.0
ROOT = Login("root", "over-all")
USER = "trainer"


def place(files: Tls, folder: Path) -> Tls:
    """These certificates, under the names that a client was given."""
    folder.mkdir(exist_ok=True)
    there = Tls(*(str(folder / name) for name in ("ca.pem", "cert.pem", "cert.key")))
    for source, target in zip(
        (files.ca_file, files.cert_file, files.key_file), (there.ca_file, there.cert_file, there.key_file), strict=True
    ):
        shutil.copy(source, target)
    return there


@pytest.mark.parametrize("version", VERSIONS)
def test_certificates_are_read_anew_at_the_next_connection(version: str, tmp_path: Path) -> None:
    """The old CA is not trusted any more when the servers restart: a job with short-lived certificates goes on."""
    for folder in ("old", "new"):
        (tmp_path / folder).mkdir()
    old, new = Certificates(tmp_path / "old"), Certificates(tmp_path / "new")
    files = place(old.tls("client"), tmp_path / "client")
    server_tls = ServerTls(*old.issue("server"), old.ca_file, require_client_cert=True)
    with (
        serving(version, tmp_path / "etcd", server_tls=server_tls, tls=files) as servers,
        closing(servers.client()) as client,
        closing(client.session()) as other,
    ):
        client.put(Put(b"k", b"1"))
        watch = other.watch(b"k")
        place(new.tls("client"), tmp_path / "client")
        servers.members[0].server_tls = ServerTls(*new.issue("server"), new.ca_file, require_client_cert=True)
        servers.members[0].stop()
        servers.members[0].start()
        servers.wait()
        client.put(Put(b"k", b"2"))
        with pytest.raises(EtcdWatchLost):
            watch.wait(BOUND_S)
        with closing(other.watch(b"k")) as again:
            client.put(Put(b"k", b"3"))
            assert again.wait(BOUND_S)


def test_certificates_that_are_being_replaced_do_no_harm(tmp_path: Path) -> None:
    """While a file is missing, or belongs to another pair, calls fail; then they succeed."""
    certificates = Certificates(tmp_path)
    files = place(certificates.tls("client"), tmp_path / "client")
    server_tls = ServerTls(*certificates.issue("server"), certificates.ca_file, require_client_cert=True)
    with (
        serving("3.5", tmp_path / "etcd", server_tls=server_tls, tls=files) as servers,
        closing(servers.client(call_s=1.0)) as client,
    ):
        client.put(Put(b"k", b"1"))
        Path(files.cert_file).unlink()
        servers.members[0].stop()
        servers.members[0].start()
        servers.tls = certificates.tls("another")
        servers.wait()
        client.put(Put(b"k", b"2"))  # with the files that were read before
        shutil.copy(certificates.issue("third")[0], files.cert_file)
        servers.members[0].stop()
        with pytest.raises(StoreUnreachable):
            client.put(Put(b"k", b"3"))
        place(certificates.tls("fourth"), tmp_path / "client")
        servers.members[0].start()
        servers.wait()
        client.put(Put(b"k", b"4"))


@pytest.fixture(params=VERSIONS)
def secured(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Servers]:
    """A server with the user USER, whose password is `first`."""
    flags = ["--bcrypt-cost", "4"]
    with serving(request.param, tmp_path / "etcd", flags=flags) as servers:
        servers.require_login(ROOT, Login(USER, "first"), "job/")
        yield servers


def test_the_password_file_is_read_at_each_login(secured: Servers, tmp_path: Path) -> None:
    """The password was changed, in etcd and in the file, since the last login."""
    file = tmp_path / "password"
    file.write_text("first\n")
    with closing(secured.client(login=Login(USER, password_file=str(file)))) as client:
        client.put(Put(b"job/k", b"1"))
        secured.ctl("user", "passwd", USER, "--interactive=false", stdin="second")
        with pytest.raises(EtcdLoginRefused, match="authentication failed"):
            client.put(Put(b"job/k", b"2"))
        file.unlink()
        with pytest.raises(EtcdLoginRefused, match=f"password file {file} of user 'trainer' cannot be read: No such"):
            client.put(Put(b"job/k", b"2"))
        file.write_text("second\n")
        client.put(Put(b"job/k", b"3"))


def logins(servers: Servers) -> int:
    """How many the server has served."""
    return servers.counted('grpc_server_handled_total{grpc_code="OK",grpc_method="Authenticate"')


def test_an_agent_logs_in_once_for_all_its_threads(secured: Servers) -> None:
    """At its start, and when servers have forgotten its token; each login is work for them."""
    with ExitStack() as held:
        first = held.enter_context(closing(secured.client(login=Login(USER, "first"))))
        sessions = [held.enter_context(closing(first.session())) for _ in range(8)]
        for _ in range(2):
            before = logins(secured)
            together = threading.Barrier(len(sessions))
            threads = [threading.Thread(target=read_together, args=(one, together)) for one in sessions]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(BOUND_S)
            assert logins(secured) - before == 1
            first._cluster.token.value = "forgotten.1"


def read_together(client: EtcdClient, together: threading.Barrier) -> None:
    together.wait(BOUND_S)
    client.read(Read(b"job/k"))


def test_agents_whose_tokens_are_refused_at_once_log_in_at_different_times() -> None:
    """Servers refuse all tokens in one moment when they restart. The first login of an agent is not delayed."""
    tokens = [Token(Login(USER, "p")) for _ in range(200)]
    assert {token.pause_s() for token in tokens} == {0.0}
    for token in tokens:
        token.take("simple.1")
        assert not token.is_due()
        token.drop("simple.1")
        assert token.is_due()
    pauses = [token.pause_s() for token in tokens]
    assert max(pauses) <= credentials.SPREAD_S
    assert max(pauses) - min(pauses) > credentials.SPREAD_S / 2
    for token in tokens:
        token.take("simple.2")
    assert {token.pause_s() for token in tokens} == {0.0}


def test_a_token_that_another_thread_has_replaced_is_not_dropped() -> None:
    """A late refusal of the old one."""
    token = Token(Login(USER, "p"))
    token.take("old")
    token.take("new")
    token.drop("old")
    assert (token.value, token.is_due()) == ("new", False)


def web_token(life_s: float) -> str:
    """A token as etcd makes it with `--auth-token jwt`; its signature is not looked at."""
    claims = {"username": USER, "revision": 5, "exp": int(time.time() + life_s)}
    parts = ({"alg": "RS256", "typ": "JWT"}, claims)
    coded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts]
    return ".".join([*coded, "c2lnbmF0dXJl"])


def test_a_token_that_shows_its_expiry_is_replaced_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a random time, so that agents that started together do not log in together."""
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    tokens = [Token(Login(USER, "p")) for _ in range(200)]
    for token in tokens:
        token.take(web_token(1000.0))
    due = []
    for _ in range(100):
        now += 10
        due.append(sum(token.is_due() for token in tokens))
    assert due[47] == 0
    assert 60 < due[69] < 140
    assert due[91] == 200
    assert all(token.pause_s() == 0.0 for token in tokens)
    for strange in ("a.b.c", "a.e30.c", "..", web_token(-5.0), web_token(2.0)):
        tokens[0].take(strange)
        assert not tokens[0].is_due()


def test_etcds_web_tokens_show_their_expiry(tmp_path: Path) -> None:
    """So they are replaced before servers refuse them, by one login, with the old one still in use."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    private.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()),
    )
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    jwt = f"jwt,pub-key={public},priv-key={private},sign-method=RS256,ttl=100s"
    with serving("3.5", tmp_path / "etcd", flags=["--bcrypt-cost", "4", "--auth-token", jwt]) as servers:
        servers.require_login(ROOT, Login(USER, "first"), "job/")
        with closing(servers.client(login=Login(USER, "first"))) as client:
            client.put(Put(b"job/k", b"1"))
            token = client._cluster.token
            assert 40 < token._renew_at - time.monotonic() < 95
            before, token._renew_at = logins(servers), 0.0
            client.put(Put(b"job/k", b"2"))
            client.put(Put(b"job/k", b"3"))
            assert logins(servers) - before == 1
            assert 40 < token._renew_at - time.monotonic() < 95


def test_a_token_goes_on_being_used_while_it_cannot_be_replaced(secured: Servers) -> None:
    """The login before its expiry fails: requests succeed with the old token until servers refuse it."""
    with closing(secured.client(login=Login(USER, "first"))) as client:
        client.put(Put(b"job/k", b"1"))
        client._cluster.token.login = Login(USER, "wrong")
        client._cluster.token._renew_at = 0.0
        client.put(Put(b"job/k", b"2"))
        assert not client._cluster.token.is_due()
