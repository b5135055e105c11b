"""The section "Failures in a row" of docs/failover-contract.md."""

from __future__ import annotations

import os
import time

import pytest

from support.desk import Worker, restarts_of, worker_of
from support.harness import SHORT_LEASE, Cluster


def fail_again(cluster: Cluster, name: str, size: int, after: int = 0) -> tuple[list[Worker], float]:
    """Let a worker of this node fail in each of the next two rounds after `after`: a crash loop. Returns the second
    world, and when its worker was ordered to fail, on the monotonic clock."""
    first = cluster.desk.wait_world(size, after=after)
    worker_of(first, name).order("exit 1")
    second = cluster.desk.wait_world(size, after=first[0].round)
    at = time.monotonic()
    worker_of(second, name).order("exit 1")
    return second, at


def test_a_crash_loop_pauses_and_the_others_wait(cluster: Cluster) -> None:
    """There is no pause before the first restart, and one before the second; the other node waits, uncharged."""
    a, b = cluster.start("a", nnodes="1:2"), cluster.start("b", nnodes="1:2", policy={"restart_backoff": "1:1"})
    first = cluster.desk.wait_world(2)
    worker_of(first, "b").order("exit 1")
    second = cluster.desk.wait_world(2, after=first[0].round)
    assert "pausing" not in b.text()
    at = time.monotonic()
    worker_of(second, "b").order("exit 1")
    b.wait_text("pausing")
    third = cluster.desk.wait_world(2, after=second[0].round)
    assert min(float(worker.env["TEST_STARTED"]) for worker in third) >= at + 1
    assert third[0].round == second[0].round + 1
    assert restarts_of(third) == {"a": 0, "b": 2}
    cluster.finish()
    assert (a.wait(), b.wait()) == (0, 0)


def test_a_node_that_arrives_during_a_pause_waits_for_its_end(memory: Cluster) -> None:
    """It neither shortens the pause nor starts another round, and is in the next one. Memory only: a process takes an
    unknown part of the pause to start."""
    a = memory.start("a", nnodes="1:2", policy={"restart_backoff": "3:3"})
    world, at = fail_again(memory, "a", 1)
    a.wait_text("pausing")
    b = memory.start("b", nnodes="1:2")
    b.wait_text("the store answers")
    both = memory.desk.wait_world(2, after=world[0].round)
    assert min(float(worker.env["TEST_STARTED"]) for worker in both) >= at + 3
    assert both[0].round == world[0].round + 1
    memory.finish()
    assert (a.wait(), b.wait()) == (0, 0)


def test_a_request_to_leave_ends_a_pause_at_once(cluster: Cluster) -> None:
    """SIGTERM during its pause: the node exits 143, and the other goes on without it."""
    a, b = cluster.start("a", nnodes="1:2"), cluster.start("b", nnodes="1:2", policy={"restart_backoff": "100:100"})
    world, _ = fail_again(cluster, "b", 2)
    b.wait_text("pausing")
    b.terminate()
    assert b.wait() == 143
    again = cluster.desk.wait_world(1, after=world[0].round)
    assert (again[0].node, again[0].restarts) == ("a", 0)
    cluster.finish()
    assert a.wait() == 0


def test_a_failure_that_costs_nothing_is_not_paused_for(cluster: Cluster) -> None:
    """A worker fails soon after a failure, but only because a peer's node was lost: no pause, no charge."""
    a = cluster.start("a", nnodes="1:2", conf=SHORT_LEASE, policy={"restart_backoff": "100:100"})
    b = cluster.start("b", nnodes="1:2", conf=SHORT_LEASE)
    world = cluster.desk.wait_world(2)
    worker_of(world, "a").order("exit 1")
    world = cluster.desk.wait_world(2, after=world[0].round)
    b.vanish()
    worker_of(world, "a").order("exit 1")
    again = cluster.desk.wait_world(1, after=world[0].round)
    assert again[0].restarts == 1
    cluster.finish()
    assert a.wait() == 0


def test_failures_before_the_window_are_forgiven(cluster: Cluster) -> None:
    """One restart and two failures further apart than the window: both are restarted, and both are counted."""
    a = cluster.start("a", nnodes="1", max_restarts=1, policy={"restart_window": 0.5})
    world = cluster.desk.wait_world(1)
    world[0].order("exit 1")
    world = cluster.desk.wait_world(1, after=world[0].round)
    time.sleep(0.6)  # time itself is what is tested
    world[0].order("exit 1")
    world = cluster.desk.wait_world(1, after=world[0].round)
    assert world[0].restarts == 2
    cluster.finish()
    assert a.wait() == 0


def test_failures_within_the_window_spend_the_budget(cluster: Cluster) -> None:
    """One restart and two failures closer together than the window: the second ends the job."""
    a = cluster.start("a", nnodes="1", max_restarts=1, policy={"restart_window": 600})
    fail_again(cluster, "a", 1)
    assert a.wait() == 1
    assert "no restarts are left there" in a.last_line()


def test_an_exit_code_that_forbids_a_restart_ends_the_job_at_once(cluster: Cluster) -> None:
    """A worker exits 93 with budget left: every node exits 93, and its last line names rank, code and reason."""
    a, b = cluster.start("a", nnodes="2"), cluster.start("b", nnodes="2")
    world = cluster.desk.wait_world(2)
    failing = worker_of(world, "b")
    failing.order("exit 93")
    assert (a.wait(), b.wait()) == (93, 93)
    cluster.desk.wait_gone(world)
    assert len(cluster.desk.workers) == 2
    for node in (a, b):
        last = node.last_line()
        assert f"rank {failing.rank} " in last
        assert "exit code 93 forbids a restart there" in last


def test_which_exit_codes_forbid_a_restart_can_be_chosen(cluster: Cluster) -> None:
    """With --no-restart-codes 7,8 a worker's 93 is restarted and its 8 is not; the agent exits 93 all the same."""
    a = cluster.start("a", nnodes="1", policy={"no_restart_codes": "7,8"})
    world = cluster.desk.wait_world(1)
    world[0].order("exit 93")
    world = cluster.desk.wait_world(1, after=world[0].round)
    assert world[0].restarts == 1
    world[0].order("exit 8")
    assert a.wait() == 93
    assert "exit code 8 forbids a restart there" in a.last_line()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs, to lose one")
def test_a_node_that_lost_a_device_comes_back_with_fewer_workers(c10d: Cluster) -> None:
    """--nproc-per-node cpu, and one CPU left after the first round: the world shrinks, and a message says why."""
    a, b = c10d.start("a", nnodes="2", nproc="cpu"), c10d.start("b", nnodes="2", nproc="cpu")
    cpus = sorted(os.sched_getaffinity(0))
    world = c10d.desk.wait_world(2 * len(cpus))
    os.sched_setaffinity(b.process.pid, cpus[:1])
    worker_of(world, "b").order("exit 1")
    fewer = c10d.desk.wait_world(len(cpus) + 1, after=world[0].round)
    assert sorted(worker.node for worker in fewer) == ["a"] * len(cpus) + ["b"]
    b.wait_text(f"with room for 1 worker instead of {len(cpus)}")
    c10d.finish()
    assert (a.wait(), b.wait()) == (0, 0)
