"""The section "The coordinator, where no node hosts the store" of docs/failover-contract.md."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any

from elastic_agent.rendezvous.codec import job as jobs
from elastic_agent.rendezvous.codec import records as codec
from elastic_agent.rendezvous.records import Outcome, RoundPhase
from support.desk import BOUND_S, restarts_of, worker_of
from support.harness import SHORT_LEASE, SHORT_LEASE_S, Cluster, Node
from support.procfs import slowed


def coordinator(cluster: Cluster, *names: str, **changes: Any) -> tuple[Node, list[Node]]:
    """Start these nodes. Returns the first, which coordinates, and the others."""
    first = cluster.start(names[0], **changes)
    first.wait_text("this node coordinates the job")
    return first, [cluster.start(name, **changes) for name in names[1:]]


def taken_over(nodes: list[Node]) -> Node:
    """Wait until one of these nodes coordinates; that node."""
    deadline = time.monotonic() + BOUND_S
    while True:
        for node in nodes:
            if "this node coordinates the job" in node.text():
                return node
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_finished(cluster: Cluster, name: str) -> None:
    """Wait until the store holds a record of this node that says that it has finished."""
    store, cursor = cluster.store.guest(), 0
    known_as = cluster.nodes[name].known_as
    deadline = time.monotonic() + BOUND_S
    while True:
        cursor, fresh = store.wait_nodes(cursor, BOUND_S)
        if any(record.name == known_as and record.finished for record in map(codec.decode_node, fresh.values())):
            return
        assert time.monotonic() < deadline


def wait_settled(cluster: Cluster) -> None:
    """Wait until the store holds the announcement of how a round ended, while a node still stops its workers."""
    store, version = cluster.store.guest(), 0
    deadline = time.monotonic() + BOUND_S
    while True:
        assert time.monotonic() < deadline
        version, value = store.wait_round(version, BOUND_S)
        announced = codec.decode_round(value)
        if (
            announced.phase is RoundPhase.OVER
            and announced.ended is not None
            and announced.ended.round == announced.number
        ):
            return


def test_the_coordinator_is_lost_while_workers_run(electing: Cluster) -> None:
    """Another node takes over when its lease has run out; the survivors run again within 3 s more, uncharged."""
    first, others = coordinator(electing, "a", "b", "c", nnodes="2:3", max_restarts=0)
    world = electing.desk.wait_world(3)
    began = time.monotonic()
    first.vanish()
    again = electing.desk.wait_world(2, after=world[0].round)
    assert time.monotonic() - began < SHORT_LEASE_S + slowed(3.0)
    assert restarts_of(again) == {"b": 0, "c": 0}
    assert [worker.rank for worker in again] == [0, 1]
    electing.finish()
    assert [node.wait() for node in others] == [0, 0]


def test_the_coordinator_is_lost_while_nodes_gather(electing: Cluster) -> None:
    """The node that had joined and those that join later form one round."""
    first, others = coordinator(electing, "a", "b", nnodes="3")
    others[0].wait_text("of at least 3 nodes joined")
    first.vanish()
    others[0].wait_text("this node coordinates the job")
    others += [electing.start(name, nnodes="3") for name in "cd"]
    assert {worker.node for worker in electing.desk.wait_world(3)} == {"b", "c", "d"}
    electing.finish()
    assert [node.wait() for node in others] == [0, 0, 0]


def test_the_coordinator_is_lost_while_others_stop(electing: Cluster) -> None:
    """A failure that the lost coordinator had charged is charged once, not again by its successor."""
    first, others = coordinator(electing, "a", "b", "c", nnodes="2:3", max_restarts=1, grace_s=20)
    world = electing.desk.wait_world(3)
    slow, failing = (worker_of(world, name) for name in "ac")
    electing.desk.ask(slow, "ignore 15")
    failing.order("raise of its own")  # a certain cause, so it is charged before all workers have exited
    wait_settled(electing)
    first.vanish()
    again = electing.desk.wait_world(2, after=world[0].round)
    assert restarts_of(again) == {"b": 0, "c": 1}
    electing.finish()
    assert [node.wait() for node in others] == [0, 0]


def test_a_failure_that_echoes_the_loss_of_the_coordinator_is_not_charged(electing: Cluster) -> None:
    """A peer of its workers fails after it is lost, before another node coordinates: the loss is the cause."""
    first, others = coordinator(electing, "a", "b", "c", nnodes="2:3", max_restarts=0)
    world = electing.desk.wait_world(3)
    first.vanish()
    worker_of(world, "c").order("exit 3")
    again = electing.desk.wait_world(2, after=world[0].round)
    assert restarts_of(again) == {"b": 0, "c": 0}
    electing.finish()
    assert [node.wait() for node in others] == [0, 0]


def test_the_coordinator_is_lost_while_others_finish(electing: Cluster) -> None:
    """It had finished and waited for the rest; the others finish, and all of them exit 0."""
    first, others = coordinator(electing, "a", "b", "c", nnodes="3")
    world = electing.desk.wait_world(3)
    for worker in world:
        if worker.node in "ab":
            worker.order("exit 0")
    for name in "ab":
        wait_finished(electing, name)
    first.vanish()
    taken_over(others)
    worker_of(world, "c").order("exit 0")
    assert [node.wait() for node in others] == [0, 0]


def test_a_rerun_inherits_nothing_that_no_living_agent_stands_for(electing: Cluster) -> None:
    """One node has finished when all agents are killed. The same command runs again, for longer than the finalisation
    barrier that began then, and succeeds. Its round begins once the workers of the others have surely ended, which
    nobody is left to say."""
    barrier_s = 3.0
    options: dict[str, Any] = {
        "nnodes": "2",
        "barrier_s": barrier_s,
        "grace_s": 1.0,
        "conf": {**SHORT_LEASE, "store_grace": 2.0},
    }
    dead = [electing.start(name, **options) for name in "ab"]
    worker_of(electing.desk.wait_world(2), "a").order("exit 0")
    wait_finished(electing, "a")
    for node in dead:
        node.vanish()
    again = [electing.start(name, **options) for name in "cd"]
    world = electing.desk.wait_world(2, after=1)
    assert {worker.node for worker in world} == {"c", "d"}
    assert restarts_of(world) == {"c": 0, "d": 0}
    over_at = time.monotonic() + barrier_s + SHORT_LEASE_S
    while time.monotonic() < over_at:
        for worker in world:
            electing.desk.ask(worker, "ping")
    electing.finish()
    assert [node.wait() for node in again] == [0, 0]


def test_a_coordinator_that_leaves_hands_over(tmp_path: Path) -> None:
    """Another node coordinates at once: the lease here, 120 s, is longer than the test."""
    with closing(Cluster("electing memory", tmp_path, conf={"lease": 120})) as electing:
        first, others = coordinator(electing, "a", "b", "c", nnodes="1:3")
        world = electing.desk.wait_world(3)
        first.terminate()
        assert first.wait() == 143
        again = electing.desk.wait_world(2, after=world[0].round)
        assert {worker.node for worker in again} == {"b", "c"}
        taken_over(others)
        worker_of(again, "c").order("exit 3")
        assert restarts_of(electing.desk.wait_world(2, after=again[0].round)) == {"b": 0, "c": 1}
        electing.finish()
        assert [node.wait() for node in others] == [0, 0]


def test_a_coordinator_that_is_deposed_disturbs_nobody(electing: Cluster) -> None:
    """Its term ends while it runs: its round goes on, and another node decides from then on."""
    first, others = coordinator(electing, "a", "b", "c", nnodes="3")
    world = electing.desk.wait_world(3)
    epoch = electing.store.guest().lead("nobody", 0.0) or 1
    for term in range(epoch, epoch + 5):
        electing.store.guest().resign(term)
    electing.assert_undisturbed(world)
    worker_of(world, "b").order("exit 3")
    again = electing.desk.wait_world(3, after=world[0].round)
    assert restarts_of(again) == {"a": 0, "b": 1, "c": 0}
    electing.finish()
    assert [node.wait() for node in (first, *others)] == [0, 0, 0]


def test_one_coordinator_after_the_other_is_lost(electing: Cluster) -> None:
    """Of four nodes three are lost in turn, each while it coordinates; the last one goes on and exits 0."""
    nodes = [electing.start(name, nnodes="1:4") for name in "abcd"]
    world = electing.desk.wait_world(4)
    for size in (3, 2, 1):
        leading = taken_over(nodes)
        leading.vanish()
        nodes.remove(leading)
        world = electing.desk.wait_world(size, after=world[0].round)
        assert {worker.restarts for worker in world} == {0}
    electing.finish()
    assert [node.wait() for node in nodes] == [0]


def test_after_the_job_only_its_record_is_left_in_the_store(electing: Cluster) -> None:
    """The coordinator deletes all other keys once every node has ended."""
    nodes = [electing.start(name, nnodes="3") for name in "abc"]
    electing.desk.wait_world(3)
    electing.finish()
    assert [node.wait() for node in nodes] == [0, 0, 0]
    left = electing.store.guest()
    assert jobs.decode_job(left.write_job(b"?")).outcome is Outcome.SUCCEEDED
    assert left.wait_nodes(0, 0.0)[1] == {}
    assert left.wait_round(0, 0.0) is None
