"""Who may speak to etcd, and what each refusal looks like: one line, within 10 s, on real servers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from elastic_agent.rendezvous.endpoint import Endpoint
from elastic_agent.rendezvous.etcd.client import EtcdClient
from elastic_agent.rendezvous.etcd.cluster import Login, Tls
from elastic_agent.rendezvous.etcd.errors import (
    EtcdLoginRefused,
    EtcdNoSpace,
    EtcdPermissionDenied,
    EtcdRefused,
    EtcdTlsRefused,
)
from elastic_agent.rendezvous.etcd.ops import Delete, Put, Read, is_absent
from elastic_agent.rendezvous.store import StoreError
from support.etcd_certificates import Papers
from support.etcd_servers import VERSIONS, Secured, Servers, serving

PROMISED_S = 10.0
"""How soon each refusal is to be said."""
ROOT = Login("root", "over-all")
USER = Login("agent", "for-the-job")


@contextmanager
def refused(kind: type[StoreError], match: str) -> Iterator[None]:
    """The block raises just this, in one line without a secret, in time."""
    started = time.monotonic()
    with pytest.raises(kind, match=match) as caught:
        yield
    assert time.monotonic() - started < PROMISED_S
    assert type(caught.value) is kind or kind is EtcdLoginRefused
    text = str(caught.value)
    assert "\n" not in text
    assert not any(login.password in text for login in (ROOT, USER))


# -- user and password ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=VERSIONS)
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """A server that asks for a login; USER may do everything below job/ and nothing else."""
    with serving(request.param, tmp_path_factory.mktemp("etcd")) as servers:
        servers.require_login(ROOT, USER, "job/")
        yield servers


@pytest.fixture
def user(guarded: Servers) -> Iterator[EtcdClient]:
    """A client as USER."""
    with closing(guarded.client(login=USER)) as client:
        yield client


def test_a_user_does_everything_below_its_prefix(user: EtcdClient) -> None:
    """A role limited to the prefix is enough for each thing that a store does."""
    lease = user.grant(60)
    user.txn([is_absent(b"job/k")], [Put(b"job/k", b"1", lease.id)])
    watch = user.watch(b"job/", prefix=True)
    assert [item.value for item in user.read(Read(b"job/", prefix=True)).items] == [b"1"]
    user.renew(lease)
    user.revoke(lease)
    assert watch.wait(PROMISED_S)[0].deleted
    assert user.health().version
    watch.close()


def test_a_missing_permission_is_named(user: EtcdClient) -> None:
    """For a read, a write, and a watch, each with the key."""
    with refused(EtcdPermissionDenied, "put of b'other'.*permission denied.*grant"):
        user.put(Put(b"other", b""))
    with refused(EtcdPermissionDenied, "read of b'job'"):
        user.read(Read(b"job", prefix=True))
    with refused(EtcdPermissionDenied, "watch of b'other'"):
        user.watch(b"other").wait(PROMISED_S)


def test_a_wrong_password_is_named(guarded: Servers) -> None:
    """And so are a user that is not there, and no user at all."""
    for login in (replace(USER, password="wrong"), Login("nobody", "x")):
        told = f"login of user '{login.user}': authentication failed.*correct"
        with closing(guarded.client(login=login)) as client, refused(EtcdLoginRefused, told):
            client.read(Read(b"job/"))
    with closing(EtcdClient(guarded.endpoints)) as client, refused(EtcdLoginRefused, "asks for a user and a password"):
        client.read(Read(b"job/"))


def test_a_token_that_is_refused_is_replaced(guarded: Servers, user: EtcdClient) -> None:
    """Servers forget tokens, after some minutes or when they start; nobody notices."""
    user.put(Put(b"job/k", b"1"))
    guarded.members[0].kill()
    guarded.members[0].start()
    guarded.wait()
    user._cluster.token = "forgotten.1"
    assert user.read(Read(b"job/k")).items[0].value == b"1"
    user._cluster.token = "forgotten.2"
    with closing(user.watch(b"job/k")) as watch:
        user.put(Put(b"job/k", b"2"))
        assert watch.wait(PROMISED_S)[0].item.value == b"2"


def test_a_permission_that_is_taken_away_is_named(guarded: Servers, user: EtcdClient) -> None:
    """In the middle of a job, too; and given back, all goes on."""
    user.put(Put(b"job/k", b"1"))
    guarded.ctl("user", "revoke-role", USER.user, "limited")
    try:
        with refused(EtcdPermissionDenied, "put of b'job/k'"):
            user.put(Put(b"job/k", b"2"))
    finally:
        guarded.ctl("user", "grant-role", USER.user, "limited")
    user.put(Put(b"job/k", b"3"))


def test_a_login_where_none_is_needed_does_no_harm(tmp_path: Path) -> None:
    """As etcdctl has it: authentication that is switched off asks nobody. Switched on, it asks at once."""
    with serving("3.5", tmp_path) as servers, closing(servers.client(login=USER)) as client:
        client.put(Put(b"job/k", b"1"))
        servers.require_login(ROOT, USER, "job/")
        client.put(Put(b"job/k", b"2"))
        with refused(EtcdPermissionDenied, "other"):
            client.put(Put(b"other", b""))


def test_a_password_is_in_no_text() -> None:
    """Whatever shows a login, a client or its cluster, does not show the secret."""
    assert USER.password not in repr(USER)
    with closing(EtcdClient([Endpoint("h", 1)], login=USER)) as client:
        assert USER.password not in f"{client} {client!r} {client._cluster!r}"


# -- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    """Those of the CA that the servers trust."""
    return Papers(tmp_path_factory.mktemp("papers"))


@pytest.fixture(scope="module", params=VERSIONS)
def secure(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, papers: Papers
) -> Iterator[Servers]:
    """A server with TLS that asks clients for certificates."""
    secured = Secured(*papers.issue("server"), papers.ca_file, asks_clients=True)
    home = tmp_path_factory.mktemp("etcd")
    with serving(request.param, home, secured=secured, tls=papers.tls("client")) as servers:
        yield servers


def ask(servers: Servers, tls: Tls | None) -> None:
    """Write and read as a client with these certificates."""
    with closing(EtcdClient(servers.endpoints, tls)) as client:
        client.put(Put(b"k", b"1"))
        assert client.read(Read(b"k")).items


def test_tls_with_certificates_on_both_sides(secure: Servers) -> None:
    """The way it should be, for watches and leases too."""
    ask(secure, secure.tls)
    with closing(secure.client()) as client, closing(client.watch(b"k")) as watch:
        client.put(Put(b"k", b"2", client.grant(60).id))
        assert watch.wait(PROMISED_S)


def test_a_server_of_another_ca_is_named(secure: Servers, papers: Papers, tmp_path: Path) -> None:
    """With the file that we were given, as that is what to correct."""
    other = Papers(tmp_path)
    tls = replace(papers.tls("client"), ca_file=str(other.ca_file))
    with refused(EtcdTlsRefused, rf"server's certificate is not signed by the CA in {other.ca_file}"):
        ask(secure, tls)


def test_a_client_certificate_of_another_ca_is_named(secure: Servers, papers: Papers, tmp_path: Path) -> None:
    """With its file."""
    tls = replace(Papers(tmp_path).tls("stranger"), ca_file=str(papers.ca_file))
    with refused(EtcdTlsRefused, rf"our certificate {tls.cert_file}.*have it signed by the CA"):
        ask(secure, tls)


def test_no_client_certificate_is_named(secure: Servers, papers: Papers) -> None:
    """Where the servers ask for one."""
    with refused(EtcdTlsRefused, "asks for a certificate of ours.*give a certificate and its key"):
        ask(secure, Tls(str(papers.ca_file)))


def test_an_expired_client_certificate_is_named(secure: Servers, papers: Papers) -> None:
    """By our own look at it, as the servers only hang up."""
    tls = papers.tls("late", days=-1)
    with refused(EtcdTlsRefused, rf"our certificate {tls.cert_file} is not good: certificate has expired"):
        ask(secure, tls)


def test_an_expired_server_certificate_is_named(papers: Papers, secure: Servers) -> None:
    """With what to do."""
    member = secure.members[0]
    good, member.secured = member.secured, Secured(*papers.issue("old", days=-1), papers.ca_file, asks_clients=True)
    try:
        member.kill()
        member.start()
        with refused(EtcdTlsRefused, "server's certificate is not good: certificate has expired; renew it"):
            ask(secure, secure.tls)
    finally:
        member.secured = good
        member.kill()
        member.start()
        secure.wait()


def test_a_certificate_for_another_host_is_named(papers: Papers, secure: Servers) -> None:
    """A server that can be reached by a name that is not in its certificate."""
    member = secure.members[0]
    client = EtcdClient([Endpoint("localhost", member.client_port)], secure.tls)
    with closing(client), refused(EtcdTlsRefused, "certificate is for another host"):
        client.read(Read(b"k"))


def test_plain_and_tls_do_not_meet_in_silence(secure: Servers, papers: Papers, tmp_path: Path) -> None:
    """A plain client at a TLS server, and the other way round."""
    with refused(EtcdTlsRefused, "TLS was not asked for"):
        ask(secure, None)
    with serving("3.5", tmp_path) as plain, refused(EtcdTlsRefused, "does not speak TLS"):
        ask(plain, papers.tls("client"))


def test_files_that_are_no_certificates_are_named(secure: Servers, papers: Papers, tmp_path: Path) -> None:
    """Missing, half given, garbage, and a key of another certificate; each with its path."""
    good, other = papers.tls("client"), papers.tls("other")
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("nothing")
    with refused(EtcdTlsRefused, r"cannot read etcd's TLS CA certificate nowhere\.pem: No such file"):
        ask(secure, replace(good, ca_file="nowhere.pem"))
    with refused(EtcdTlsRefused, "certificate for etcd is given and no key to it"):
        ask(secure, replace(good, key_file=""))
    with refused(EtcdTlsRefused, rf"the CA file {garbage} holds no certificate in PEM"):
        ask(secure, replace(good, ca_file=str(garbage)))
    with refused(EtcdTlsRefused, rf"our certificate {good.cert_file} and key {other.key_file} are no pair"):
        ask(secure, replace(good, key_file=other.key_file))


# -- no space ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_the_no_space_alarm_is_named_and_what_still_works_works(version: str, tmp_path: Path) -> None:
    """Leases are renewed and keys deleted, so that nobody is taken for dead; an operator can make it good again."""
    quota = ["--quota-backend-bytes", str(256 * 1024)]
    with serving(version, tmp_path, flags=quota) as servers, closing(servers.client()) as client:
        lease = client.grant(60)
        with refused(EtcdNoSpace, "database space exceeded; compact and defragment the cluster"):
            for _ in range(100):
                client.put(Put(b"big", bytes(16 * 1024), lease.id))
        assert client.alarms() == ("NOSPACE",)
        assert any("NOSPACE" in error for error in client.health().errors)
        client.renew(lease)
        assert client.read(Read(b"big")).items
        assert client.delete(Delete(b"big")) == 1
        with refused(EtcdNoSpace, "grant of a lease"):
            client.grant(60)
        servers.compact()
        servers.defragment()
        servers.ctl("alarm", "disarm")
        client.put(Put(b"big", b"small again"))


def test_a_value_that_is_too_large_is_refused(tmp_path: Path) -> None:
    """By the server, at once, and in words."""
    with ExitStack() as held:
        client = held.enter_context(closing(held.enter_context(serving("3.5", tmp_path)).client()))
        with refused(EtcdRefused, "larger than max.*raise the servers"):
            client.put(Put(b"k", bytes(2 * 1024 * 1024)))
