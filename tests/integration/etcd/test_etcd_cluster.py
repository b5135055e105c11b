"""The etcd client on three real servers that are killed, frozen, cut off and replaced."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from elastic_agent.rendezvous.endpoint import Endpoint
from elastic_agent.rendezvous.etcd.client import EtcdClient
from elastic_agent.rendezvous.etcd.diagnosis import PROBE_S
from elastic_agent.rendezvous.etcd.errors import (
    EtcdClosed,
    EtcdFailed,
    EtcdLeaseGone,
    EtcdReset,
    EtcdUnknown,
    EtcdWatchLost,
)
from elastic_agent.rendezvous.etcd.ops import Put, Read, is_absent
from elastic_agent.rendezvous.etcd.retries import CALL_S
from elastic_agent.rendezvous.store import StoreUnreachable
from support.etcd_servers import VERSIONS, Server, Servers, serving
from support.network import free_ports
from support.procfs import slowed

BOUND_S = 30.0
"""What must happen at once may take this long on a busy host."""
HUNG_S = 2.0
"""As BOUND_S, for what should take 1 s and takes more than 5 s if done wrong."""


@pytest.fixture(scope="module", params=VERSIONS)
def three(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Three servers."""
    with serving(request.param, tmp_path_factory.mktemp("etcd"), size=3) as servers:
        yield servers


@pytest.fixture
def client(three: Servers) -> Iterator[EtcdClient]:
    """A client of all three."""
    with closing(three.client()) as made:
        yield made


@contextmanager
def frozen(servers: Servers, *members: Server) -> Iterator[None]:
    """These members are frozen during the block."""
    with ExitStack() as undo:
        for member in members:
            undo.callback(member.thaw)
            member.freeze()
        yield
    servers.wait()


@contextmanager
def killed(servers: Servers, *members: Server) -> Iterator[None]:
    """These members are down during the block, and are restarted with their data."""
    with ExitStack() as undo:
        for member in members:
            undo.callback(member.start)
            member.kill()
        yield
    servers.wait()


def used_by(client: EtcdClient, servers: Servers) -> Server:
    [member] = (one for one in servers.members if one.endpoint == client.in_use)
    return member


def client_of_a_follower(servers: Servers) -> EtcdClient:
    leader = servers.leader()
    while True:
        client = servers.client()
        if client.in_use != leader.endpoint:
            return client
        client.close()


def seconds(do: Callable[[], object]) -> float:
    started = time.monotonic()
    do()
    return time.monotonic() - started


def test_a_hung_server_costs_one_attempt(three: Servers) -> None:
    """It keeps its connections and answers nothing; reads, writes and renewals continue on another server. The fastest
    of three tries counts: a call that waits for the hung server is slow every time, a busy host only now and then."""
    tries: list[tuple[float, float]] = []
    while not tries or (len(tries) < 3 and not is_quick(*tries[-1])):
        tries.append(with_a_hung_server(three))
    assert is_quick(*tries[-1]), tries


def with_a_hung_server(three: Servers) -> tuple[float, float]:
    """How long a put took (s) while the server in use hung, and a renewal after it."""
    with closing(client_of_a_follower(three)) as client:
        lease = client.grant(60)
        client.keep_alive(lease)
        with frozen(three, used_by(client, three)):
            took = seconds(lambda: client.put(Put(b"k", b"1"))), seconds(lambda: client.keep_alive(lease))
            assert client.read(Read(b"k")).items[0].value == b"1"
        client.revoke(lease)
    return took


def is_quick(put_s: float, renew_s: float) -> bool:
    """Whether a put passed over the hung server, and the renewal after it did not try that one again."""
    return put_s < HUNG_S and renew_s < HUNG_S / 4


def test_heartbeats_go_on_at_another_server_when_theirs_hangs_or_dies(three: Servers) -> None:
    """Their stream is on one server. An answer that comes late is not taken for that of a later heartbeat."""
    with closing(client_of_a_follower(three)) as client:
        lease = client.grant(60)
        client.keep_alive(lease)
        with frozen(three, used_by(client, three)):
            assert seconds(lambda: client.keep_alive(lease)) < client.call_s
        client.keep_alive(lease)
        with killed(three, used_by(client, three)):
            client.keep_alive(lease)
        client.revoke(lease)
        with pytest.raises(EtcdLeaseGone):
            client.keep_alive(lease)


def test_a_dead_server_is_skipped_at_once(three: Servers) -> None:
    """Its port refuses connections, so the next server is used; if it led, the call waits for an election."""
    with closing(client_of_a_follower(three)) as client:
        client.put(Put(b"k", b"1"))
        with killed(three, used_by(client, three)):
            assert seconds(lambda: client.put(Put(b"k", b"2"))) < slowed(HUNG_S / 2)
    with closing(three.client()) as client, killed(three, three.leader()):
        assert seconds(lambda: client.put(Put(b"k", b"3"))) < client.call_s


def test_a_watch_on_a_hung_server_ends_when_a_call_switches_endpoints(three: Servers) -> None:
    """It ends with a reason, and a watch from `next_revision` on another server misses no change."""
    with closing(client_of_a_follower(three)) as client, closing(client.session()) as other:
        watch = client.watch(b"w")
        with frozen(three, used_by(client, three)):
            other.put(Put(b"w", b"1"))
            started = time.monotonic()
            with pytest.raises(EtcdWatchLost):
                watch.wait(BOUND_S)
            assert time.monotonic() - started < slowed(HUNG_S)
            with closing(client.watch(b"w", start_revision=watch.next_revision)) as again:
                assert {change.item.value for change in again.wait(BOUND_S)} == {b"1"}  # put twice, perhaps


def test_without_a_quorum_nothing_is_applied_and_a_watch_ends(three: Servers) -> None:
    """The remaining server reports that there is no leader, without waiting; with a quorum again, the client works."""
    with closing(three.client(call_s=1.0)) as client:
        leader = three.leader()
        left = next(member for member in three.members if member is not leader)
        with closing(EtcdClient([left.endpoint], call_s=2.0)) as alone:
            watch = alone.watch(b"k")
            with killed(three, *(member for member in three.members if member is not left)):
                with pytest.raises(EtcdWatchLost, match="no leader"):
                    watch.wait(BOUND_S)
                with pytest.raises(EtcdFailed, match="gave up after 2 s"):
                    alone.put(Put(b"lost", b""))
                with pytest.raises(StoreUnreachable):
                    client.read(Read(b"k"))
        assert not client.read(Read(b"lost")).items


def test_a_client_survives_a_restart_of_all_servers(three: Servers, client: EtcdClient) -> None:
    """Its lease is valid, and a watch can continue from its `next_revision`."""
    lease = client.grant(60)
    client.keep_alive(lease)
    client.put(Put(b"k", b"before", lease.id))
    watch = client.watch(b"k")
    with killed(three, *three.members):
        with pytest.raises(EtcdWatchLost):
            watch.wait(BOUND_S)
        with pytest.raises(EtcdFailed, match=r"no etcd server can be reached: .*refused"):
            client.read(Read(b"k"))
    client.put(Put(b"k", b"after", lease.id))
    client.keep_alive(lease)
    with closing(client.watch(b"k", start_revision=watch.next_revision)) as again:
        assert [change.item.value for change in again.wait(BOUND_S)] == [b"after"]
    client.revoke(lease)


def test_why_no_server_answers_is_found_for_all_at_once() -> None:
    """A call to five addresses that take no packets ends a probe behind its deadline, not five."""
    with ExitStack() as silent:
        ports = [_without_answer(silent) for _ in range(5)]
        with closing(EtcdClient([Endpoint("127.0.0.1", port) for port in ports])) as client:
            began = time.monotonic()
            with pytest.raises(EtcdFailed, match=r"(does not answer.*){5}"):
                client.read(Read(b"k"))
            assert time.monotonic() - began < CALL_S + 3 * PROBE_S


def _without_answer(until: ExitStack) -> int:
    """A port whose queue of connections is full: the kernel drops what asks for another."""
    full = until.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
    for _ in range(3):
        waiting = until.enter_context(socket.socket())
        waiting.setblocking(False)
        waiting.connect_ex(full.getsockname())
    return int(full.getsockname()[1])


def test_a_client_survives_the_replacement_of_a_member(three: Servers, client: EtcdClient) -> None:
    """The new member has the old one's address and belongs to the same cluster."""
    client.put(Put(b"k", b"kept"))
    three.replace(used_by(client, three))
    for _ in three.members:
        assert client.read(Read(b"k")).items[0].value == b"kept"
        client.switch_endpoint()


def test_an_unanswered_write_is_unknown_and_not_sent_again(tmp_path: Path) -> None:
    """Unless it is repeatable. An unanswered read has failed."""
    with serving("3.5", tmp_path) as alone, closing(alone.client(call_s=2.0)) as client:
        client.put(Put(b"k", b""))
        transactions = 'grpc_server_started_total{grpc_method="Txn"'
        with frozen(alone, *alone.members), pytest.raises(EtcdUnknown):
            client.txn([is_absent(b"t")], [Put(b"t", b"")])
        client.read(Read(b"t"))  # the server goes on
        assert alone.counted(transactions) <= 1
        with frozen(alone, *alone.members):
            with pytest.raises(EtcdUnknown, match="may have been applied"):
                client.put(Put(b"k", b"twice"))
            with pytest.raises(EtcdFailed, match="read of b'k'"):
                client.read(Read(b"k"))
        assert client.txn([], [Put(b"t", b"")]).succeeded


def test_a_call_to_a_hung_server_ends_when_closed(tmp_path: Path) -> None:
    """Before its attempt is over, with EtcdClosed."""
    with serving("3.5", tmp_path) as alone, closing(alone.client(call_s=60.0)) as client:
        client.put(Put(b"k", b""))
        with frozen(alone, *alone.members), ThreadPoolExecutor(1) as pool:
            asking = pool.submit(client.read, Read(b"k"))
            with pytest.raises(FutureTimeout):
                asking.result(2.5)  # now in the third attempt, of 2.8 s
            client.close()
            started = time.monotonic()
            with pytest.raises(EtcdClosed):
                asking.result(BOUND_S)
            assert time.monotonic() - started < 2.0  # of 2.4


@pytest.mark.slow
def test_an_idle_watch_notices_that_its_server_hangs(tmp_path: Path) -> None:
    """Without any other call: gRPC's keepalive pings, each 6 s, must be answered within 2 s."""
    with serving("3.5", tmp_path) as alone, closing(alone.client()) as client, ExitStack() as held:
        watch = held.enter_context(closing(client.watch(b"k")))
        held.enter_context(frozen(alone, *alone.members))
        with pytest.raises(EtcdWatchLost, match="ping timeout"):
            watch.wait(20.0)


def test_a_lease_whose_answer_was_lost_is_not_granted_twice(three: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client chooses the id, so a repeated grant finds the first lease."""
    chance = SimpleNamespace(randrange=lambda *_: 4711)
    monkeypatch.setattr("elastic_agent.rendezvous.etcd.client.random", chance)
    with closing(three.client()) as client:
        first = client.grant(60)
        again = client.grant(60)
        assert first == again
        client.revoke(first)


def test_a_cluster_that_lost_revisions_raises_etcd_reset(tmp_path: Path) -> None:
    """A server at an older revision than it had acknowledged has lost data: its answers must not be used."""
    with serving("3.5", tmp_path) as alone, closing(alone.client()) as client:
        for _ in range(3):
            client.put(Put(b"k", b""))
        alone.members[0].kill()
        alone.members[0].data.rename(tmp_path / "away")
        alone.members[0].start()
        with pytest.raises(EtcdReset, match="revision 1 and had acknowledged 4"):
            client.read(Read(b"k"))


def test_endpoints_of_two_clusters_raise_etcd_reset(tmp_path: Path) -> None:
    """A wrong endpoint in the list must not split a job over two clusters."""
    with ExitStack() as both:
        clusters = [both.enter_context(serving("3.5", tmp_path / name)) for name in "ab"]
        endpoints = [endpoint for servers in clusters for endpoint in servers.endpoints]
        client = both.enter_context(closing(EtcdClient(endpoints)))
        client.read(Read(b"k"))
        client.switch_endpoint()
        with pytest.raises(EtcdReset, match="different clusters"):
            client.read(Read(b"k"))


def test_an_endpoint_without_a_server_fails_within_the_call_timeout() -> None:
    """With one line that has the endpoint, the reason and what to do; nothing was applied."""
    [port] = free_ports(1)
    message = rf"127\.0\.0\.1:{port}: connection refused; check that"
    client = EtcdClient([Endpoint("127.0.0.1", port)], call_s=1.0)
    with closing(client), pytest.raises(EtcdFailed, match=message) as caught:
        client.txn([], [Put(b"k", b"")])
    assert "\n" not in str(caught.value)


def test_a_child_process_inherits_no_descriptor_of_the_client(client: EtcdClient) -> None:
    """However it is started: a worker with a descriptor of the connection would keep it open after its agent ended."""
    client.put(Put(b"k", b""))
    begin, end = os.pipe()
    with closing(client.watch(b"k")), open(begin, encoding="utf-8") as output:
        actions = [(os.POSIX_SPAWN_DUP2, end, 1)]
        pid = os.posix_spawn("/bin/ls", ["ls", "-l", "/proc/self/fd"], os.environ, file_actions=actions)
        os.close(end)
        shown = output.read()
    os.waitpid(pid, 0)
    assert "pipe:" in shown
    assert "socket:" not in shown
    assert "anon_inode" not in shown
