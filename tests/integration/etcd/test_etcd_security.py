"""Logins, permissions, TLS and the no space alarm on real servers: each refusal is one line, within 10 s."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from elastic_agent.rendezvous.endpoint import Endpoint
from elastic_agent.rendezvous.etcd.client import EtcdClient
from elastic_agent.rendezvous.etcd.credentials import Login, Tls
from elastic_agent.rendezvous.etcd.errors import (
    EtcdLoginRefused,
    EtcdNoSpace,
    EtcdPermissionDenied,
    EtcdRefused,
    EtcdTlsRefused,
)
from elastic_agent.rendezvous.etcd.ops import Delete, Put, Read, is_absent
from elastic_agent.rendezvous.store import StoreError
from support.etcd_certificates import Certificates
from support.etcd_servers import VERSIONS, Servers, ServerTls, serving
from support.procfs import slowed

REFUSED_WITHIN_S = 10.0
"""Bound on each refusal."""
ROOT = Login("root", "over-all")
USER = Login("agent", "for-the-job")


@contextmanager
def refused(kind: type[StoreError], match: str) -> Iterator[None]:
    """The block raises exactly this error, in one line without a password, in time."""
    started = time.monotonic()
    with pytest.raises(kind, match=match) as caught:
        yield
    assert time.monotonic() - started < slowed(REFUSED_WITHIN_S)
    assert type(caught.value) is kind or kind is EtcdLoginRefused
    text = str(caught.value)
    assert "\n" not in text
    assert not any(login.password in text for login in (ROOT, USER))


# -- user and password ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=VERSIONS)
def servers_with_login(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """A server that requires a login; USER may do everything below job/ and nothing else."""
    with serving(request.param, tmp_path_factory.mktemp("etcd")) as servers:
        servers.require_login(ROOT, USER, "job/")
        yield servers


@pytest.fixture
def client(servers_with_login: Servers) -> Iterator[EtcdClient]:
    """A client as USER."""
    with closing(servers_with_login.client(login=USER)) as client:
        yield client


def test_a_user_does_everything_below_its_prefix(client: EtcdClient) -> None:
    """A role limited to the prefix suffices for every request of a store."""
    lease = client.grant(60)
    client.txn([is_absent(b"job/k")], [Put(b"job/k", b"1", lease.id)])
    watch = client.watch(b"job/", prefix=True)
    assert [item.value for item in client.read(Read(b"job/", prefix=True)).items] == [b"1"]
    client.keep_alive(lease)
    client.revoke(lease)
    assert watch.wait(REFUSED_WITHIN_S)[0].deleted
    assert client.health().version
    watch.close()


def test_a_missing_permission_is_named(client: EtcdClient) -> None:
    """For a put, a read and a watch, each with the key."""
    with refused(EtcdPermissionDenied, "put of b'other'.*permission denied.*grant"):
        client.put(Put(b"other", b""))
    with refused(EtcdPermissionDenied, "read of b'job'"):
        client.read(Read(b"job", prefix=True))
    with refused(EtcdPermissionDenied, "watch of b'other'"):
        client.watch(b"other").wait(REFUSED_WITHIN_S)


def test_a_wrong_password_is_named(servers_with_login: Servers) -> None:
    """As are an unknown user, and a missing one."""
    for login in (replace(USER, password="wrong"), Login("nobody", "x")):
        message = f"login of user '{login.user}': authentication failed.*correct"
        with closing(servers_with_login.client(login=login)) as client, refused(EtcdLoginRefused, message):
            client.read(Read(b"job/"))
    with (
        closing(EtcdClient(servers_with_login.endpoints)) as client,
        refused(EtcdLoginRefused, "requires a user and a password"),
    ):
        client.read(Read(b"job/"))


def test_a_refused_token_is_replaced(servers_with_login: Servers, client: EtcdClient) -> None:
    """Servers drop tokens, after some minutes or when they restart; the client logs in again, without an error."""
    client.put(Put(b"job/k", b"1"))
    servers_with_login.members[0].stop()
    servers_with_login.members[0].start()
    servers_with_login.wait()
    client._cluster.token.value = "forgotten.1"
    assert client.read(Read(b"job/k")).items[0].value == b"1"
    client._cluster.token.value = "forgotten.2"
    with closing(client.watch(b"job/k")) as watch:
        client.put(Put(b"job/k", b"2"))
        assert watch.wait(REFUSED_WITHIN_S)[0].item.value == b"2"


def test_a_revoked_permission_is_named(servers_with_login: Servers, client: EtcdClient) -> None:
    """Also while the client is in use; once the permission is granted again, the client goes on."""
    client.put(Put(b"job/k", b"1"))
    servers_with_login.ctl("user", "revoke-role", USER.user, "limited")
    try:
        with refused(EtcdPermissionDenied, "put of b'job/k'"):
            client.put(Put(b"job/k", b"2"))
    finally:
        servers_with_login.ctl("user", "grant-role", USER.user, "limited")
    client.put(Put(b"job/k", b"3"))


def test_a_login_is_unused_while_authentication_is_disabled(tmp_path: Path) -> None:
    """As with etcdctl. Once authentication is enabled, the login is used at once."""
    with serving("3.5", tmp_path) as servers, closing(servers.client(login=USER)) as client:
        client.put(Put(b"job/k", b"1"))
        servers.require_login(ROOT, USER, "job/")
        client.put(Put(b"job/k", b"2"))
        with refused(EtcdPermissionDenied, "other"):
            client.put(Put(b"other", b""))


def test_a_password_is_in_no_text() -> None:
    """Neither in the text of a login, nor in that of a client or its cluster."""
    assert USER.password not in repr(USER)
    with closing(EtcdClient([Endpoint("h", 1)], login=USER)) as client:
        assert USER.password not in f"{client} {client!r} {client._cluster!r}"


# -- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=VERSIONS)
def tls_servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[Servers]:
    """A server with TLS that requires client certificates."""
    server_tls = ServerTls(*certificates.issue("server"), certificates.ca_file, require_client_cert=True)
    home = tmp_path_factory.mktemp("etcd")
    with serving(request.param, home, server_tls=server_tls, tls=certificates.tls("client")) as servers:
        yield servers


def ask(servers: Servers, tls: Tls | None) -> None:
    """Write and read as a client with these certificates."""
    with closing(EtcdClient(servers.endpoints, tls)) as client:
        client.put(Put(b"k", b"1"))
        assert client.read(Read(b"k")).items


def test_tls_with_certificates_on_both_sides(tls_servers: Servers) -> None:
    """Requests, watches and leases work."""
    ask(tls_servers, tls_servers.tls)
    with closing(tls_servers.client()) as client, closing(client.watch(b"k")) as watch:
        client.put(Put(b"k", b"2", client.grant(60).id))
        assert watch.wait(REFUSED_WITHIN_S)


def test_a_server_certificate_of_another_ca_is_named(
    tls_servers: Servers, certificates: Certificates, tmp_path: Path
) -> None:
    """With the CA file, which is what to correct."""
    other = Certificates(tmp_path)
    tls = replace(certificates.tls("client"), ca_file=str(other.ca_file))
    with refused(EtcdTlsRefused, rf"server's certificate is not signed by the CA in {other.ca_file}"):
        ask(tls_servers, tls)


def test_a_client_certificate_of_another_ca_is_named(
    tls_servers: Servers, certificates: Certificates, tmp_path: Path
) -> None:
    """With its file."""
    tls = replace(Certificates(tmp_path).tls("stranger"), ca_file=str(certificates.ca_file))
    with refused(EtcdTlsRefused, rf"rejects the client certificate {tls.cert_file}.*have it signed by the CA"):
        ask(tls_servers, tls)


def test_a_missing_client_certificate_is_named(tls_servers: Servers, certificates: Certificates) -> None:
    """Where the servers require one."""
    with refused(EtcdTlsRefused, "requires a client certificate.*give a certificate and its key"):
        ask(tls_servers, Tls(str(certificates.ca_file)))


def test_an_expired_client_certificate_is_named(tls_servers: Servers, certificates: Certificates) -> None:
    """By the client's own check, as servers close the connection without a reason."""
    tls = certificates.tls("late", days=-1)
    with refused(EtcdTlsRefused, rf"client certificate {tls.cert_file} is not valid: certificate has expired"):
        ask(tls_servers, tls)


def test_an_expired_server_certificate_is_named(certificates: Certificates, tls_servers: Servers) -> None:
    """With what to do about it."""
    member = tls_servers.members[0]
    good, member.server_tls = (
        member.server_tls,
        ServerTls(*certificates.issue("old", days=-1), certificates.ca_file, require_client_cert=True),
    )
    try:
        member.kill()
        member.start()
        with refused(EtcdTlsRefused, "server's certificate is not valid: certificate has expired; renew it"):
            ask(tls_servers, tls_servers.tls)
    finally:
        member.server_tls = good
        member.kill()
        member.start()
        tls_servers.wait()


class SlowToServe:
    """A TLS server with this certificate that answers nobody who comes in its first seconds."""

    def __init__(self, cert_file: Path, key_file: Path, silent_s: float) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(cert_file, key_file)
        self._answers_at = time.monotonic() + silent_s
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self._silent: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                if time.monotonic() < self._answers_at:
                    self._silent.append(connection)
                    continue
                with connection, suppress(OSError):
                    self._context.wrap_socket(connection, server_side=True).close()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for one in (self._socket, *self._silent):
            one.close()


def test_a_certificate_is_named_also_if_the_server_was_silent_at_first(certificates: Certificates) -> None:
    """It does not answer the client's own check nor the first attempt, as one that starts on a busy host."""
    server = SlowToServe(*certificates.issue("old", days=-1), silent_s=1.5)
    client = EtcdClient([Endpoint("127.0.0.1", server.port)], certificates.tls("client"))
    with (
        closing(server),
        closing(client),
        refused(EtcdTlsRefused, "server's certificate is not valid: certificate has expired; renew it"),
    ):
        client.put(Put(b"k", b"1"))


def test_a_certificate_for_another_host_is_named(certificates: Certificates, tls_servers: Servers) -> None:
    """The server is reached under a name that is not in its certificate."""
    member = tls_servers.members[0]
    client = EtcdClient([Endpoint("localhost", member.client_port)], tls_servers.tls)
    with closing(client), refused(EtcdTlsRefused, "certificate is for another host"):
        client.read(Read(b"k"))


def test_a_mismatch_of_plain_and_tls_is_named(tls_servers: Servers, certificates: Certificates, tmp_path: Path) -> None:
    """A plain client at a TLS server, and a TLS client at a plain server."""
    with refused(EtcdTlsRefused, "the server uses TLS, and this agent does not"):
        ask(tls_servers, None)
    with serving("3.5", tmp_path) as plain, refused(EtcdTlsRefused, "the server does not use TLS, and this agent does"):
        ask(plain, certificates.tls("client"))


def test_certificate_files_that_cannot_be_used_are_named(
    tls_servers: Servers, certificates: Certificates, tmp_path: Path
) -> None:
    """A missing file, a missing key, garbage, and the key of another certificate; each with its path."""
    good, other = certificates.tls("client"), certificates.tls("other")
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("nothing")
    with refused(EtcdTlsRefused, r"cannot read etcd's TLS CA certificate nowhere\.pem: No such file"):
        ask(tls_servers, replace(good, ca_file="nowhere.pem"))
    with refused(EtcdTlsRefused, "certificate for etcd is given without its key"):
        ask(tls_servers, replace(good, key_file=""))
    with refused(EtcdTlsRefused, rf"the CA file {garbage} contains no PEM certificate"):
        ask(tls_servers, replace(good, ca_file=str(garbage)))
    with refused(EtcdTlsRefused, rf"the certificate {good.cert_file} and the key {other.key_file} are not a PEM pair"):
        ask(tls_servers, replace(good, key_file=other.key_file))


# -- no space ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_under_the_no_space_alarm_reads_deletes_and_renewals_work(version: str, tmp_path: Path) -> None:
    """So no node is lost because of it. After an operator has made space, writes work again."""
    quota = ["--quota-backend-bytes", str(256 * 1024)]
    with serving(version, tmp_path, flags=quota) as servers, closing(servers.client()) as client:
        lease = client.grant(60)
        with refused(EtcdNoSpace, "database space exceeded; compact and defragment the cluster"):
            for _ in range(100):
                client.put(Put(b"big", bytes(16 * 1024), lease.id))
        assert client.alarms() == ("NOSPACE",)
        assert any("NOSPACE" in error for error in client.health().errors)
        client.keep_alive(lease)
        assert client.read(Read(b"big")).items
        assert client.delete(Delete(b"big")) == 1
        with refused(EtcdNoSpace, "grant of a lease"):
            client.grant(60)
        servers.compact()
        servers.defragment()
        servers.ctl("alarm", "disarm")
        client.put(Put(b"big", b"small again"))


def test_a_value_that_is_too_large_is_refused(tmp_path: Path) -> None:
    """By the server, at once, with the reason."""
    with ExitStack() as held:
        client = held.enter_context(closing(held.enter_context(serving("3.5", tmp_path)).client()))
        with refused(EtcdRefused, "larger than max.*raise the servers"):
            client.put(Put(b"k", bytes(2 * 1024 * 1024)))
