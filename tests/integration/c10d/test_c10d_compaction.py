"""The log of notifications is compacted while a job runs, so that no job is too long for its host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from elastic_agent.rendezvous.c10d import keys as c10d_keys
from elastic_agent.rendezvous.c10d import notifications
from elastic_agent.rendezvous.c10d.client import TcpStoreClient
from elastic_agent.rendezvous.c10d.keys import Keys
from elastic_agent.rendezvous.c10d.opening import open_c10d
from elastic_agent.rendezvous.c10d.store import C10dStore
from elastic_agent.rendezvous.store import StoreForeign, StoreUnreachable
from support.c10d_stores import BOUND_S, raw_client

NODES = ("n1", "n2", "n3")
KEPT = 8
"""Notifications that are not compacted, in these tests."""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a test reaches."""
    for module in (c10d_keys, notifications):
        monkeypatch.setattr(module, "MAX_UNCOMPACTED", 60)
    monkeypatch.setattr(notifications, "KEEP", KEPT)
    monkeypatch.setattr(notifications, "NODES_PER_KEY", 2)


@pytest.fixture
def raw(host: C10dStore) -> Iterator[TcpStoreClient]:
    """A connection that may write anything."""
    with closing(raw_client(host)) as client:
        yield client


def publish(store: C10dStore, times: int, first: int = 0) -> None:
    """Let each of `NODES` publish so often, numbered from `first`."""
    for number in range(first, first + times):
        for node in NODES:
            store.publish_node(node, b"%s %d" % (node.encode(), number))


def read_all(host: C10dStore, cursor: int = 0) -> tuple[int, dict[str, bytes]]:
    """As the coordinator's reader does: call until nothing is left."""
    found: dict[str, bytes] = {}
    while True:
        cursor, fresh = host.wait_nodes(cursor, 0.0)
        if not fresh:
            return cursor, found
        found.update(fresh)


def entries(raw: TcpStoreClient, upto: int) -> int:
    """How many notifications are in the store."""
    return sum(raw.have([Keys("job").notification(number) for number in range(1, upto + 1)]))


def test_a_job_may_publish_without_end(host: C10dStore, guest: C10dStore, raw: TcpStoreClient) -> None:
    """What the host has read is deleted: five times as many notifications as may be kept, and no node notices."""
    cursor = 0
    for number in range(100):
        publish(guest, 1, number)
        cursor, found = read_all(host, cursor)
        assert found == {node: b"%s %d" % (node.encode(), number) for node in NODES}
        assert guest.beat("n3", number) == 0
    assert cursor == 300
    assert entries(raw, cursor) <= 3 * KEPT


def test_a_host_that_does_not_read_is_named_before_it_runs_out_of_memory(host: C10dStore, guest: C10dStore) -> None:
    """The bound holds for what is not compacted; the error blames the host, no stranger, also at another node's
    heartbeat."""
    unread = "the host has read none of the last 61 notifications"
    with pytest.raises(StoreForeign, match=unread) as publishing:
        publish(guest, 100)
    with pytest.raises(StoreForeign, match=unread) as beating:
        host.beat("host", 1)
    assert "another program" not in f"{publishing.value} {beating.value}"


def test_a_reader_that_lags_behind_reads_the_records_anew(host: C10dStore, guest: C10dStore) -> None:
    """On the host and elsewhere: each record once, also those of nodes that only compacted notifications named."""
    guest.publish_node("early", b"once")
    publish(guest, 15)
    cursor, _ = read_all(host)
    read_all(host, cursor)  # compacts what the call before has returned
    newest = {"early": b"once"} | {node: b"%s 14" % node.encode() for node in NODES}
    with closing(host.session()) as second:
        for reader in (second, guest):
            assert read_all(reader) == (cursor, newest)
            assert read_all(reader, cursor // 2) == (cursor, newest)
            assert read_all(reader, cursor) == (cursor, {})


def test_a_compacted_notification_is_not_published_again(host: C10dStore, guest: C10dStore) -> None:
    """The host has read it: the heartbeat of a node that has been silent since changes nothing."""
    guest.publish_node("early", b"once")
    with closing(guest.session()) as other, closing(open_c10d(str(host.endpoint), "job", is_host=False)) as rest:
        publish(rest, 15)
        cursor, _ = read_all(host)
        read_all(host, cursor)
        assert other.beat("early", 1) == 0
        assert host.wait_nodes(cursor, 0.0) == (cursor, {})


@pytest.mark.parametrize("breaks_at", range(1, 12))
def test_a_compaction_that_breaks_off_is_finished_by_the_next_call(
    breaks_at: int, host: C10dStore, guest: C10dStore, raw: TcpStoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the connection breaks, no record is lost, no entry stays, and the count is right."""
    publish(guest, 10)
    cursor, _ = read_all(host)
    calls = 0

    def send_and_break(client: TcpStoreClient, request: bytes) -> None:
        nonlocal calls
        calls += 1
        sent(client, request)
        if calls == breaks_at:
            client.close()  # before the answer, so whether it was applied is unknown

    sent = TcpStoreClient._send
    with closing(host.session()) as reader:
        monkeypatch.setattr(TcpStoreClient, "_send", send_and_break)
        with suppress(StoreUnreachable):
            reader.wait_nodes(cursor, 0.0)
        monkeypatch.setattr(TcpStoreClient, "_send", sent)
    with closing(host.session()) as reader:
        assert reader.wait_nodes(cursor, 0.0) == (cursor, {})
        assert raw.get([Keys("job").log_compacted]) == {Keys("job").log_compacted: b"%d" % (cursor - KEPT)}
        assert entries(raw, cursor) == KEPT
        assert set(read_all(guest)[1]) == set(NODES)
        publish(guest, 1, 10)
        assert set(read_all(reader, cursor)[1]) == set(NODES)


def test_a_lie_about_what_was_compacted_is_noticed(host: C10dStore, guest: C10dStore, raw: TcpStoreClient) -> None:
    """A count that fits, written by another program, would make the reader skip what it has not read."""
    publish(guest, 3)
    raw.put(Keys("job").log_compacted, b"5")
    with pytest.raises(StoreForeign, match="log/compacted holds '5' instead of a count from 0 to 0"):
        host.wait_nodes(0, BOUND_S)
    raw.put(Keys("job").log_compacted, b"500")
    with pytest.raises(StoreForeign, match="log/head holds '9' instead of a count from 500 to 560"):
        guest.beat("n1", 1)


def test_an_overwritten_notification_brings_all_records_also_those_of_compacted_ones(
    host: C10dStore, guest: C10dStore, raw: TcpStoreClient
) -> None:
    """Its node is unknown then: it may be one that published long ago."""
    guest.publish_node("early", b"once")
    publish(guest, 10)
    cursor, _ = read_all(host)
    read_all(host, cursor)
    guest.publish_node("early", b"again")
    raw.put(Keys("job").notification(cursor + 1), b"hello")
    assert host.wait_nodes(cursor, BOUND_S)[1]["early"] == b"again"
