"""The section "A worker fails" of docs/failover-contract.md."""

from __future__ import annotations

import os
import signal
import time

from elastic_agent.agent.lifecycle.restart_policy import MAX_HOST_FAILURES
from support.desk import Worker, restarts_of, worker_of
from support.harness import SHORT_LEASE, Cluster
from support.procfs import parent_of, slowed

PEER_LOST = "gloo/transport/tcp/pair.cc:553] Connection closed by peer"
"""gloo's message in a worker whose peer exited."""


def test_a_worker_failure_charges_its_own_agent_one_restart_and_starts_a_new_round_for_all(cluster: Cluster) -> None:
    """With a budget above 0 the agent of the failed worker is charged; the workers of the others restart uncharged."""
    a, b = cluster.start("a", nnodes="2"), cluster.start("b", nnodes="2")
    world = cluster.desk.wait_world(2)
    worker_of(world, "b").order("exit 3")
    again = cluster.desk.wait_world(2, after=world[0].round)
    assert restarts_of(again) == {"a": 0, "b": 1}
    assert all(worker.gone.is_set() for worker in world)
    cluster.finish()
    assert (a.wait(), b.wait()) == (0, 0)


def test_budgets_are_local_and_never_synchronised(cluster: Cluster) -> None:
    """Each node spends its own budget: with 1 restart each, two nodes survive one failure each."""
    a, b = cluster.start("a", nnodes="2", max_restarts=1), cluster.start("b", nnodes="2", max_restarts=1)
    for name, after in (("a", 0), ("b", 1)):
        world = cluster.desk.wait_world(2, after=after)
        worker_of(world, name).order("exit 1")
    world = cluster.desk.wait_world(2, after=2)
    assert {worker.restarts for worker in world} == {1}
    cluster.finish()
    assert (a.wait(), b.wait()) == (0, 0)


def echo_then_cause(cluster: Cluster) -> list[Worker]:
    """The worker of a fails with a lost connection to its peer; then the worker of b, the peer, fails by itself."""
    world = cluster.desk.wait_world(2)
    echo, cause = sorted(world, key=lambda worker: worker.node)
    echo.order(f"raise {PEER_LOST}")
    cluster.nodes["a"].wait_text("worker failed: rank")  # or the failure of b could stop it first
    cause.order("exit 3")
    return world


def test_a_failure_that_only_echoes_another_nodes_is_charged_there(cluster: Cluster) -> None:
    """The echo fails first, on a node without a restart; the node of the cause is charged, and the job goes on."""
    a = cluster.start("a", nnodes="2", max_restarts=0, redirects=2)
    b = cluster.start("b", nnodes="2", max_restarts=1, redirects=2)
    world = echo_then_cause(cluster)
    again = cluster.desk.wait_world(2, after=world[0].round)
    assert restarts_of(again) == {"a": 0, "b": 1}
    cluster.finish()
    assert (a.wait(), b.wait()) == (0, 0)


def test_a_node_that_counts_as_torchrun_does_pays_for_an_echo_too(cluster: Cluster) -> None:
    """--charge local: the node of the echo is charged and has no restart left, so the job ends."""
    a = cluster.start("a", nnodes="2", max_restarts=0, redirects=2, charge="local")
    b = cluster.start("b", nnodes="2", max_restarts=1, redirects=2)
    echo_then_cause(cluster)
    assert (a.wait(), b.wait()) == (1, 1)
    assert "no restarts are left on" in b.last_line()
    assert "exit code 3" in b.last_line()


def test_membership_changes_never_charge_anybody(cluster: Cluster) -> None:
    """A node arrives, is lost, and is replaced: every node's budget is untouched, even where it is 0."""
    host = cluster.start("a", nnodes="1:2", max_restarts=0, conf=SHORT_LEASE)
    first = cluster.desk.wait_world(1)
    cluster.start("b", nnodes="1:2", max_restarts=0, conf=SHORT_LEASE)
    second = cluster.desk.wait_world(2, after=first[0].round)
    cluster.nodes["b"].vanish()
    third = cluster.desk.wait_world(1, after=second[0].round)
    c = cluster.start("c", nnodes="1:2", max_restarts=0, conf=SHORT_LEASE)
    fourth = cluster.desk.wait_world(2, after=third[0].round)
    assert {worker.restarts for worker in (*first, *second, *third, *fourth)} == {0}
    cluster.finish()
    assert (host.wait(), c.wait()) == (0, 0)


def test_a_failure_that_only_echoes_the_loss_of_a_node_is_not_charged(cluster: Cluster) -> None:
    """A worker that fails after a peer's node was lost charges nothing to its own node, which has no restarts."""
    a = cluster.start("a", nnodes="1:2", max_restarts=0, conf=SHORT_LEASE)
    b = cluster.start("b", nnodes="1:2", max_restarts=0, conf=SHORT_LEASE)
    world = cluster.desk.wait_world(2)
    b.vanish()
    worker_of(world, "a").order("exit 1")
    again = cluster.desk.wait_world(1, after=world[0].round)
    assert again[0].restarts == 0
    cluster.finish()
    assert a.wait() == 0


def lose_nursery(cluster: Cluster, name: str, size: int, after: int = 0) -> list[Worker]:
    """Kill the nursery of this node in the next round after `after`. Returns that round's world."""
    world = cluster.desk.wait_world(size, after=after)
    os.kill(parent_of(worker_of(world, name).pid), signal.SIGKILL)
    return world


def test_a_failure_of_the_host_charges_nobody_and_the_job_goes_on(cluster: Cluster) -> None:
    """The nursery of b is killed, and its workers with it. No node has a restart left, and none needs one."""
    a = cluster.start("a", nnodes="2", max_restarts=0)
    b = cluster.start("b", nnodes="2", max_restarts=0)
    world = lose_nursery(cluster, "b", 2)
    again = cluster.desk.wait_world(2, after=world[0].round)
    assert restarts_of(again) == {"a": 0, "b": 0}
    assert all(worker.gone.is_set() for worker in world)
    cluster.finish()
    assert (a.wait(), b.wait()) == (0, 0)


def test_a_host_that_fails_again_and_again_is_left_and_the_others_go_on(cluster: Cluster) -> None:
    """At the third failure in a row b leaves with status 71, and a goes on without it."""
    a = cluster.start("a", nnodes="1:2", max_restarts=0)
    b = cluster.start("b", nnodes="1:2", max_restarts=0)
    last = 0
    for _ in range(MAX_HOST_FAILURES):
        last = lose_nursery(cluster, "b", 2, after=last)[0].round
    assert b.wait() == 71
    assert [worker.node for worker in cluster.desk.wait_world(1, after=last)] == ["a"]
    cluster.finish()
    assert a.wait() == 0


def test_a_spent_budget_closes_the_rendezvous_and_everybody_names_the_cause(cluster: Cluster) -> None:
    """With the budget spent all workers are stopped; every agent exits 1 and names rank, exit code and pid."""
    a, b = cluster.start("a", nnodes="2", max_restarts=1), cluster.start("b", nnodes="2", max_restarts=1)
    world = cluster.desk.wait_world(2)
    worker_of(world, "b").order("exit 3")
    world = cluster.desk.wait_world(2, after=world[0].round)
    failing = worker_of(world, "b")
    failing.order("exit 4")
    assert (a.wait(), b.wait()) == (1, 1)
    cluster.desk.wait_gone(world)
    for node in (a, b):
        last = node.last_line()
        assert f"rank {failing.rank} " in last
        assert "exit code 4" in last
        assert str(failing.pid) in last


def test_without_restarts_a_failure_ends_the_job_at_once(cluster: Cluster) -> None:
    """max_restarts=0: a worker failure ends the job within 5 s, on every node, and no worker is started again."""
    a = cluster.start("a", nnodes="2", max_restarts=0)
    b = cluster.start("b", nnodes="2", max_restarts=0)
    world = cluster.desk.wait_world(2)
    began = time.monotonic()
    world[1].order("exit 7")
    assert (a.wait(), b.wait()) == (1, 1)
    assert time.monotonic() - began < slowed(5.0)
    assert len(cluster.desk.workers) == 2
