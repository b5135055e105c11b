"""The TCPStore backend among strangers: wrong servers, garbage, servers that die or freeze."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from elastic_agent.rendezvous.c10d import client as wire
from elastic_agent.rendezvous.c10d import server as hosting_module
from elastic_agent.rendezvous.c10d.keys import MAX_NOTES, SERVED, VOID, Keys
from elastic_agent.rendezvous.c10d.store import C10dStore, open_c10d
from elastic_agent.rendezvous.codec import job as jobs
from elastic_agent.rendezvous.codec import records as codec
from elastic_agent.rendezvous.driver import join
from elastic_agent.rendezvous.endpoint import Endpoint
from elastic_agent.rendezvous.records import JobSpec, Outcome
from elastic_agent.rendezvous.store import FIRST_EPOCH, OtherJob, Store, StoreError, StoreForeign, StoreUnreachable

BOUND_S = 10.0
"""What must happen at once may take this long on a busy machine."""


@pytest.fixture(scope="session", autouse=True)
def _first_use() -> None:
    """The first server of a process leaves a pipe of libuv behind for good; no single test is to blame for it."""
    with hosting():
        pass


@contextmanager
def hosting(run_id: str = "job", endpoint: str = "127.0.0.1:0") -> Iterator[C10dStore]:
    """A store served by this process."""
    store = open_c10d(endpoint, run_id, is_host=True)
    try:
        yield store
    finally:
        store.close_host()


@pytest.fixture
def host() -> Iterator[C10dStore]:
    """A store of the job "job", served by this process."""
    with hosting() as store:
        yield store


@pytest.fixture
def guest(host: C10dStore) -> Iterator[C10dStore]:
    """Another node's connection to it."""
    with closing(open_c10d(str(host.endpoint), "job", is_host=False)) as store:
        yield store


def raw(store: C10dStore) -> wire.Wire:
    """A stranger's connection, which may write anything."""
    where = store.endpoint
    return wire.connect((socket.AF_INET, (where.host, where.port)), "stranger", 5.0, 5.0)


@contextmanager
def listening() -> Iterator[tuple[socket.socket, str]]:
    """A socket that accepts connections, in the kernel at least, and its endpoint."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server, f"127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def elsewhere() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A store of the job "job" served by another process, and its endpoint."""
    code = (
        "import sys\n"
        "from elastic_agent.rendezvous.c10d.store import open_c10d\n"
        "store = open_c10d('127.0.0.1:0', 'job', is_host=True)\n"
        "print(store.endpoint, flush=True)\n"
        "sys.stdin.read()\n"
    )
    started = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with started as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def seconds_to(wanted: type[StoreError], match: str, endpoint: str, connect_timeout_s: float = 60.0) -> float:
    """How long opening as a client takes to raise this."""
    started = time.monotonic()
    with pytest.raises(wanted, match=match) as caught:
        open_c10d(endpoint, "job", is_host=False, connect_timeout_s=connect_timeout_s)
    assert type(caught.value) is wanted
    assert "\n" not in str(caught.value)
    return time.monotonic() - started


def test_a_refused_endpoint_is_waited_for_and_then_given_up() -> None:
    """The wait is announced once, in one line, and ends on time with what to do."""
    with listening() as (_, endpoint):
        pass
    lines: list[str] = []
    started = time.monotonic()
    with pytest.raises(StoreUnreachable, match=rf"gave up on the store at {endpoint} after 0.4 s.*--rdzv-endpoint"):
        open_c10d(endpoint, "job", is_host=False, connect_timeout_s=0.4, on_wait=lines.append)
    assert 0.4 <= time.monotonic() - started < BOUND_S
    assert lines == [
        f"waiting for {endpoint}: nobody listens there yet (connection refused); giving up in 0 s",
    ]


def test_a_client_that_came_first_finds_the_host_when_it_comes() -> None:
    """Nodes start in any order."""
    with listening() as (_, endpoint):
        pass
    waiting = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(open_c10d, endpoint, "job", is_host=False, on_wait=lambda _: waiting.set())
        assert waiting.wait(BOUND_S)
        with hosting(endpoint=endpoint) as host, closing(opening.result(BOUND_S)) as guest:
            guest.publish_node("n1", b"one")
            assert host.wait_nodes(0, BOUND_S)[1] == {"n1": b"one"}


def test_waiting_for_a_host_can_be_cancelled() -> None:
    """An agent that is told to stop does not sit out its connect timeout."""
    with listening() as (_, endpoint):
        pass
    cancelled = threading.Event()
    with pytest.raises(StoreUnreachable, match="on request"):
        open_c10d(endpoint, "job", is_host=False, on_wait=lambda _: cancelled.set(), cancelled=cancelled)


def test_an_http_server_is_found_out_within_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that waits for the end of a line is a silent listener to us (whose time is cut short here)."""
    monkeypatch.setattr(wire, "HANDSHAKE_S", 0.5)

    class Answering(BaseHTTPRequestHandler):
        def log_message(self, *_args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Answering) as server, ThreadPoolExecutor(1) as pool:
        serving = pool.submit(server.serve_forever, 0.01)
        try:
            assert seconds_to(StoreForeign, "it is no TCPStore", f"127.0.0.1:{server.server_port}") < 5
        finally:
            server.shutdown()
            serving.result(BOUND_S)


def test_a_server_that_answers_something_else_is_found_out_at_once() -> None:
    """An SSH server, for one, speaks first."""
    with listening() as (server, endpoint), ThreadPoolExecutor(1) as pool:

        def speak() -> None:
            with server.accept()[0] as peer:
                peer.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
                peer.recv(100)

        speaking = pool.submit(speak)
        assert seconds_to(StoreForeign, r"is no TCPStore: it answered b'SSH-2.0-'", endpoint) < 3
        speaking.result(BOUND_S)


def test_a_silent_listener_is_found_out_within_five_seconds() -> None:
    """torch's own client never gives up on one."""
    with listening() as (_, endpoint):
        assert seconds_to(StoreForeign, "says nothing", endpoint) < 5


def test_a_server_that_hangs_up_is_tried_again() -> None:
    """A port forwarder accepts and hangs up while the node behind it is not there yet."""
    with listening() as (server, endpoint), ThreadPoolExecutor(1) as pool:

        def hang_up_on_everybody() -> None:
            try:
                while True:
                    server.accept()[0].close()
            except OSError:
                return  # the listener was shut down, which ends the test

        hanging_up = pool.submit(hang_up_on_everybody)
        assert seconds_to(StoreUnreachable, "gave up", endpoint, connect_timeout_s=0.5) >= 0.5
        server.shutdown(socket.SHUT_RDWR)
        hanging_up.result(BOUND_S)


def test_another_job_on_the_port_is_told_by_name(host: C10dStore) -> None:
    """Two jobs that share an endpoint by mistake do not mix."""
    with pytest.raises(StoreForeign, match=rf"{host.endpoint} serves job 'job', not 'mine'.*--rdzv-id"):
        open_c10d(str(host.endpoint), "mine", is_host=False)


def test_a_tcpstore_without_an_agent_is_told_apart() -> None:
    """A training script's own TCPStore on the port is not ours."""
    with listening() as (server, endpoint):
        from elastic_agent.rendezvous.c10d.server import serve

        bound = server.dup()
        foreign = serve(bound, Endpoint("127.0.0.1", server.getsockname()[1]), forced=True)
        assert foreign is not None
        try:
            seconds_to(
                StoreForeign, "is a TCPStore, but no elastic-agent hosts a job there", endpoint, connect_timeout_s=0.3
            )
        finally:
            foreign.close()


def test_the_first_agent_on_a_host_hosts_and_the_second_does_not() -> None:
    """With is_host left open, binding decides."""
    with listening() as (_, endpoint):
        pass
    first = open_c10d(endpoint, "job")
    try:
        with closing(open_c10d(endpoint, "job")) as second:
            assert (first.hosted, second.hosted) == (True, False)
    finally:
        first.close_host()


def test_of_agents_that_start_together_exactly_one_hosts() -> None:
    """Also when all of them have bound the port before one listens."""
    with listening() as (_, endpoint):
        pass
    with ThreadPoolExecutor(6) as pool, ExitStack() as cleanup:
        stores = [future.result(30) for future in [pool.submit(open_c10d, endpoint, "job") for _ in range(6)]]
        for store in stores:
            cleanup.callback(store.close_host)
        assert [store.hosted for store in stores].count(True) == 1


def test_a_node_told_to_host_says_who_holds_the_port(host: C10dStore) -> None:
    """The error names the port and what to do."""
    with pytest.raises(StoreError, match=rf"port {host.endpoint.port}.*ss -ltnp"):
        open_c10d(str(host.endpoint), "other", is_host=True)


def test_nobody_is_let_in_before_the_host_has_joined_its_job() -> None:
    """A node that waits for the host cannot take the run id from it."""
    with listening() as (_, endpoint):
        pass
    with ThreadPoolExecutor(1) as pool, ExitStack() as cleanup:

        def join(store: Store) -> None:
            assert store.write_job(b"of the host") == b"of the host"
            with pytest.raises(StoreForeign, match="no elastic-agent hosts"):
                open_c10d(endpoint, "job", is_host=False, connect_timeout_s=0.2)
            opening.append(pool.submit(open_c10d, endpoint, "job", is_host=False, join=take))

        def take(store: Store) -> None:
            assert store.write_job(b"of the guest") == b"of the host"

        opening: list[Future[C10dStore]] = []
        host = open_c10d(endpoint, "job", is_host=True, join=join)
        cleanup.callback(host.close_host)
        opening[0].result(BOUND_S).close()


def test_who_comes_after_the_end_learns_the_outcome_and_begins_nothing(host: C10dStore, guest: C10dStore) -> None:
    """The store is about to go with its host, so there is no next incarnation to begin there."""
    first = jobs.record_of(JobSpec("job", ("train.py",)), "id-a", "a")
    record = join.join(host, "job", first)
    assert host.announce_end(1, b"over", FIRST_EPOCH, jobs.with_outcome(record, Outcome.SUCCEEDED), record)
    found = jobs.decode_job(join.join(guest, "job", replace(first, name="b")))
    assert (found.incarnation, found.outcome, found.name) == (1, Outcome.SUCCEEDED, "a")
    with pytest.raises(OtherJob, match=r"begun by a at .*, succeeded\)"):
        join.join(guest, "job", jobs.record_of(JobSpec("job", ("other.py",)), "id-c", "c"))


def test_what_keeps_a_node_out_of_the_job_leaves_nothing_behind(host: C10dStore) -> None:
    """The connection, or the server, is given up, and the reason goes to the caller."""

    def refuse(store: Store) -> None:
        raise OtherJob("no")

    with pytest.raises(OtherJob):
        open_c10d(str(host.endpoint), "job", is_host=False, join=refuse)
    with listening() as (_, endpoint):
        pass
    with pytest.raises(OtherJob):
        open_c10d(endpoint, "job", is_host=True, join=refuse)
    with hosting("job", endpoint) as second:
        assert str(second.endpoint) == endpoint


def test_a_node_told_not_to_host_leaves_a_free_port_alone() -> None:
    """is_host False never binds."""
    with listening() as (_, endpoint):
        pass
    seconds_to(StoreUnreachable, "connection refused", endpoint, connect_timeout_s=0.1)


def test_port_zero_is_for_hosts_only() -> None:
    """Nobody can look for a store at port 0."""
    with pytest.raises(ValueError, match="port 0"):
        open_c10d("127.0.0.1:0", "job", is_host=False)


def test_ipv6_endpoints_work() -> None:
    """[::1]:PORT is served and reached."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    with hosting(endpoint="[::1]:0") as host, closing(open_c10d(str(host.endpoint), "job", is_host=False)) as guest:
        assert str(host.endpoint).startswith("[::1]:")
        guest.publish_node("n1", b"one")
        assert host.wait_nodes(0, BOUND_S)[1] == {"n1": b"one"}


def test_a_closed_host_frees_its_port() -> None:
    """The next job can be served there at once."""
    with hosting() as first:
        endpoint = str(first.endpoint)
    with hosting("next", endpoint) as second:
        assert str(second.endpoint) == endpoint


def test_every_session_breaks_when_the_host_closes(host: C10dStore, guest: C10dStore) -> None:
    """A wait too; nobody waits for a store that is gone."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(guest.wait_round, 0, 60.0)
        host.close_host()
        with pytest.raises(StoreUnreachable, match=str(host.endpoint)):
            waiting.result(BOUND_S)
    with pytest.raises(StoreUnreachable):
        guest.session()


def test_a_store_restarted_empty_is_not_taken_for_the_old_one() -> None:
    """Its versions begin at 1 again, so a node of the old one would wait for ever."""
    with hosting() as first:
        endpoint = str(first.endpoint)
        guest = open_c10d(endpoint, "job", is_host=False)
    with closing(guest), hosting("job", endpoint), pytest.raises(StoreForeign, match="was restarted"):
        guest.session()


def test_a_killed_host_is_noticed_at_once() -> None:
    """kill -9 of the agent that serves ends a blocked wait, and every later call, with StoreUnreachable."""
    with (
        elsewhere() as (process, endpoint),
        closing(open_c10d(endpoint, "job")) as guest,
        ThreadPoolExecutor(1) as pool,
    ):
        assert not guest.hosted
        waiting = pool.submit(guest.wait_round, 0, 60.0)
        process.kill()
        started = time.monotonic()
        with pytest.raises(StoreUnreachable):
            waiting.result(BOUND_S)
        with pytest.raises(StoreUnreachable):
            guest.beat("n1", 1)
        assert time.monotonic() - started < 3


def test_calls_on_a_frozen_host_keep_their_deadline() -> None:
    """torch's own client would block for as long as the server is stopped."""
    with elsewhere() as (process, endpoint), closing(open_c10d(endpoint, "job", call_timeout_s=0.3)) as guest:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)  # a signal is not at once where it is sent
        for call in (lambda: guest.beat("n1", 1), guest.session, lambda: guest.wait_round(0, 0.1)):
            started = time.monotonic()
            with pytest.raises(StoreUnreachable):
                call()
            assert time.monotonic() - started < 5
        os.kill(process.pid, signal.SIGCONT)
        with closing(guest.session()) as again:
            assert again.beat("n1", 2) == 0


GARBAGE = [b"", b"garbage", b"-1", b"1e3", b"9" * 40, b"\xff\xfe", b" 7", b"x" * 2_000_000]


@pytest.mark.parametrize("value", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_in_any_key_never_hangs_and_never_raises_anything_but_a_store_error(
    host: C10dStore, value: bytes
) -> None:
    """Everybody on the network can write to a TCPStore."""
    keys = Keys("job")
    names = ["n1", keys.node("n1"), keys.beat("n1"), keys.note(1), keys.note(2), keys.round(1), keys.round(2)]
    with closing(open_c10d(str(host.endpoint), "job", is_host=False)) as guest, closing(raw(host)) as stranger:
        guest.publish_node("n1", b"one")
        host.announce(1, b"round 1", FIRST_EPOCH)
        for key in [*names, keys.job, keys.life, SERVED, keys.log_head, keys.round_head]:
            _write_anything(stranger, key, value)
            for call in (
                lambda: guest.beat("n1", 1),
                lambda: host.read_beats(["n1"]),
                lambda: guest.wait_round(0, 0.05),
                lambda: guest.wait_round(1, 0.05),
                lambda: host.wait_nodes(0, 0.05),
                lambda: host.announce(1, b"round 1", FIRST_EPOCH),
                lambda: guest.publish_node("n1", b"two"),
                lambda: guest.write_job(b"job"),
                lambda: guest.session().close(),
            ):
                started = time.monotonic()
                with suppress(StoreError):
                    call()
                assert time.monotonic() - started < 5


def _write_anything(stranger: wire.Wire, key: str, value: bytes) -> None:
    size = wire.MAX_VALUE_BYTES
    for start in range(0, max(len(value), 1), size):
        if start == 0:
            stranger.put(key, value[:size])
        else:  # our client writes no value that long, so it is put together on the server
            stranger._send(b"\x09" + wire._text(wire._key(key)) + wire._text(value[start:]))


def test_who_speaks_finds_out_that_the_count_of_notifications_went_back(host: C10dStore) -> None:
    """Else it would tell under a number that was read already, which nobody reads again."""
    host.publish_node("n1", b"one")
    assert host.wait_nodes(0, BOUND_S) == (1, {"n1": b"one"})
    with closing(raw(host)) as stranger:
        stranger.put(Keys("job").log_head, b"0")
    with pytest.raises(StoreForeign, match="log/head holds '1', where a count from 2 to "):
        host.publish_node("n1", b"two")


def test_a_counter_that_is_none_is_told_by_name_when_opening(host: C10dStore) -> None:
    """Adding to it would make the server hang up, which would look like a lost connection."""
    with closing(raw(host)) as stranger:
        stranger.put(Keys("job").log_head, b"not a number, and rather long, so that it must be shortened")
    with pytest.raises(StoreForeign, match=r"log/head holds 'not a number, and rather long, so that i'\.\.\."):
        open_c10d(str(host.endpoint), "job", is_host=False)


def test_a_notification_that_was_never_finished_delays_others_by_one_call_at_most(
    host: C10dStore, guest: C10dStore
) -> None:
    """A node that died between the two steps of its notification leaves a hole, which is closed."""
    with closing(raw(host)) as stranger:
        stranger.add(Keys("job").log_head, 1)
    guest.publish_node("n1", b"one")
    cursor, found = host.wait_nodes(0, 1.0)
    assert found == {"n1": b"one"}
    assert host.wait_nodes(cursor, 0.0) == (cursor, {})


def test_a_notification_that_was_merely_slow_is_not_lost(host: C10dStore) -> None:
    """Its writer finds its number void and takes another."""
    with closing(raw(host)) as slow:
        keys = Keys("job")
        slow.put(keys.node("n1"), b"one")
        number = slow.add(keys.log_head, 1)
        cursor, found = host.wait_nodes(0, 0.1)  # gives up on the number
        assert found == {}
        assert slow.create(keys.note(number), b"n1") == VOID
        host.publish_node("n2", b"two")
        assert host.wait_nodes(cursor, BOUND_S)[1] == {"n2": b"two"}


@pytest.mark.parametrize("value", [b"hello", b"", b"\xde\xad", b"x" * 4096])
def test_a_notification_that_a_stranger_wrote_over_loses_no_word(value: bytes, host: C10dStore) -> None:
    """Whose it was is lost, so the records of all who spoke are read again: it may have been somebody's last."""
    for node in ("n1", "n2"):
        host.publish_node(node, b"first")
    cursor, _ = host.wait_nodes(0, BOUND_S)
    host.publish_node("n2", b"last")
    with closing(raw(host)) as stranger:
        stranger.put(Keys("job").note(cursor + 1), value)
    assert host.wait_nodes(cursor, BOUND_S) == (cursor + 1, {"n1": b"first", "n2": b"last"})


@pytest.mark.parametrize("reconnects", [False, True])
def test_an_only_notification_that_a_stranger_wrote_over_is_given_again(reconnects: bool, host: C10dStore) -> None:
    """Nobody else's names the node, so only the node itself can: else it would wait, and nobody would count it."""
    with ExitStack() as opened:
        guest = opened.enter_context(closing(open_c10d(str(host.endpoint), "job", is_host=False)))
        session = opened.enter_context(closing(guest.session()))
        session.publish_node("n1", b"one")
        opened.enter_context(closing(raw(host))).put(Keys("job").note(1), b"hello")
        cursor, found = host.wait_nodes(0, 0.1)
        assert found == {}
        if reconnects:
            session = opened.enter_context(closing(guest.session()))
        session.beat("n1", 1)
        assert host.wait_nodes(cursor, BOUND_S) == (cursor + 1, {"n1": b"one"})
        session.beat("n1", 2)
        assert host.wait_nodes(cursor + 1, 0.0) == (cursor + 1, {})


def test_too_many_notifications_are_refused_by_name(host: C10dStore, guest: C10dStore) -> None:
    """What can grow is bounded; a stranger's huge counter is not walked through."""
    with closing(raw(host)) as stranger:
        stranger.put(Keys("job").log_head, str(MAX_NOTES).encode())
    with pytest.raises(StoreForeign, match=str(MAX_NOTES)):
        guest.publish_node("n1", b"one")


@pytest.mark.parametrize("run_id", ["a/b c", "ünï", "%2F", "line\nbreak", "", "\udcff", "x" * 300])
def test_any_run_id_works_and_is_only_itself(run_id: str) -> None:
    """Run ids come from users and schedulers."""
    with hosting(run_id) as host, closing(open_c10d(str(host.endpoint), run_id, is_host=False)) as guest:
        guest.publish_node("n1", b"one")
        assert host.wait_nodes(0, BOUND_S)[1] == {"n1": b"one"}
        with pytest.raises(StoreForeign):
            open_c10d(str(host.endpoint), run_id + "x", is_host=False)


def test_our_client_and_torchs_see_the_same_keys(host: C10dStore) -> None:
    """Both speak the same protocol, so torch's own tools can look into the store."""
    from datetime import timedelta

    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # re-exported without saying so

    # A generous time-out: this client may meet a reverse look-up.
    theirs = TCPStore(host.endpoint.host, host.endpoint.port, timeout=timedelta(seconds=30), wait_for_workers=False)
    with closing(raw(host)) as ours:
        ours.put("key", b"\x00value")
        assert theirs.get("key") == b"\x00value"
        theirs.set("other", "theirs")
        assert ours.get(["other", "none"]) == {"other": b"theirs"}
        assert (theirs.add("n", 5), ours.add("n", 2), theirs.get("n")) == (5, 7, b"7")
        assert ours.create("n", b"0") == b"7"
        ours.delete(["n", "none"])
        assert ours.have(["n", "key"]) == [False, True]


def test_the_older_server_without_libuv_works_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """USE_LIBUV=0 is torch's own switch for it."""
    monkeypatch.setenv("USE_LIBUV", "0")
    with hosting() as host, closing(open_c10d(str(host.endpoint), "job", is_host=False)) as guest:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(guest.wait_round, 0, 60.0)
            host.announce(1, b"round 1", FIRST_EPOCH)
            assert waiting.result(BOUND_S) == (1, b"round 1")
        guest.publish_node("n1", b"one")
        assert host.wait_nodes(0, BOUND_S)[1] == {"n1": b"one"}
        assert host.read_beats(["n1"]) == {}
        assert guest.wait_round(1, 0.0) is None


@pytest.mark.parametrize(("version", "libuv"), [("2.4.1+cu121", False), ("2.7.1", False), ("2.13.0+cpu", True)])
def test_torch_before_2_8_serves_without_libuv(version: str, libuv: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server on libuv refuses a socket that listens already (seen with 2.4.1 and 2.5.0), which ours always does."""
    import torch
    from torch.torch_version import TorchVersion

    monkeypatch.delenv("USE_LIBUV", raising=False)
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    with socket.create_server(("127.0.0.1", 0)) as bound:
        made: Any = hosting_module._start(bound, *bound.getsockname())
    assert made.libuvBackend is libuv


def test_a_client_does_not_import_torch(host: C10dStore) -> None:
    """Only the node that serves pays for it."""
    code = (
        "import sys\n"
        "from elastic_agent.rendezvous.c10d.store import open_c10d\n"
        f"open_c10d('{host.endpoint}', 'job', is_host=False).close()\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_connections_meet_no_reverse_look_up(host: C10dStore) -> None:
    """The server asks no name server about its clients, which would stop it for seconds where that does not answer."""
    slowest = 0.0
    for _ in range(60):
        started = time.monotonic()
        raw(host).close()
        slowest = max(slowest, time.monotonic() - started)
    assert slowest < 1.0


def test_hosting_leaves_no_trace_in_the_environment(host: C10dStore) -> None:
    """Workers inherit neither torch's log level nor anything else that the agent sets for itself."""
    seen = subprocess.run(["env"], check=True, capture_output=True, text=True).stdout
    assert "TORCH_CPP_LOG_LEVEL" not in os.environ
    assert "TORCH_CPP_LOG_LEVEL" not in seen
    assert host.hosted


def test_a_host_without_torch_says_so() -> None:
    """The line names the endpoint and what to install."""
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from elastic_agent.rendezvous.c10d.store import open_c10d\n"
        "from elastic_agent.rendezvous.store import StoreError\n"
        "try:\n"
        "    open_c10d('127.0.0.1:0', 'job')\n"
        "except StoreError as why:\n"
        "    print(why)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=30).stdout
    assert "takes torch" in said
    assert "install torch" in said


def test_the_largest_round_fits_into_a_key() -> None:
    """The client's bound is not below the codec's."""
    assert max(codec.MAX_ROUND_BYTES, codec.MAX_NODE_BYTES) <= wire.MAX_VALUE_BYTES
