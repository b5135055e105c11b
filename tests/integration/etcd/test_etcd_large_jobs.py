"""What a coordinator of a large job receives of its nodes on real etcd: their changes gather at the server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from elastic_agent.rendezvous.codec.limits import FEW_NODES
from elastic_agent.rendezvous.etcd import watch_cache
from elastic_agent.rendezvous.etcd.client import EtcdClient
from elastic_agent.rendezvous.etcd.keys import PREFIX, EtcdKeys
from elastic_agent.rendezvous.etcd.ops import Delete, Put
from elastic_agent.rendezvous.etcd.store import EtcdStore, Location, open_etcd
from elastic_agent.rendezvous.etcd.watch_cache import GATHER_S
from elastic_agent.rendezvous.store import StoreUnreachable
from support.etcd_servers import Servers

BOUND_S = 30.0
"""What must happen at once may take this long on a busy host."""
KEYS = EtcdKeys(PREFIX, "large")
NODES = [f"n{number:03}" for number in range(FEW_NODES + 1)]


@pytest.fixture
def client(one: Servers) -> Iterator[EtcdClient]:
    """A client of a server that has the records of a large job, and no others."""
    with closing(one.client()) as made:
        made.delete(Delete(b"", prefix=True))
        write(made, b"first")
        yield made


@pytest.fixture
def coordinator(one: Servers, client: EtcdClient) -> Iterator[EtcdStore]:
    """The connection of this job's coordinator."""
    with closing(open_etcd(one.endpoints, Location("large", lease_s=60.0))) as store:
        yield store


def write(client: EtcdClient, value: bytes) -> None:
    """Put each node's record, several at the same time."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda node: client.put(Put(KEYS.record(node), value)), NODES))


def test_the_changes_of_many_nodes_arrive_together_and_none_is_missed(
    client: EtcdClient, coordinator: EtcdStore
) -> None:
    """All nodes of a job write a record when it restarts. One answer for each would take the coordinator a second of
    processor time in a job of 1,000."""
    cursor, records = coordinator.wait_nodes(0, BOUND_S)
    assert set(records) == set(NODES)
    began = time.monotonic()
    second, answers = set[str](), 0
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write, client, b"second")
        while len(second) < len(NODES):
            cursor, records = coordinator.wait_nodes(cursor, BOUND_S)
            assert records, "no change is missed"
            answers += 1
            second |= {node for node, value in records.items() if value == b"second"}
        writing.result(BOUND_S)
    assert answers <= (time.monotonic() - began) / GATHER_S + 2


def test_what_ends_while_changes_gather_is_seen(
    client: EtcdClient, coordinator: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node's lease that ends where no watch is on it: the watch begins behind the last change, not at its own
    beginning."""
    client.put(Put(KEYS.live("n001"), b""))
    cursor, _ = coordinator.wait_nodes(0, BOUND_S)
    monkeypatch.setattr(watch_cache, "GATHER_S", 1.0)
    client.put(Put(KEYS.record("n002"), b"second"))
    cursor, records = coordinator.wait_nodes(cursor, BOUND_S)
    assert list(records) == ["n002"]
    client.delete(Delete(KEYS.live("n001")))
    _, records = coordinator.wait_nodes(cursor, BOUND_S)
    assert list(records) == ["n001"]


@pytest.mark.parametrize("ends", ["by its time", "by close"])
def test_a_wait_ends_while_changes_gather(
    client: EtcdClient, coordinator: EtcdStore, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """As at any other moment."""
    cursor, _ = coordinator.wait_nodes(0, BOUND_S)
    monkeypatch.setattr(watch_cache, "GATHER_S", 2 * BOUND_S)
    client.put(Put(KEYS.record("n002"), b"second"))
    cursor, _ = coordinator.wait_nodes(cursor, BOUND_S)
    if ends == "by its time":
        assert coordinator.wait_nodes(cursor, 1.0) == (cursor, {})
        return
    closer = threading.Timer(0.2, coordinator.close)
    closer.start()
    with pytest.raises(StoreUnreachable, match="closed the client"):
        coordinator.wait_nodes(cursor, BOUND_S)
    closer.join()
