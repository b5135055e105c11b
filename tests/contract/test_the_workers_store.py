"""The section "The workers' store" of docs/failover-contract.md."""

from __future__ import annotations

import glob
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from elastic_agent.rendezvous.c10d.client import TcpStoreClient, connect
from elastic_agent.rendezvous.store import StoreUnreachable
from support.desk import BOUND_S, Worker, restarts_of, worker_of
from support.harness import Cluster
from support.procfs import read, wait_exit


@contextmanager
def store_of(world: list[Worker]) -> Iterator[TcpStoreClient]:
    """A client of the store that this world is to use, as each of its workers may open one."""
    assert len({(worker.env["MASTER_ADDR"], worker.env["MASTER_PORT"]) for worker in world}) == 1
    where = (world[0].env["MASTER_ADDR"], int(world[0].env["MASTER_PORT"]))
    with closing(connect((socket.AF_INET, where), "the workers' store", 5.0, 5.0)) as client:
        yield client


def serving_processes() -> list[int]:
    """Pids of the processes below this one that serve a workers' store."""
    found, queue = [], [os.getpid()]
    while queue:
        pid = queue.pop()
        for path in glob.glob(f"/proc/{pid}/task/*/children"):  # none: it has ended
            queue += map(int, read(path).split())
        if read(f"/proc/{pid}/comm") == b"elastic-store\n":
            found.append(pid)
    return found


def serving(count: int) -> list[int]:
    """Those, once there are so many: what was told to end takes a moment."""
    deadline = time.monotonic() + BOUND_S
    while len(found := serving_processes()) != count:
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return found


def test_every_worker_is_a_client_of_a_store_that_outlives_all_of_them(cluster: Cluster) -> None:
    """TORCHELASTIC_USE_AGENT_STORE is True, and the store is there although no worker serves it; it is still there when
    rank 0, and all workers of its node, have exited 0, until the last worker of the round has."""
    nodes = [cluster.start("a", nnodes="2"), cluster.start("b", nnodes="2", nproc=2)]
    world = cluster.desk.wait_world(3)
    assert {worker.env["TORCHELASTIC_USE_AGENT_STORE"] for worker in world} == {"True"}
    first = [worker for worker in world if worker.node == world[0].node]
    last = [worker for worker in world if worker not in first]
    with store_of(world) as store:
        store.put("key", b"value")
        for worker in first:
            worker.order("exit 0")
        cluster.desk.wait_gone(first)
        cluster.nodes[first[0].node].wait_text("all workers of this node exited 0")
        assert store.get(["key"]) == {"key": b"value"}
        with store_of(last) as another:
            assert another.get(["key"]) == {"key": b"value"}
    for worker in last:
        worker.order("exit 0")
    assert [node.wait() for node in nodes] == [0, 0]
    assert serving(0) == []


def test_a_rounds_store_is_empty_and_the_last_rounds_is_closed(cluster: Cluster) -> None:
    """A worker of the last round that still ran would reach neither store."""
    a = cluster.start("a", nnodes="1", max_restarts=1)
    first = cluster.desk.wait_world(1)
    with store_of(first) as old:
        old.put("key", b"value")
        first[0].order("exit 1")
        second = cluster.desk.wait_world(1, after=1)
        with pytest.raises(StoreUnreachable):
            old.get(["key"])
    with pytest.raises(StoreUnreachable), store_of(first):
        pass
    with store_of(second) as new:
        assert new.get(["key"]) == {}
    cluster.finish()
    assert a.wait() == 0


def test_a_store_whose_process_dies_restarts_the_round_and_charges_nobody(cluster: Cluster) -> None:
    """The keys are gone with it, so the round is over, on all nodes: a failure of the host, not of the script."""
    nodes = [cluster.start(name, nnodes="2", max_restarts=0) for name in "ab"]
    world = cluster.desk.wait_world(2)
    with store_of(world) as store:
        store.put("key", b"value")
        [pid] = serving(1)
        os.kill(pid, signal.SIGKILL)
        wait_exit(pid, time.monotonic() + BOUND_S)
        again = cluster.desk.wait_world(2, after=1)
    assert restarts_of(again) == {"a": 0, "b": 0}
    assert again[0].env["ELASTIC_AGENT_LAST_ROUND_ENDED"].count("the process that serves the workers' store died") == 1
    with store_of(again) as store:
        assert store.get(["key"]) == {}
    cluster.finish()
    assert [node.wait() for node in nodes] == [0, 0]


def test_a_store_that_dies_after_its_node_has_finished_disturbs_nobody_else(cluster: Cluster) -> None:
    """Workers elsewhere go on if they do not need it any more."""
    nodes = [cluster.start(name, nnodes="2", max_restarts=0) for name in "ab"]
    world = cluster.desk.wait_world(2)
    with store_of(world):
        [pid] = serving(1)
        world[0].order("exit 0")
        cluster.nodes[world[0].node].wait_text("all workers of this node exited 0")
        os.kill(pid, signal.SIGKILL)
        cluster.nodes[world[0].node].wait_text("workers of other nodes fail if they still need it")
    cluster.desk.ask(world[1], "ping")
    assert len(cluster.desk.workers) == 2
    world[1].order("exit 0")
    assert [node.wait() for node in nodes] == [0, 0]


def test_a_job_that_never_opens_its_store_has_no_process_for_it(cluster: Cluster) -> None:
    """The port listens, and that is all."""
    a = cluster.start("a", nnodes="1")
    world = cluster.desk.wait_world(1)
    assert serving_processes() == []
    with store_of(world) as store:
        store.put("key", b"value")
        assert len(serving(1)) == 1
    cluster.finish()
    assert a.wait() == 0


def test_the_store_moves_with_group_rank_0(cluster: Cluster) -> None:
    """The node of the next rank 0 serves the next store, and the one before serves none."""
    b = cluster.start("b", nnodes="1:2", node_rank=1)
    cluster.desk.wait_world(1)
    a = cluster.start("a", nnodes="1:2", node_rank=0)
    world = cluster.desk.wait_world(2)
    with store_of(world) as store:
        store.put("key", b"value")
        assert len(serving(1)) == 1
    a.terminate()
    alone = cluster.desk.wait_world(1, after=world[0].round)
    assert worker_of(alone, "b").rank == 0
    with store_of(alone) as store:
        assert store.get(["key"]) == {}
        assert len(serving(1)) == 1
    cluster.finish()
    assert (a.wait(), b.wait()) == (143, 0)
