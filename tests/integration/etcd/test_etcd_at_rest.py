"""What a job costs etcd while nothing happens: reads, renewals of leases, and no write."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from elastic_agent.rendezvous.etcd.client import Lease
from elastic_agent.rendezvous.etcd.keys import EtcdKeys
from elastic_agent.rendezvous.etcd.ops import Delete, Read
from elastic_agent.rendezvous.etcd.store import Location, open_etcd
from elastic_agent.rendezvous.store import Store
from support.etcd_servers import VERSIONS, Servers, serving
from support.harness import Cluster
from support.procfs import turns
from support.store_stages import lead

QUIET_S = 33.0
"""Longer than one wait of a candidate (`driver/term.py`, WAIT_S)."""


@pytest.fixture(params=VERSIONS)
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Servers]:
    """A server for one test alone: others' leases, as they run out, are writes too."""
    with serving(request.param, tmp_path / "etcd") as made:
        yield made


def proposals(servers: Servers) -> int:
    """What the servers have agreed on and written to their disks: puts, deletions, transactions that may put, leases
    granted or ended; not reads, and not renewals."""
    return servers.counted("etcd_server_proposals_applied_total")


def test_agents_at_rest_write_nothing(servers: Servers) -> None:
    """Whatever they call again and again: followers who stand for coordinator, heartbeats, waits of each kind."""
    place = Location(f"rest {uuid.uuid4()}", lease_s=60.0)
    stores = {name: open_etcd(servers.endpoints, place) for name in ("a", "b", "c")}
    epoch = lead(stores["a"], "a")
    stores["a"].announce(1, b"round", epoch)

    def rest() -> None:
        for count, (name, store) in enumerate(stores.items()):
            store.wait_round(1, 0.0)
            store.beat(name, count)
            if name == "a":
                store.wait_nodes(0, 0.0)
                store.read_beats(list(stores))
                assert not store.wait_deposed(epoch, 0.01)
            else:
                assert store.lead(name, 0.01) is None

    for name, store in stores.items():
        store.publish_node(name, b"record")
    rest()  # the first heartbeat of each
    before = proposals(servers)
    for _ in range(5):
        rest()
    assert proposals(servers) == before
    for store in stores.values():
        store.close()


@pytest.mark.slow
def test_a_job_at_rest_writes_nothing(tmp_path: Path) -> None:
    """Real agents, for longer than any of their waits; on each version of etcd at the same time."""
    with ThreadPoolExecutor(len(VERSIONS)) as pool:
        for done in [pool.submit(rest_on, version, tmp_path / version) for version in VERSIONS]:
            done.result()


def rest_on(version: str, folder: Path) -> None:
    folder.mkdir()
    with serving(version, folder / "etcd") as servers:
        rest_a_job(servers, folder)


def rest_a_job(servers: Servers, folder: Path) -> None:
    with closing(Cluster("etcd", folder, servers, nnodes="3")) as cluster, closing(servers.client()) as client:
        nodes = [cluster.start(name) for name in "abc"]
        world = cluster.desk.wait_world(3)
        prefix = f"/elastic-agent/{cluster.run_id}/".encode()
        with closing(client.watch(prefix, prefix=True)) as watch:
            while watch.wait(QUIET_S / 4):
                pass  # the job settles: records of all nodes at work
            before, revision = proposals(servers), client.read(Read(b"-")).revision
            assert not watch.wait(QUIET_S)
            assert (proposals(servers), client.read(Read(b"-")).revision) == (before, revision)
        for worker in world:
            worker.order("exit 0")
        assert [node.wait() for node in nodes] == [0, 0, 0]


def test_a_node_that_joins_costs_two_writes(servers: Servers) -> None:
    """Its lease and its record, and the job's lease and record if it is the first: the others renew the one, and read
    the other. Its key needs no look at the first heartbeat, as the record was written with it."""
    place = Location(f"join {uuid.uuid4()}", lease_s=60.0)
    spent = []
    for name in ("a", "b"):
        before = proposals(servers)
        with closing(open_etcd(servers.endpoints, place)) as store:
            store.write_job(b"job")
            store.publish_node(name, b"record")
            store.beat(name, 1)
            spent.append(proposals(servers) - before)
    assert spent == [4, 2]


def test_a_node_that_joins_asks_three_times_for_keys(servers: Servers) -> None:
    """For the job's record and the leader; as it writes its own, for the newest version; and for that one."""
    place = Location(f"asked {uuid.uuid4()}", lease_s=60.0)
    with closing(open_etcd(servers.endpoints, place)) as first:
        first.write_job(b"job")
        epoch = lead(first, "a")
        first.announce(1, b"round", epoch)
        before = asked(servers)
        with closing(open_etcd(servers.endpoints, place)) as store:
            assert store.write_job(b"another") == b"job"
            store.publish_node("b", b"record")
            store.beat("b", 1)
            assert store.wait_round(0, 10.0) == (1, b"round")
            assert store.lead("b", 1.0) is None
        assert asked(servers) - before == 3


def asked(servers: Servers) -> int:
    """Requests for keys that the servers have taken: reads, puts, deletions and transactions; not watches."""
    return servers.counted(r"grpc_server_started_total\{[^}]*etcdserverpb\.KV[^}]*\}")


def test_a_further_record_changes_one_key(servers: Servers) -> None:
    """The node's key is written with its first record, and again only where it is gone: each change that follows costs
    the servers a write, and the coordinator an answer."""
    place = Location(f"records {uuid.uuid4()}", lease_s=60.0)
    with closing(open_etcd(servers.endpoints, place)) as store, closing(servers.client()) as client:
        keys = EtcdKeys(place.prefix, place.run_id)
        with closing(client.watch(keys.nodes_prefix, prefix=True)) as watch:

            def changed(record: bytes) -> list[bytes]:
                store.publish_node("a", record)
                return sorted(change.item.key for change in watch.wait(10.0))

            both = sorted((keys.record("a"), keys.live("a")))
            assert changed(b"first") == both
            assert changed(b"second") == [keys.record("a")]
            client.delete(Delete(keys.live("a")))
            watch.wait(10.0)
            assert changed(b"third") == both
            assert changed(b"fourth") == [keys.record("a")]


def test_a_stream_that_waits_wakes_nobody(servers: Servers) -> None:
    """gRPC's blocking interface wakes ten times a second each thread that waits, and there are three streams a node."""
    with closing(servers.client()) as client, closing(client.watch(b"quiet")) as watch:
        client.keep_alive(client.grant(60))
        watch.wait(1.0)  # gRPC settles
        (thread,) = [each for each in threading.enumerate() if each.name == "elastic-agent-grpc"]
        before = _waits(thread)
        assert not watch.wait(3.0)
        assert _waits(thread) - before <= 3


def _waits(thread: threading.Thread) -> int:
    return int(turns(thread.native_id or 0)[1])


def test_the_jobs_lease_is_renewed_by_who_joins_a_job_that_nobody_leads(servers: Servers) -> None:
    """Else its keys would go with it though the job runs again. Where one leads, that one has renewed it lately."""
    place = Location(f"renewed {uuid.uuid4()}", lease_s=60.0, record_ttl_s=60.0)
    job_lease = Lease(EtcdKeys(place.prefix, place.run_id).job_lease, 60)

    def join(store: Store) -> None:
        store.write_job(b"job")

    with closing(servers.client()) as client:

        def left_behind_a_join() -> float:
            before_s = client.left_s(job_lease)
            with closing(open_etcd(servers.endpoints, place, join=join)):
                return client.left_s(job_lease) - before_s

        with closing(open_etcd(servers.endpoints, place, join=join)) as first:
            time.sleep(2.1)  # the TTL is of whole seconds
            assert left_behind_a_join() > 0
            lead(first, "a")
            time.sleep(2.1)
            assert left_behind_a_join() <= 0
