"""The section "The host of the store" of docs/failover-contract.md: the agent that hosts the store is killed, and other
nodes of the list in --rdzv-endpoint may host it."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from elastic_agent.rendezvous.c10d.client import connect
from elastic_agent.rendezvous.c10d.keys import Keys
from elastic_agent.rendezvous.c10d.store import C10dStore
from elastic_agent.rendezvous.codec.records import decode_round
from elastic_agent.rendezvous.endpoint import Endpoint
from support.desk import Worker, restarts_of, worker_of
from support.harness import Cluster
from support.network import free_port
from support.procfs import slowed

AGAIN_S = 3.0
"""From the end of the host to workers of the next round; measured are 0.5 to 1.1 s."""


@pytest.fixture
def listed(tmp_path: Path) -> Iterator[Cluster]:
    """On c10d, with three nodes that may host the store."""
    with closing(Cluster("c10d", tmp_path, nnodes="1:3")) as made:
        made.endpoint = ",".join(f"127.0.0.1:{free_port()}" for _ in range(3))
        yield made


def three(cluster: Cluster) -> list[Worker]:
    """The agents a (which hosts), b and c, with a worker each."""
    cluster.start("a")
    cluster.desk.wait_world(1)
    for name in ("b", "c"):
        cluster.start(name)
    return cluster.desk.wait_world(3)


def test_another_node_hosts_the_store_and_one_job_goes_on(listed: Cluster) -> None:
    """The host is killed: the others train again within 3 s, what counts is kept, and its node, started again with the
    same command, joins that job. The same of the next host."""
    world = three(listed)
    worker_of(world, "b").order("exit 3")
    world = listed.desk.wait_world(3, after=world[0].round)
    listed.nodes["a"].vanish()
    began = time.monotonic()
    again = listed.desk.wait_world(2, after=world[0].round)
    assert time.monotonic() - began < slowed(AGAIN_S)
    listed.desk.wait_gone([worker_of(world, "a")])
    restarts = {worker.node: worker.restarts for worker in again}
    listed.start("a2")
    whole = listed.desk.wait_world(3, after=again[0].round)
    assert {worker.node: worker.restarts for worker in whole} == {**restarts, "a2": 0}
    host = next(name for name in ("b", "c") if "this node coordinates" in listed.nodes[name].text())
    listed.nodes[host].vanish()
    listed.desk.wait_world(2, after=whole[0].round)
    listed.finish()
    rest = [node for name, node in listed.nodes.items() if name not in ("a", host)]
    assert [node.wait() for node in rest] == [0, 0]


def test_of_two_nodes_the_one_that_is_left_goes_on(listed: Cluster) -> None:
    """It knows that the agent is dead, as a living kernel says; and at the start it was said what it would do."""
    listed.start("a", nnodes="1:2")
    listed.desk.wait_world(1)
    b = listed.start("b", nnodes="1:2")
    world = listed.desk.wait_world(2)
    b.wait_text("two nodes: should the agent that hosts the store be killed, the other goes on")
    listed.nodes["a"].vanish()
    listed.desk.wait_world(1, after=world[0].round)
    listed.finish()
    assert b.wait() == 0


def test_the_next_host_is_killed_as_well(listed: Cluster) -> None:
    """Both die at once, whoever of them was to host next: the third node goes on."""
    world = three(listed)
    listed.nodes["a"].vanish()
    listed.nodes["b"].vanish()
    listed.desk.wait_world(1, after=world[0].round)
    listed.finish()
    assert listed.nodes["c"].wait() == 0


def test_the_host_is_killed_while_others_stop(listed: Cluster) -> None:
    """A failure has ended the round, and the host is killed while a worker takes its time to stop."""
    world = three(listed)
    slow = worker_of(world, "c")
    listed.desk.ask(slow, "ignore 15")
    worker_of(world, "b").order("exit 3")
    listed.nodes["c"].wait_text("is over")
    listed.nodes["a"].vanish()
    listed.nodes["b"].wait_text("the store answers again")
    slow.order("exit 0")
    listed.desk.wait_world(2, after=world[0].round)
    listed.finish()
    assert [listed.nodes[name].wait() for name in ("b", "c")] == [0, 0]


def test_a_host_that_leaves_hands_the_store_over(listed: Cluster) -> None:
    """It ends while the others work on, at the price of any node's leaving: one round anew, and no restart. The next
    host is asked to leave when its workers have finished, which disturbs nobody."""
    world = three(listed)
    listed.nodes["a"].terminate()
    began = time.monotonic()
    again = listed.desk.wait_world(2, after=world[0].round)
    assert time.monotonic() - began < AGAIN_S
    assert listed.nodes["a"].wait() == 143
    for worker in again:
        listed.nodes[worker.node].wait_text("the store answers again")
        listed.desk.ask(worker, "ping")
    assert restarts_of(again) == {"b": 0, "c": 0}
    hosts: list[str] = []
    while not hosts:
        listed.desk.ask(again[0], "ping")
        hosts = [name for name in ("b", "c") if "this node coordinates" in listed.nodes[name].text()]
    (host,) = hosts
    other = worker_of(again, "c" if host == "b" else "b")
    worker_of(again, host).order("exit 0")
    listed.nodes[host].wait_text("the finalisation barrier ends in")
    listed.nodes[host].terminate()
    assert listed.nodes[host].wait() == 143
    listed.desk.ask(other, "ping")
    other.order("exit 0")
    assert listed.nodes[other.node].wait() == 0
    assert max(worker.round for worker in listed.desk.workers) == again[0].round


def _wait_finishing(cluster: Cluster) -> None:
    """Until it is announced that a node has finished."""
    port = int(cluster.endpoint.partition(",")[0].rpartition(":")[2])
    client = connect((socket.AF_INET, ("127.0.0.1", port)), "the host", 5.0, 5.0)
    with closing(client):
        store = C10dStore(
            client, Endpoint("127.0.0.1", port), Keys(cluster.run_id), (socket.AF_INET, ("", 0)), None, b""
        )
        seen = store.wait_round(0, 5.0)
        while seen is not None and not decode_round(seen[1]).finished:
            seen = store.wait_round(seen[0], 5.0)
    assert seen is not None
    for worker in cluster.desk.workers:
        if worker.node != "a":
            cluster.desk.ask(worker, "ping")  # so long do their agents need to read it at the same time


def test_a_host_that_has_finished_is_killed(listed: Cluster) -> None:
    """Its workers are done and the others work on: no round begins anew, and the job succeeds."""
    world = three(listed)
    worker_of(world, "a").order("exit 0")
    _wait_finishing(listed)
    rest = [worker for worker in world if worker.node != "a"]
    listed.nodes["a"].vanish()
    for name in ("b", "c"):
        listed.nodes[name].wait_text("the store answers again")
    for worker in rest:
        listed.desk.ask(worker, "ping")
    assert max(worker.round for worker in listed.desk.workers) == world[0].round
    for worker in rest:
        worker.order("exit 0")
    assert [listed.nodes[name].wait() for name in ("b", "c")] == [0, 0]
