"""The store contract: connections, the records of nodes, and heartbeats."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from elastic_agent.rendezvous.memory_store import MemoryStore
from elastic_agent.rendezvous.store import StoreUnreachable
from support.store_stages import BOUND_S, LEASE_S, Stage

# -- connections ------------------------------------------------------------------------------------------------------


def test_only_the_hosts_connection_is_hosted(hosted: Stage) -> None:
    """Only the process that serves the store coordinates, and each of its sessions is marked as hosted."""
    assert hosted.host.hosted
    assert hosted.session(hosted.host).hosted
    guest = hosted.guest()
    assert not guest.hosted
    assert not hosted.session(guest).hosted
    assert not guest.elects


def test_a_closed_session_raises_store_unreachable(stage: Stage) -> None:
    """close() ends one connection; it may be called twice, and other connections stay open."""
    guest = stage.guest()
    other = stage.session(guest)
    guest.close()
    guest.close()
    with pytest.raises(StoreUnreachable):
        guest.beat("n1", 1)
    assert other.beat("n1", 1) == 0


def test_closing_a_session_ends_its_wait(stage: Stage) -> None:
    """Another thread can end a call that blocks."""
    guest = stage.guest()
    begun = threading.Event()

    def wait() -> None:
        begun.set()
        guest.wait_round(0, 60.0)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        assert begun.wait(BOUND_S)
        guest.close()
        with pytest.raises(StoreUnreachable):
            waiting.result(BOUND_S)


def test_the_store_outlives_the_hosts_own_session(stage: Stage) -> None:
    """close() ends a connection, not the store."""
    guest = stage.guest()
    stage.session(stage.host).close()
    guest.publish_node("n1", b"one")
    assert stage.host.wait_nodes(0, BOUND_S)[1] == {"n1": b"one"}


def test_closing_a_memory_store_ends_every_call() -> None:
    """Tests simulate the loss of a store with MemoryStore.close."""
    shared = MemoryStore()
    guest = shared.guest()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(guest.wait_nodes, 0, 60.0)
        shared.close()
        with pytest.raises(StoreUnreachable):
            waiting.result(BOUND_S)
    with pytest.raises(StoreUnreachable):
        guest.session()


def test_a_memory_store_that_elects_has_no_host() -> None:
    """host() on an electing store is a mistake of the caller."""
    with pytest.raises(ValueError, match="has no host"):
        MemoryStore(LEASE_S).host()


# -- records of nodes -------------------------------------------------------------------------------------------------


def test_a_published_record_is_read_by_the_coordinator(stage: Stage) -> None:
    """publish_node ends wait_nodes, whichever connection it came from."""
    stage.guest().publish_node("n1", b"one")
    cursor, found = stage.host.wait_nodes(0, BOUND_S)
    assert found == {"n1": b"one"}
    assert cursor > 0


def test_publishing_replaces_the_nodes_own_record(stage: Stage) -> None:
    """Only the current record of a node is read, once."""
    guest = stage.guest()
    for value in (b"first", b"second", b"\x00\xff third"):
        guest.publish_node("n1", value)
    assert stage.host.wait_nodes(0, BOUND_S)[1] == {"n1": b"\x00\xff third"}


def test_publishing_is_acknowledged(stage: Stage) -> None:
    """Once publish_node has returned, any other connection reads the record without waiting."""
    guest = stage.guest()
    cursor = 0
    for count in range(50):
        guest.publish_node("n1", b"%d" % count)
        cursor, found = stage.host.wait_nodes(cursor, 0.0)
        assert found == {"n1": b"%d" % count}


def test_wait_nodes_returns_only_nodes_that_published_after_the_cursor(stage: Stage) -> None:
    """A cursor marks where the last call ended."""
    guest = stage.guest()
    guest.publish_node("n1", b"one")
    guest.publish_node("n2", b"two")
    cursor, found = stage.host.wait_nodes(0, BOUND_S)
    assert found == {"n1": b"one", "n2": b"two"}
    guest.publish_node("n2", b"two again")
    cursor, found = stage.host.wait_nodes(cursor, BOUND_S)
    assert found == {"n2": b"two again"}


def test_a_cursor_of_zero_reads_from_the_beginning(stage: Stage) -> None:
    """A new coordinator finds every node."""
    guest = stage.guest()
    for number in range(20):
        guest.publish_node(f"n{number}", b"%d" % number)
    cursor, _ = stage.host.wait_nodes(0, BOUND_S)
    assert stage.host.wait_nodes(cursor, 0.0) == (cursor, {})
    assert stage.session(stage.host).wait_nodes(0, BOUND_S)[1] == {f"n{number}": b"%d" % number for number in range(20)}


def test_wait_nodes_is_empty_when_its_time_has_passed(stage: Stage) -> None:
    """The cursor stays the same, and the call takes as long as was asked."""
    started = time.monotonic()
    assert stage.host.wait_nodes(0, 0.2) == (0, {})
    assert 0.15 < time.monotonic() - started < BOUND_S


def test_a_waiting_coordinator_wakes_up_for_a_record(stage: Stage) -> None:
    """wait_nodes blocks until a node publishes, and no longer."""
    guest, waiter = stage.guest(), stage.session(stage.host)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waiter.wait_nodes, 0, 60.0)
        guest.publish_node("n1", b"one")
        assert waiting.result(BOUND_S)[1] == {"n1": b"one"}


def test_nothing_is_missed_when_many_publish_at_once(stage: Stage) -> None:
    """Eight writers with fifty records each: the coordinator ends up with the last record of each node."""
    writers = [stage.guest() for _ in range(8)]

    def write(number: int) -> None:
        for count in range(50):
            writers[number].publish_node(f"n{number}", b"%d" % count)
            writers[number].beat(f"n{number}", count)

    last: dict[str, bytes] = {}
    with ThreadPoolExecutor(8) as pool:
        writing = [pool.submit(write, number) for number in range(8)]
        cursor, deadline = 0, time.monotonic() + 30
        while set(last.values()) != {b"49"} or len(last) < 8:
            assert time.monotonic() < deadline
            cursor, found = stage.host.wait_nodes(cursor, 5.0)
            last.update(found)
        for future in writing:
            future.result(BOUND_S)
    assert last == {f"n{number}": b"49" for number in range(8)}
    counts = stage.host.read_beats(list(last))
    assert counts.keys() == last.keys()
    assert stage.host.elects or set(counts.values()) == {49}


def test_many_bytes_are_kept_as_they_are(stage: Stage) -> None:
    """An announcement of a megabyte and a record of 64 KiB are read unchanged."""
    stage.announce(1, bytes(range(256)) * 4096)
    stage.guest().publish_node("n1", bytes(range(256)) * 256)
    assert stage.guest().wait_round(0, BOUND_S) == (1, bytes(range(256)) * 4096)
    assert stage.host.wait_nodes(0, BOUND_S)[1] == {"n1": bytes(range(256)) * 256}


# -- heartbeats -------------------------------------------------------------------------------------------------------


def test_heartbeats_are_read_as_counted(hosted: Stage) -> None:
    """read_beats returns the latest counter of each node asked for; a node that never sent one is absent."""
    hosted.guest().beat("n1", 1)
    hosted.guest().beat("n1", 7)
    hosted.guest().beat("n2", 3)
    assert hosted.host.read_beats(["n1", "n2", "never"]) == {"n1": 7, "n2": 3}
    assert hosted.host.read_beats(["n2"]) == {"n2": 3}
    assert hosted.host.read_beats([]) == {}


def test_each_heartbeat_reads_that_of_the_host(hosted: Stage) -> None:
    """A guest's beat also reads the counter of the node that hosts the store; -1 before the first."""
    guest = hosted.guest()
    guest.beat("n1", 1)
    assert guest.host_count == -1
    hosted.host.beat("host", 41)
    hosted.session(hosted.host).beat("host", 42)
    hosted.guest().beat("n2", 7)
    guest.beat("n1", 2)
    assert guest.host_count == 42


def test_a_store_that_elects_has_no_host_to_look_at(electing: Stage) -> None:
    """Its coordinator has a lease."""
    guest = electing.guest()
    guest.beat("n1", 1)
    assert guest.host_count is None


def test_the_store_names_the_newest_record_beside_the_watch(stage: Stage) -> None:
    """With heartbeats, or as the coordinator reads them: so it finds out that its reader has not received one."""

    def named() -> int | None:
        stage.host.beat("host", 1)
        stage.host.read_beats(["n1"])
        return stage.host.newest_record

    guest = stage.guest()
    guest.publish_node("n1", b"first")
    cursor, _ = stage.host.wait_nodes(0, BOUND_S)
    assert named() == cursor
    guest.beat("n1", 1)
    assert named() == cursor
    guest.publish_node("n1", b"second")
    newest = named()
    assert newest is not None
    assert newest > cursor
    assert stage.host.wait_nodes(cursor, BOUND_S)[0] == newest


def test_a_heartbeat_wakes_no_coordinator(stage: Stage) -> None:
    """The coordinator reads heartbeats when it needs them; they do not end wait_nodes."""
    stage.guest().beat("n1", 1)
    assert stage.host.wait_nodes(0, 0.05) == (0, {})


def test_beat_returns_the_newest_announced_version(stage: Stage) -> None:
    """A node that missed an announcement notices at its next heartbeat; 0 means that there is none."""
    guest = stage.guest()
    assert guest.beat("n1", 1) == 0
    stage.announce(1, b"round 1")
    stage.announce(2, b"round 2")
    assert guest.beat("n1", 2) == 2
