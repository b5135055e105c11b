"""The section "A node finishes" of docs/failover-contract.md."""

from __future__ import annotations

import time

from support.desk import restarts_of, worker_of
from support.harness import SHORT_LEASE, Cluster
from support.procfs import slowed


def test_nodes_that_finish_within_the_barrier_all_exit_0(cluster: Cluster) -> None:
    """One agent has finished and waits in the barrier; the other finishes within it, and both exit 0."""
    a, b = cluster.start("a", nnodes="2"), cluster.start("b", nnodes="2")
    world = cluster.desk.wait_world(2)
    world[1].order("exit 0")
    cluster.nodes[world[1].node].wait_text("exited 0")
    cluster.desk.ask(world[0], "ping")
    world[0].order("exit 0")
    assert (a.wait(), b.wait()) == (0, 0)


def test_at_the_end_of_the_barrier_who_still_works_is_stopped_and_the_finished_keep_0(cluster: Cluster) -> None:
    """At the end of the barrier a node still working is stopped, reports it and exits 82; the finished exits 0."""
    for name in "ab":
        cluster.start(name, nnodes="2", barrier_s=1)
    world = cluster.desk.wait_world(2)
    world[0].order("exit 0")
    done, late = cluster.nodes[world[0].node], cluster.nodes[world[1].node]
    assert (done.wait(), late.wait()) == (0, 82)
    assert "finalisation barrier of 1 s ended" in late.text()
    assert world[1].gone.is_set()


def test_a_failure_after_another_node_finished_restarts_what_can_restart(cluster: Cluster) -> None:
    """One node has finished and another's worker fails with budget left: the remaining nodes restart within 10 s."""
    nodes = [cluster.start(name, nnodes="1:3") for name in "abc"]
    world = cluster.desk.wait_world(3)
    worker_of(world, "c").order("exit 0")
    cluster.nodes["c"].wait_text("all workers of this node exited 0")
    began = time.monotonic()
    worker_of(world, "b").order("exit 1")
    again = cluster.desk.wait_world(2, after=world[0].round)
    assert time.monotonic() - began < slowed(10.0)
    assert restarts_of(again) == {"a": 0, "b": 1}
    cluster.finish()
    assert [node.wait() for node in nodes] == [0, 0, 0]


def test_a_failure_that_cannot_restart_after_another_finished_closes_at_once(cluster: Cluster) -> None:
    """One node of a fixed two has finished and the other fails: both end within 10 s, and the cause is named."""
    for name in "ab":
        cluster.start(name, nnodes="2")
    world = cluster.desk.wait_world(2)
    finished, failing = cluster.nodes[world[0].node], cluster.nodes[world[1].node]
    world[0].order("exit 0")
    finished.wait_text("all workers of this node exited 0")
    began = time.monotonic()
    world[1].order("exit 5")
    assert (finished.wait(), failing.wait()) == (0, 1)
    assert time.monotonic() - began < slowed(10.0)
    assert "exit code 5" in failing.last_line()


def test_a_loss_that_leaves_too_few_places_after_others_finished_closes_at_once(cluster: Cluster) -> None:
    """Two of a fixed three have finished and the third is lost; a node that waits for a place is told within 10 s."""
    nodes = [cluster.start(name, nnodes="3", conf=SHORT_LEASE) for name in "abc"]
    world = cluster.desk.wait_world(3)
    spare = cluster.start("d", nnodes="3", conf=SHORT_LEASE)
    spare.wait_text("waiting for a place in a round")
    for name in "ab":
        worker_of(world, name).order("exit 0")
        cluster.nodes[name].wait_text("all workers of this node exited 0")
    began = time.monotonic()
    nodes[2].vanish()
    assert [node.wait() for node in (*nodes[:2], spare)] == [0, 0, 76]
    assert time.monotonic() - began < slowed(10.0)
    assert "had already finished, and 1 node remains, fewer than min_nodes 3" in spare.last_line()
