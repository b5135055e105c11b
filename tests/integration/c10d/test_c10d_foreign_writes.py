"""A c10d store to which another program writes: garbage in any key, and notifications lost or overwritten."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing, suppress

import pytest

from elastic_agent.rendezvous.c10d import client, wire
from elastic_agent.rendezvous.c10d.keys import MAX_UNCOMPACTED, SERVED, VOID, Keys
from elastic_agent.rendezvous.c10d.opening import open_c10d
from elastic_agent.rendezvous.c10d.store import C10dStore
from elastic_agent.rendezvous.codec import limits
from elastic_agent.rendezvous.codec import records as codec
from elastic_agent.rendezvous.store import FIRST_EPOCH, StoreError, StoreForeign
from support.c10d_stores import BOUND_S, raw_client

GARBAGE = [b"", b"garbage", b"-1", b"1e3", b"9" * 40, b"\xff\xfe", b" 7", b"x" * 2_000_000]


@pytest.mark.parametrize("value", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_in_any_key_never_hangs_and_never_raises_anything_but_a_store_error(
    host: C10dStore, value: bytes
) -> None:
    """Any host on the network can write to a TCPStore."""
    keys = Keys("job")
    names = [
        "n1",
        keys.node("n1"),
        keys.beat("n1"),
        keys.notification(1),
        keys.notification(2),
        keys.round(1),
        keys.round(2),
    ]
    with closing(open_c10d(str(host.endpoint), "job", is_host=False)) as guest, closing(raw_client(host)) as other:
        guest.publish_node("n1", b"one")
        host.announce(1, b"round 1", FIRST_EPOCH)
        for key in [*names, keys.job, keys.life, SERVED, *keys.counters]:
            _write_anything(other, key, value)
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


def _write_anything(other: client.TcpStoreClient, key: str, value: bytes) -> None:
    size = wire.MAX_VALUE_BYTES
    for start in range(0, max(len(value), 1), size):
        if start == 0:
            other.put(key, value[:size])
        else:  # the client writes no value that long, so it is appended to on the server
            other._send(b"\x09" + wire.packed_key(key) + wire.packed(value[start:]))


def test_the_largest_announcement_fits_into_a_key() -> None:
    """The client's bound is not below the codec's."""
    assert max(limits.MAX_ROUND_BYTES, codec.MAX_NODE_BYTES) <= wire.MAX_VALUE_BYTES


def test_a_node_that_publishes_notices_that_the_count_of_notifications_went_back(host: C10dStore) -> None:
    """Else it would publish under a number that was read already, and that is not read again."""
    host.publish_node("n1", b"one")
    assert host.wait_nodes(0, BOUND_S) == (1, {"n1": b"one"})
    with closing(raw_client(host)) as other:
        other.put(Keys("job").log_head, b"0")
    with pytest.raises(StoreForeign, match="log/head holds '1' instead of a count from 2 to "):
        host.publish_node("n1", b"two")


def test_a_heartbeat_notices_that_the_count_is_behind_this_nodes_own_notification(host: C10dStore) -> None:
    """Else a record that nobody reads would be waited for without end: the last one of the host, by itself."""
    host.publish_node("n1", b"one")
    with closing(raw_client(host)) as other:
        other.put(Keys("job").log_head, b"0")
    with pytest.raises(StoreForeign, match="log/head holds '0' instead of a count from 1 to "):
        host.beat("n1", 1)


def test_a_counter_that_holds_no_count_is_named_when_opening(host: C10dStore) -> None:
    """The server closes the connection of a client that adds to it, which would look like a lost connection."""
    with closing(raw_client(host)) as other:
        other.put(Keys("job").log_head, b"not a number, and rather long, so that it must be shortened")
    with pytest.raises(StoreForeign, match=r"log/head holds 'not a number, and rather long, so that i'\.\.\."):
        open_c10d(str(host.endpoint), "job", is_host=False)


def test_a_notification_that_was_never_completed_delays_others_by_one_call_at_most(
    host: C10dStore, guest: C10dStore
) -> None:
    """A node that exits between the two steps of a notification leaves a gap, which the reader fills."""
    with closing(raw_client(host)) as other:
        other.add(Keys("job").log_head, 1)
    guest.publish_node("n1", b"one")
    cursor, found = host.wait_nodes(0, 1.0)
    assert found == {"n1": b"one"}
    assert host.wait_nodes(cursor, 0.0) == (cursor, {})


def test_a_notification_that_was_only_slow_is_not_lost(host: C10dStore) -> None:
    """Its writer finds its entry void and takes another number."""
    with closing(raw_client(host)) as slow:
        keys = Keys("job")
        slow.put(keys.node("n1"), b"one")
        number = slow.add(keys.log_head, 1)
        cursor, found = host.wait_nodes(0, 0.1)  # fills the gap
        assert found == {}
        assert slow.create(keys.notification(number), b"n1") == VOID
        host.publish_node("n2", b"two")
        assert host.wait_nodes(cursor, BOUND_S)[1] == {"n2": b"two"}


@pytest.mark.parametrize("value", [b"hello", b"", b"\xde\xad", b"x" * 4096])
def test_no_record_is_lost_if_another_program_overwrites_a_notification(value: bytes, host: C10dStore) -> None:
    """Its node is unknown then, so the records of all nodes that published are read again."""
    for node in ("n1", "n2"):
        host.publish_node(node, b"first")
    cursor, _ = host.wait_nodes(0, BOUND_S)
    host.publish_node("n2", b"last")
    with closing(raw_client(host)) as other:
        other.put(Keys("job").notification(cursor + 1), value)
    assert host.wait_nodes(cursor, BOUND_S) == (cursor + 1, {"n1": b"first", "n2": b"last"})


@pytest.mark.parametrize("reconnects", [False, True])
def test_an_overwritten_only_notification_is_published_again(reconnects: bool, host: C10dStore) -> None:
    """No other notification names the node, so only the node itself can bring the coordinator to read its record."""
    with ExitStack() as opened:
        guest = opened.enter_context(closing(open_c10d(str(host.endpoint), "job", is_host=False)))
        session = opened.enter_context(closing(guest.session()))
        session.publish_node("n1", b"one")
        opened.enter_context(closing(raw_client(host))).put(Keys("job").notification(1), b"hello")
        cursor, found = host.wait_nodes(0, 0.1)
        assert found == {}
        if reconnects:
            session = opened.enter_context(closing(guest.session()))
        session.beat("n1", 1)
        assert host.wait_nodes(cursor, BOUND_S) == (cursor + 1, {"n1": b"one"})
        session.beat("n1", 2)
        assert host.wait_nodes(cursor + 1, 0.0) == (cursor + 1, {})


def test_too_many_notifications_are_refused_and_the_limit_is_named(host: C10dStore, guest: C10dStore) -> None:
    """What can grow is bounded; a huge counter that another program wrote is not iterated over."""
    with closing(raw_client(host)) as other:
        other.put(Keys("job").log_head, str(MAX_UNCOMPACTED).encode())
    with pytest.raises(StoreForeign, match=f"none of the last {MAX_UNCOMPACTED + 1} notifications"):
        guest.publish_node("n1", b"one")
