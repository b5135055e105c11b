"""Nodes far away, or starved of a processor: round trips of tenths of a second, values that arrive in pieces."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import ExitStack, closing

import pytest

from elastic_agent.rendezvous.c10d.client import PART_BYTES, TcpStoreClient
from elastic_agent.rendezvous.c10d.keys import Keys
from elastic_agent.rendezvous.c10d.opening import open_c10d
from elastic_agent.rendezvous.c10d.store import C10dStore
from support.c10d_stores import raw_client

ROUND_TRIP_S = 0.5
"""Between a node's two steps; more than a reader waits for the second at first."""
NODES = 8


def test_nodes_with_slow_links_publish_without_taking_number_after_number(
    host: C10dStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at once, while the host reads all the time. It fills the gaps that they leave, and then waits longer."""
    add, never = TcpStoreClient.add, threading.Event()

    def add_from_afar(client: TcpStoreClient, key: str, amount: int) -> int:
        number = add(client, key, amount)
        never.wait(ROUND_TRIP_S)
        return number

    monkeypatch.setattr(TcpStoreClient, "add", add_from_afar)
    names = [f"n{number}" for number in range(NODES)]
    with ExitStack() as undo:
        stores = [
            undo.enter_context(closing(open_c10d(str(host.endpoint), "job", is_host=False))) for _ in range(NODES)
        ]
        writers = [
            threading.Thread(target=store.publish_node, args=(name, b"here"))
            for name, store in zip(names, stores, strict=True)
        ]
        for each in writers:
            each.start()
        cursor, found = 0, set[str]()
        for _ in range(60):
            cursor, fresh = host.wait_nodes(cursor, ROUND_TRIP_S)
            found |= fresh.keys()
            if len(found) == NODES:
                break
        for each in writers:
            each.join()
    assert found == set(names)
    assert cursor <= 4 * NODES


def test_a_slow_writer_holds_up_no_record_that_was_published_before_its_own(host: C10dStore, guest: C10dStore) -> None:
    """It has taken its number, and its notification is not there yet. Others have published before and after."""
    guest.publish_node("n0", b"before")
    slow = raw_client(host)
    with closing(slow):
        slow.add(Keys("job").log_head, 1)
        guest.publish_node("n1", b"after")
        assert host.wait_nodes(0, ROUND_TRIP_S) == (1, {"n0": b"before"})
        assert host.wait_nodes(1, ROUND_TRIP_S) == (3, {"n1": b"after"})


def test_an_announcement_deleted_while_it_is_read_is_not_taken_for_an_empty_one(
    host: C10dStore, guest: C10dStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that is so slow that 64 newer ones come between its two steps. TCPStore answers with no bytes then."""
    host.announce(1, b"first", 1)
    receive = TcpStoreClient._receive_string
    fell_behind = threading.Event()

    def fall_behind(client: TcpStoreClient) -> bytes:
        value = receive(client)
        if value != b"first" or fell_behind.is_set():
            return value
        fell_behind.set()
        for version in range(2, 80):
            host.announce(version, b"%d" % version, 1)
        return b""

    monkeypatch.setattr(TcpStoreClient, "_receive_string", fall_behind)
    assert guest.wait_round(0, 5.0) == (79, b"79")


def test_a_long_value_may_take_longer_than_a_call_while_it_goes_on_arriving() -> None:
    """Each part within the time limit, all together not."""
    value = bytes(5 * PART_BYTES)
    ours, theirs = socket.socketpair()
    limit_s, pause = 2.0, threading.Event()
    with closing(ours), closing(theirs), closing(TcpStoreClient(ours, "here", limit_s)) as client:

        def serve() -> None:
            theirs.recv(4096)
            theirs.sendall(struct.pack("=Q", len(value)))
            for start in range(0, len(value), PART_BYTES):
                pause.wait(limit_s / 4)
                theirs.sendall(value[start : start + PART_BYTES])

        server = threading.Thread(target=serve)
        server.start()
        assert client.get([Keys("job").round(1)]) == {Keys("job").round(1): value}
        server.join()
