"""The failover contract, one test per line, on memory stores (one hosted, one that elects), on c10d and on etcd.

docs/failover-contract.md names each.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic_agent.agent.lifecycle.restart_policy import MAX_HOST_FAILURES
from elastic_agent.proto import elastic_pb2 as wire
from elastic_agent.rendezvous.codec import job as jobs
from elastic_agent.rendezvous.codec import records as codec
from elastic_agent.rendezvous.codec.job import JobRecord
from elastic_agent.rendezvous.memory_store import MemoryStore
from elastic_agent.rendezvous.records import Outcome, RoundPhase
from support.etcd_servers import start_shared_servers
from support.harness import BOUND_S, Cluster, Node, Worker
from support.procfs import parent_of

LEASE_S = 2.0
LEASE = {"beat": 0.4, "lease": LEASE_S}


@pytest.fixture(scope="session", autouse=True)
def _servers() -> None:
    start_shared_servers()


@pytest.fixture(params=["memory", "electing memory", "c10d", "etcd"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(request.param, tmp_path)
    yield made
    made.close()


def finish(cluster: Cluster) -> None:
    """Let every live worker succeed, and see every agent that is still there exit 0."""
    for worker in cluster.desk.world():
        worker.order("exit 0")


def test_a_worker_failure_charges_its_own_agent_one_restart_and_starts_a_new_round_for_all(cluster: Cluster) -> None:
    """A worker fails and the budget is above 0: its agent is charged, the others' workers restart uncharged."""
    a, b = cluster.start("a", nnodes="2"), cluster.start("b", nnodes="2")
    world = cluster.desk.wait_world(2)
    failing = next(worker for worker in world if worker.node == "b")
    failing.order("exit 3")
    again = cluster.desk.wait_world(2, after=world[0].round)
    assert {worker.node: worker.restarts for worker in again} == {"a": 0, "b": 1}
    assert all(worker.gone.is_set() for worker in world)
    finish(cluster)
    assert (a.wait(), b.wait()) == (0, 0)


def test_budgets_are_local_and_never_synchronised(cluster: Cluster) -> None:
    """Each node spends its own budget: with 1 restart each, two nodes survive one failure each."""
    a, b = cluster.start("a", nnodes="2", max_restarts=1), cluster.start("b", nnodes="2", max_restarts=1)
    for name, after in (("a", 0), ("b", 1)):
        world = cluster.desk.wait_world(2, after=after)
        next(worker for worker in world if worker.node == name).order("exit 1")
    world = cluster.desk.wait_world(2, after=2)
    assert {worker.restarts for worker in world} == {1}
    finish(cluster)
    assert (a.wait(), b.wait()) == (0, 0)


PEER_LOST = "gloo/transport/tcp/pair.cc:553] Connection closed by peer"
"""As gloo says it in a worker whose peer died."""


def echo_then_cause(cluster: Cluster) -> list[Worker]:
    """The worker of a fails because it lost its peer, and that of b, the peer, is seen to fail after it."""
    world = cluster.desk.wait_world(2)
    echo, cause = sorted(world, key=lambda worker: worker.node)
    echo.order(f"raise {PEER_LOST}")
    cluster.nodes["a"].wait_text("worker failed: rank")  # or the other's news could stop it first
    cause.order("exit 3")
    return world


def test_a_failure_that_only_echoes_another_nodes_is_charged_there(cluster: Cluster) -> None:
    """The echo is seen first, on a node without a restart; the node of the cause pays, and the job goes on."""
    a = cluster.start("a", nnodes="2", max_restarts=0, redirects=2)
    b = cluster.start("b", nnodes="2", max_restarts=1, redirects=2)
    world = echo_then_cause(cluster)
    again = cluster.desk.wait_world(2, after=world[0].round)
    assert {worker.node: worker.restarts for worker in again} == {"a": 0, "b": 1}
    finish(cluster)
    assert (a.wait(), b.wait()) == (0, 0)


def test_a_node_that_counts_as_torchrun_does_pays_for_an_echo_too(cluster: Cluster) -> None:
    """--charge local: the same, and the node of the echo has no restart to pay with, so the job ends."""
    a = cluster.start("a", nnodes="2", max_restarts=0, redirects=2, charge="local")
    b = cluster.start("b", nnodes="2", max_restarts=1, redirects=2)
    echo_then_cause(cluster)
    assert (a.wait(), b.wait()) == (1, 1)
    assert "no restarts are left on" in b.text().splitlines()[-1]
    assert "exit code 3" in b.text().splitlines()[-1]


def test_membership_changes_never_charge_anybody(cluster: Cluster) -> None:
    """A node arrives, another leaves, another is replaced: everybody's budget is untouched, even where it is 0."""
    host = cluster.start("a", nnodes="1:2", max_restarts=0, conf=LEASE)
    first = cluster.desk.wait_world(1)
    cluster.start("b", nnodes="1:2", max_restarts=0, conf=LEASE)
    second = cluster.desk.wait_world(2, after=first[0].round)
    cluster.nodes["b"].vanish()
    third = cluster.desk.wait_world(1, after=second[0].round)
    c = cluster.start("c", nnodes="1:2", max_restarts=0, conf=LEASE)
    fourth = cluster.desk.wait_world(2, after=third[0].round)
    assert {worker.restarts for worker in (*first, *second, *third, *fourth)} == {0}
    finish(cluster)
    assert (host.wait(), c.wait()) == (0, 0)


def test_a_failure_that_only_echoes_the_loss_of_a_node_is_not_charged(cluster: Cluster) -> None:
    """A worker that crashes because a peer's node died costs its own node nothing, even with no budget at all."""
    a = cluster.start("a", nnodes="1:2", max_restarts=0, conf=LEASE)
    b = cluster.start("b", nnodes="1:2", max_restarts=0, conf=LEASE)
    world = cluster.desk.wait_world(2)
    b.vanish()
    next(worker for worker in world if worker.node == "a").order("exit 1")
    again = cluster.desk.wait_world(1, after=world[0].round)
    assert again[0].restarts == 0
    finish(cluster)
    assert a.wait() == 0


def lose_nursery(cluster: Cluster, name: str, size: int, after: int = 0) -> list[Worker]:
    """Kill what owns the workers of this node in the next round after `after`. Returns that round's world."""
    world = cluster.desk.wait_world(size, after=after)
    os.kill(parent_of(next(worker for worker in world if worker.node == name).pid), signal.SIGKILL)
    return world


def test_a_failure_of_the_machine_charges_nobody_and_the_job_goes_on(cluster: Cluster) -> None:
    """The nursery of b is killed, and its workers die with it; no node has a restart left."""
    a = cluster.start("a", nnodes="2", max_restarts=0)
    b = cluster.start("b", nnodes="2", max_restarts=0)
    world = lose_nursery(cluster, "b", 2)
    again = cluster.desk.wait_world(2, after=world[0].round)
    assert {worker.node: worker.restarts for worker in again} == {"a": 0, "b": 0}
    assert all(worker.gone.is_set() for worker in world)
    finish(cluster)
    assert (a.wait(), b.wait()) == (0, 0)


def test_a_machine_that_fails_again_and_again_is_left_and_the_others_go_on(cluster: Cluster) -> None:
    """The third time in a row b leaves, with a status of its own; that is a departure to a."""
    a = cluster.start("a", nnodes="1:2", max_restarts=0)
    b = cluster.start("b", nnodes="1:2", max_restarts=0)
    last = 0
    for _ in range(MAX_HOST_FAILURES):
        last = lose_nursery(cluster, "b", 2, after=last)[0].round
    assert b.wait() == 71
    assert [worker.node for worker in cluster.desk.wait_world(1, after=last)] == ["a"]
    finish(cluster)
    assert a.wait() == 0


def test_a_spent_budget_closes_the_rendezvous_and_everybody_names_the_cause(cluster: Cluster) -> None:
    """The budget is spent: all other agents' workers are stopped, everybody exits 1 and names the cause."""
    a, b = cluster.start("a", nnodes="2", max_restarts=1), cluster.start("b", nnodes="2", max_restarts=1)
    world = cluster.desk.wait_world(2)
    next(worker for worker in world if worker.node == "b").order("exit 3")
    world = cluster.desk.wait_world(2, after=world[0].round)
    failing = next(worker for worker in world if worker.node == "b")
    failing.order("exit 4")
    assert (a.wait(), b.wait()) == (1, 1)
    cluster.desk.wait_gone(world)
    for node in (a, b):
        last = node.text().splitlines()[-1]
        assert f"rank {failing.rank} " in last
        assert "exit code 4" in last
        assert str(failing.pid) in last


def fail_again(cluster: Cluster, name: str, size: int, after: int = 0) -> tuple[list[Worker], float]:
    """Let a worker of this node fail in the next two rounds after `after`: a crash loop. Returns the second world, and
    when its worker was told to fail, on the monotonic clock."""
    first = cluster.desk.wait_world(size, after=after)
    next(worker for worker in first if worker.node == name).order("exit 1")
    second = cluster.desk.wait_world(size, after=first[0].round)
    at = time.monotonic()
    next(worker for worker in second if worker.node == name).order("exit 1")
    return second, at


def test_a_crash_loop_pauses_and_the_others_wait(cluster: Cluster) -> None:
    """The first restart is not paused for, the second is; the other node waits, and is not charged."""
    a, b = cluster.start("a", nnodes="1:2"), cluster.start("b", nnodes="1:2", policy={"restart_backoff": "1:1"})
    first = cluster.desk.wait_world(2)
    next(worker for worker in first if worker.node == "b").order("exit 1")
    second = cluster.desk.wait_world(2, after=first[0].round)
    assert "pausing" not in b.text()
    at = time.monotonic()
    next(worker for worker in second if worker.node == "b").order("exit 1")
    b.wait_text("pausing")
    third = cluster.desk.wait_world(2, after=second[0].round)
    assert min(float(worker.env["TEST_STARTED"]) for worker in third) >= at + 1
    assert third[0].round == second[0].round + 1
    assert {worker.node: worker.restarts for worker in third} == {"a": 0, "b": 2}
    finish(cluster)
    assert (a.wait(), b.wait()) == (0, 0)


def test_a_node_that_arrives_during_a_pause_waits_for_its_end(tmp_path: Path) -> None:
    """It neither shortens the pause nor starts a round of its own, and is in the next round. In one process, as the
    start of another would take a part of the pause that nobody knows."""
    cluster = Cluster("memory", tmp_path)
    try:
        _arrive_during_a_pause(cluster)
    finally:
        cluster.close()


def _arrive_during_a_pause(cluster: Cluster) -> None:
    a = cluster.start("a", nnodes="1:2", policy={"restart_backoff": "3:3"})
    world, at = fail_again(cluster, "a", 1)
    a.wait_text("pausing")
    b = cluster.start("b", nnodes="1:2")
    b.wait_text("the store answers")
    both = cluster.desk.wait_world(2, after=world[0].round)
    assert min(float(worker.env["TEST_STARTED"]) for worker in both) >= at + 3
    assert both[0].round == world[0].round + 1
    finish(cluster)
    assert (a.wait(), b.wait()) == (0, 0)


def test_a_request_to_leave_ends_a_pause_at_once(cluster: Cluster) -> None:
    """SIGTERM while it pauses: the node exits 143, and the others go on without it."""
    a, b = cluster.start("a", nnodes="1:2"), cluster.start("b", nnodes="1:2", policy={"restart_backoff": "100:100"})
    world, _ = fail_again(cluster, "b", 2)
    b.wait_text("pausing")
    b.terminate()
    assert b.wait() == 143
    again = cluster.desk.wait_world(1, after=world[0].round)
    assert (again[0].node, again[0].restarts) == ("a", 0)
    finish(cluster)
    assert a.wait() == 0


def test_a_failure_that_costs_nothing_is_not_paused_for(cluster: Cluster) -> None:
    """A worker fails right after another failure, but only because a peer's node died: no pause, no charge."""
    a = cluster.start("a", nnodes="1:2", conf=LEASE, policy={"restart_backoff": "100:100"})
    b = cluster.start("b", nnodes="1:2", conf=LEASE)
    world = cluster.desk.wait_world(2)
    next(worker for worker in world if worker.node == "a").order("exit 1")
    world = cluster.desk.wait_world(2, after=world[0].round)
    b.vanish()
    next(worker for worker in world if worker.node == "a").order("exit 1")
    again = cluster.desk.wait_world(1, after=world[0].round)
    assert again[0].restarts == 1
    finish(cluster)
    assert a.wait() == 0


def test_failures_before_the_window_are_forgiven(cluster: Cluster) -> None:
    """One restart, two failures further apart than the window: both are restarted, and both are counted."""
    a = cluster.start("a", nnodes="1", max_restarts=1, policy={"restart_window": 0.5})
    world = cluster.desk.wait_world(1)
    world[0].order("exit 1")
    world = cluster.desk.wait_world(1, after=world[0].round)
    time.sleep(0.6)  # time itself is what is tested
    world[0].order("exit 1")
    world = cluster.desk.wait_world(1, after=world[0].round)
    assert world[0].restarts == 2
    finish(cluster)
    assert a.wait() == 0


def test_failures_within_the_window_spend_the_budget(cluster: Cluster) -> None:
    """One restart, two failures closer together than the window: the second ends the job."""
    a = cluster.start("a", nnodes="1", max_restarts=1, policy={"restart_window": 600})
    fail_again(cluster, "a", 1)
    assert a.wait() == 1
    assert "no restarts are left there" in a.text().splitlines()[-1]


def test_an_exit_code_that_forbids_a_restart_ends_the_job_at_once(cluster: Cluster) -> None:
    """93, with budget left: every node exits 93, and the last line names rank and code, and that it forbids it."""
    a, b = cluster.start("a", nnodes="2"), cluster.start("b", nnodes="2")
    world = cluster.desk.wait_world(2)
    failing = next(worker for worker in world if worker.node == "b")
    failing.order("exit 93")
    assert (a.wait(), b.wait()) == (93, 93)
    cluster.desk.wait_gone(world)
    assert len(cluster.desk.workers) == 2
    for node in (a, b):
        last = node.text().splitlines()[-1]
        assert f"rank {failing.rank} " in last
        assert "exit code 93 forbids a restart there" in last


def test_which_exit_codes_forbid_a_restart_can_be_chosen(cluster: Cluster) -> None:
    """With a list of one's own, 93 is a failure like any other; the agent's own status is 93 whichever it was."""
    a = cluster.start("a", nnodes="1", policy={"no_restart_codes": "7,8"})
    world = cluster.desk.wait_world(1)
    world[0].order("exit 93")
    world = cluster.desk.wait_world(1, after=world[0].round)
    assert world[0].restarts == 1
    world[0].order("exit 8")
    assert a.wait() == 93
    assert "exit code 8 forbids a restart there" in a.text().splitlines()[-1]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU is none to lose")
def test_a_node_that_lost_a_device_comes_back_with_fewer_workers(tmp_path: Path) -> None:
    """--nproc-per-node cpu, and one CPU after the first round: the world shrinks, and the node says so."""
    cluster = Cluster("c10d", tmp_path)
    try:
        a, b = cluster.start("a", nnodes="2", nproc="cpu"), cluster.start("b", nnodes="2", nproc="cpu")
        cpus = sorted(os.sched_getaffinity(0))
        world = cluster.desk.wait_world(2 * len(cpus))
        os.sched_setaffinity(b.process.pid, cpus[:1])
        next(worker for worker in world if worker.node == "b").order("exit 1")
        fewer = cluster.desk.wait_world(len(cpus) + 1, after=world[0].round)
        assert [worker.node for worker in fewer] == ["a"] * len(cpus) + ["b"]
        assert f"with room for 1 worker, no longer {len(cpus)}" in b.text()
        finish(cluster)
        assert (a.wait(), b.wait()) == (0, 0)
    finally:
        cluster.close()


def test_an_arriving_node_is_taken_in_when_there_is_room(cluster: Cluster) -> None:
    """A node arrives and there is room: all agents stop their workers and re-form with it."""
    a = cluster.start("a", nnodes="1:2")
    alone = cluster.desk.wait_world(1)
    b = cluster.start("b", nnodes="1:2")
    both = cluster.desk.wait_world(2, after=alone[0].round)
    assert alone[0].gone.is_set()
    assert [worker.node for worker in both] == ["a", "b"]
    finish(cluster)
    assert (a.wait(), b.wait()) == (0, 0)


def test_a_burst_of_arrivals_ends_the_round_once(cluster: Cluster) -> None:
    """Three nodes that arrive together cost one new round, not three."""
    nodes = [cluster.start("a", nnodes="1:4")]
    alone = cluster.desk.wait_world(1)
    nodes += [cluster.start(name, nnodes="1:4") for name in "bcd"]
    world = cluster.desk.wait_world(4, after=alone[0].round)
    assert world[0].round == alone[0].round + 1
    finish(cluster)
    assert [node.wait() for node in nodes] == [0, 0, 0, 0]


def test_a_node_that_finds_the_round_full_waits_and_disturbs_nothing(cluster: Cluster) -> None:
    """A node arrives and the round has max_nodes: nothing is torn down; it looks on, and exits 0 at the end."""
    a = cluster.start("a", nnodes="1")  # c10d, though for one node only
    world = cluster.desk.wait_world(1)
    spare = cluster.start("s", nnodes="1")
    spare.wait_text("waits as a spare")
    world[0].order("ping")
    cluster.desk.wait(lambda: "done ping" in world[0].said, "an answer of the undisturbed worker")
    finish(cluster)
    assert (a.wait(), spare.wait()) == (0, 0)
    assert len(cluster.desk.workers) == 1


def test_a_spare_enters_when_a_place_frees(cluster: Cluster) -> None:
    """The spare of a full round takes the place of a node that leaves."""
    a, b = cluster.start("a", nnodes="2"), cluster.start("b", nnodes="2")
    world = cluster.desk.wait_world(2)
    c = cluster.start("c", nnodes="2")
    c.wait_text("spare")
    b.terminate()
    again = cluster.desk.wait_world(2, after=world[0].round)
    assert {worker.node for worker in again} == {"a", "c"}
    assert {worker.restarts for worker in again} == {0}
    finish(cluster)
    assert (a.wait(), b.wait(), c.wait()) == (0, 143, 0)


def test_a_spare_gives_up_after_the_join_timeout(cluster: Cluster) -> None:
    """A node for which no place frees exits 76 after the join timeout, and the job goes on."""
    a = cluster.start("a", nnodes="1")
    cluster.desk.wait_world(1)
    spare = cluster.start("s", nnodes="1", conf={"join_timeout": 1})
    assert spare.wait() == 76
    assert "no place came free" in spare.text()
    finish(cluster)
    assert a.wait() == 0


def test_survivors_go_on_when_a_node_says_goodbye(cluster: Cluster) -> None:
    """A node leaves by SIGTERM: the survivors re-form at once, without waiting for a lease."""
    a, b = cluster.start("a", nnodes="1:2"), cluster.start("b", nnodes="1:2")
    world = cluster.desk.wait_world(2)
    b.terminate()
    again = cluster.desk.wait_world(1, after=world[0].round, bound_s=10)
    assert again[0].node == "a"
    assert b.wait() == 143
    finish(cluster)
    assert a.wait() == 0


def test_survivors_go_on_when_a_node_vanishes(cluster: Cluster) -> None:
    """A node is silent until its lease runs out: the survivors run again within lease + 2 s."""
    a, b = cluster.start("a", nnodes="1:2", conf=LEASE), cluster.start("b", nnodes="1:2", conf=LEASE)
    world = cluster.desk.wait_world(2)
    began = time.monotonic()
    b.vanish()
    cluster.desk.wait_world(1, after=world[0].round)
    assert time.monotonic() - began < LEASE_S + 2
    finish(cluster)
    assert a.wait() == 0


def test_a_replacement_takes_the_place_of_a_dead_node(cluster: Cluster) -> None:
    """A fixed-size job whose node dies gathers until a replacement comes, then goes on."""
    a, b = cluster.start("a", nnodes="2", conf=LEASE), cluster.start("b", nnodes="2", conf=LEASE)
    world = cluster.desk.wait_world(2)
    b.vanish()
    cluster.desk.wait_gone(world)
    c = cluster.start("c", nnodes="2", conf=LEASE)
    again = cluster.desk.wait_world(2, after=world[0].round)
    assert {worker.node for worker in again} == {"a", "c"}
    finish(cluster)
    assert (a.wait(), c.wait()) == (0, 0)


def test_too_few_survivors_gather_until_the_join_timeout_and_say_who_is_missing(cluster: Cluster) -> None:
    """A node leaves and fewer than min_nodes remain: they gather, then exit 76 naming the missing."""
    conf = {**LEASE, "join_timeout": 5}
    a, b = cluster.start("a", nnodes="2", conf=conf), cluster.start("b", nnodes="2", conf=conf)
    cluster.desk.wait_world(2)
    b.terminate()
    assert a.wait() == 76
    last = a.text().splitlines()[-1]
    assert "1 of at least 2 nodes" in last
    assert "missing" in last
    assert b.wait() == 143


def test_without_restarts_a_failure_ends_the_job_at_once(cluster: Cluster) -> None:
    """max_restarts=0: a worker failure ends the job at once, on every node, and leaves the restart to the scheduler."""
    a = cluster.start("a", nnodes="2", max_restarts=0)
    b = cluster.start("b", nnodes="2", max_restarts=0)
    world = cluster.desk.wait_world(2)
    began = time.monotonic()
    world[1].order("exit 7")
    assert (a.wait(), b.wait()) == (1, 1)
    assert time.monotonic() - began < 5
    assert len(cluster.desk.workers) == 2


def test_nodes_that_finish_within_the_barrier_all_exit_0(cluster: Cluster) -> None:
    """An agent finishes and waits in the barrier; who finishes inside it exits 0."""
    a, b = cluster.start("a", nnodes="2"), cluster.start("b", nnodes="2")
    world = cluster.desk.wait_world(2)
    world[1].order("exit 0")
    cluster.nodes[world[1].node].wait_text("exited 0")
    world[0].order("ping")
    cluster.desk.wait(lambda: "done ping" in world[0].said, "an answer of the worker that goes on")
    world[0].order("exit 0")
    assert (a.wait(), b.wait()) == (0, 0)


def test_at_the_end_of_the_barrier_who_still_works_is_stopped_and_the_finished_keep_0(cluster: Cluster) -> None:
    """The barrier ends: nodes still working are stopped, say so and exit 82; the finished exit 0."""
    for name in "ab":
        cluster.start(name, nnodes="2", barrier_s=1)
    world = cluster.desk.wait_world(2)
    world[0].order("exit 0")
    done, late = cluster.nodes[world[0].node], cluster.nodes[world[1].node]
    assert (done.wait(), late.wait()) == (0, 82)
    assert "finalisation barrier of 1 s is over" in late.text()
    assert world[1].gone.is_set()


def test_a_failure_after_another_node_finished_restarts_what_can_restart(cluster: Cluster) -> None:
    """One node has finished, another's worker fails with budget left: the remaining nodes start again, at once."""
    nodes = [cluster.start(name, nnodes="1:3") for name in "abc"]
    world = cluster.desk.wait_world(3)
    finished = next(worker for worker in world if worker.node == "c")
    finished.order("exit 0")
    cluster.nodes["c"].wait_text("all workers of this node exited 0")
    began = time.monotonic()
    next(worker for worker in world if worker.node == "b").order("exit 1")
    again = cluster.desk.wait_world(2, after=world[0].round)
    assert time.monotonic() - began < 10
    assert {worker.node: worker.restarts for worker in again} == {"a": 0, "b": 1}
    finish(cluster)
    assert [node.wait() for node in nodes] == [0, 0, 0]


def test_a_failure_that_cannot_restart_after_another_finished_closes_at_once(cluster: Cluster) -> None:
    """One node of a fixed two has finished and the other fails: nobody waits out the barrier; the cause is named."""
    a, b = cluster.start("a", nnodes="2"), cluster.start("b", nnodes="2")
    world = cluster.desk.wait_world(2)
    finished, failing = cluster.nodes[world[0].node], cluster.nodes[world[1].node]
    world[0].order("exit 0")
    finished.wait_text("all workers of this node exited 0")
    began = time.monotonic()
    world[1].order("exit 5")
    assert (finished.wait(), failing.wait()) == (0, 1)
    assert time.monotonic() - began < 10
    assert "exit code 5" in failing.text().splitlines()[-1]
    assert {a, b} == {finished, failing}


def test_nodes_with_different_numbers_of_workers_share_one_world(cluster: Cluster) -> None:
    """Heterogeneous nproc-per-node: ranks are dense, each node's are contiguous, local world sizes are its own."""
    nodes = [
        cluster.start("a", nnodes="3", nproc=1),
        cluster.start("b", nnodes="3", nproc=3),
        cluster.start("c", nnodes="3", nproc=2),
    ]
    world = cluster.desk.wait_world(6)
    assert [worker.rank for worker in world] == list(range(6))
    sizes = {worker.node: int(worker.env["LOCAL_WORLD_SIZE"]) for worker in world}
    assert sizes == {"a": 1, "b": 3, "c": 2}
    for name, size in sizes.items():
        mine = [worker for worker in world if worker.node == name]
        assert [int(worker.env["LOCAL_RANK"]) for worker in mine] == list(range(size))
        assert len({worker.rank - int(worker.env["LOCAL_RANK"]) for worker in mine}) == 1
    finish(cluster)
    assert [node.wait() for node in nodes] == [0, 0, 0]


def test_every_round_has_a_fresh_master_port(cluster: Cluster) -> None:
    """No port of round n is visible in round n+1."""
    a = cluster.start("a", nnodes="1:2", max_restarts=3)
    ports = []
    for failures in range(3):
        world = cluster.desk.wait_world(1, after=failures)
        ports.append(world[0].env["MASTER_PORT"])
        world[0].order("exit 1" if failures < 2 else "exit 0")
    assert a.wait() == 0
    assert len(set(ports)) == 3


def test_the_host_serves_until_the_last_node_has_ended(cluster: Cluster) -> None:
    """The hosting agent finishes first: it goes on serving until the others have ended."""
    host, b = cluster.start("a", nnodes="2"), cluster.start("b", nnodes="2")
    world = cluster.desk.wait_world(2)
    next(worker for worker in world if worker.node == "a").order("exit 0")
    host.wait_text("all workers of this node exited 0")
    rest = next(worker for worker in world if worker.node == "b")
    rest.order("ping")
    cluster.desk.wait(lambda: "done ping" in rest.said, "an answer of the worker that goes on")
    rest.order("exit 0")
    assert (host.wait(), b.wait()) == (0, 0)


def test_the_host_serves_on_after_it_was_asked_to_leave(cluster: Cluster) -> None:
    """SIGTERM to the hosting agent: its workers stop, the others re-form and finish, and then it exits 143."""
    host, b = cluster.start("a", nnodes="1:2"), cluster.start("b", nnodes="1:2")
    world = cluster.desk.wait_world(2)
    host.terminate(signal.SIGTERM)
    again = cluster.desk.wait_world(1, after=world[0].round)
    assert again[0].node == "b"
    finish(cluster)
    assert b.wait() == 0
    assert host.wait() == 143


def test_the_host_serves_on_after_its_own_budget_is_spent(cluster: Cluster) -> None:
    """The hosting agent's budget is spent: every other agent still learns the cause from it, and exits 1, not 80."""
    host = cluster.start("a", nnodes="2", max_restarts=0, grace_s=1)
    b = cluster.start("b", nnodes="2", max_restarts=0, grace_s=1)
    world = cluster.desk.wait_world(2)
    slow = next(worker for worker in world if worker.node == "b")
    slow.order("ignore 15")
    cluster.desk.wait(lambda: "done ignore" in slow.said, "a worker that ignores SIGTERM")
    next(worker for worker in world if worker.node == "a").order("exit 9")
    assert (host.wait(), b.wait()) == (1, 1)
    assert "exit code 9" in b.text().splitlines()[-1]


def test_losing_the_host_by_force_is_an_orderly_end_that_names_it(tmp_path: Path) -> None:
    """The host is killed: after store_grace every agent stops its workers and exits 80, naming the endpoint."""
    cluster = Cluster("c10d", tmp_path)
    try:
        host = cluster.start("a", nnodes="1:2", conf={"store_grace": 1.5})
        b = cluster.start("b", nnodes="1:2", conf={"store_grace": 1.5})
        world = cluster.desk.wait_world(2)
        rest = next(worker for worker in world if worker.node == "b")
        host.vanish()
        b.wait_text("the store does not answer")
        rest.order("ping")
        cluster.desk.wait(lambda: "done ping" in rest.said, "an answer of the worker during the grace")
        assert b.wait() == 80
        assert "127.0.0.1" in b.text().splitlines()[-1]
        cluster.desk.wait_gone(world)
    finally:
        cluster.close()


# -- the coordinator is lost, where any node can take over -------------------------------------------------------------


@pytest.fixture(params=["electing memory", "etcd"])
def electing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(request.param, tmp_path, conf=LEASE)
    yield made
    made.close()


def coordinator(cluster: Cluster, *names: str, **changes: Any) -> tuple[Node, list[Node]]:
    """Start these nodes, the first of which coordinates; it, and the others."""
    first = cluster.start(names[0], **changes)
    first.wait_text("this node coordinates the job")
    return first, [cluster.start(name, **changes) for name in names[1:]]


def taken_over(nodes: list[Node]) -> Node:
    """Which of these nodes coordinates by now."""
    deadline = time.monotonic() + BOUND_S
    while True:
        for node in nodes:
            if "this node coordinates the job" in node.text():
                return node
        assert time.monotonic() < deadline
        nodes[0].wait_text("", 0.05)


def wait_finished(cluster: Cluster, name: str) -> None:
    """Wait until the store holds this node's word that it has finished."""
    store, cursor = cluster.store.guest(), 0
    known_as = cluster.nodes[name].known_as
    deadline = time.monotonic() + BOUND_S
    while True:
        cursor, fresh = store.wait_nodes(cursor, BOUND_S)
        if any(record.name == known_as and record.finished for record in map(codec.decode_node, fresh.values())):
            return
        assert time.monotonic() < deadline


def wait_settled(cluster: Cluster) -> None:
    """Wait until it was announced whom the end of a round charges, while some node still stops its workers."""
    store, version = cluster.store.guest(), 0
    deadline = time.monotonic() + BOUND_S
    while True:
        assert time.monotonic() < deadline
        version, value = store.wait_round(version, BOUND_S)
        word = codec.decode_round(value)
        if word.phase is RoundPhase.OVER and word.ended is not None and word.ended.round == word.number:
            return


def test_the_coordinator_is_lost_while_workers_run(electing: Cluster) -> None:
    """Its lease runs out: another node takes over, and the survivors run again, uncharged, soon after."""
    first, others = coordinator(electing, "a", "b", "c", nnodes="2:3", max_restarts=0)
    world = electing.desk.wait_world(3)
    began = time.monotonic()
    first.vanish()
    again = electing.desk.wait_world(2, after=world[0].round)
    assert time.monotonic() - began < LEASE_S + 3
    assert {worker.node: worker.restarts for worker in again} == {"b": 0, "c": 0}
    assert [worker.rank for worker in again] == [0, 1]
    finish(electing)
    assert [node.wait() for node in others] == [0, 0]


def test_the_coordinator_is_lost_while_nodes_gather(electing: Cluster) -> None:
    """Those who are there and those who come later still find each other."""
    first, others = coordinator(electing, "a", "b", nnodes="3")
    others[0].wait_text("round 1 is gathering")
    first.vanish()
    others[0].wait_text("this node coordinates the job")
    others += [electing.start(name, nnodes="3") for name in "cd"]
    assert {worker.node for worker in electing.desk.wait_world(3)} == {"b", "c", "d"}
    finish(electing)
    assert [node.wait() for node in others] == [0, 0, 0]


def test_the_coordinator_is_lost_while_others_stop(electing: Cluster) -> None:
    """All had answered for a failure, so it was charged, and is charged once whoever goes on from there."""
    first, others = coordinator(electing, "a", "b", "c", nnodes="2:3", max_restarts=1, grace_s=20)
    world = electing.desk.wait_world(3)
    slow, failing = (next(worker for worker in world if worker.node == name) for name in "ac")
    slow.order("ignore 15")
    electing.desk.wait(lambda: "done ignore" in slow.said, "a worker that ignores SIGTERM")
    failing.order("raise of its own")  # which is certain, so nobody's end is waited for
    wait_settled(electing)
    first.vanish()
    again = electing.desk.wait_world(2, after=world[0].round)
    assert {worker.node: worker.restarts for worker in again} == {"b": 0, "c": 1}
    finish(electing)
    assert [node.wait() for node in others] == [0, 0]


def test_a_failure_that_echoes_the_loss_of_the_coordinator_is_not_charged(electing: Cluster) -> None:
    """A peer of its workers fails of its death, and nobody is there to see it in that order: the death is the cause."""
    first, others = coordinator(electing, "a", "b", "c", nnodes="2:3", max_restarts=0)
    world = electing.desk.wait_world(3)
    first.vanish()
    next(worker for worker in world if worker.node == "c").order("exit 3")
    again = electing.desk.wait_world(2, after=world[0].round)
    assert {worker.node: worker.restarts for worker in again} == {"b": 0, "c": 0}
    finish(electing)
    assert [node.wait() for node in others] == [0, 0]


def test_the_coordinator_is_lost_while_others_finish(electing: Cluster) -> None:
    """It had finished itself and waited for the rest: that they finish is success all the same."""
    first, others = coordinator(electing, "a", "b", "c", nnodes="3")
    world = electing.desk.wait_world(3)
    for worker in world:
        if worker.node in "ab":
            worker.order("exit 0")
    for name in "ab":
        wait_finished(electing, name)
    first.vanish()
    taken_over(others)
    next(worker for worker in world if worker.node == "c").order("exit 0")
    assert [node.wait() for node in others] == [0, 0]


def test_a_coordinator_that_leaves_hands_over(tmp_path: Path) -> None:
    """It says goodbye, and another decides at once: nobody waits for a lease, which here is longer than the test."""
    electing = Cluster("electing memory", tmp_path, conf={"lease": 120})
    try:
        first, others = coordinator(electing, "a", "b", "c", nnodes="1:3")
        world = electing.desk.wait_world(3)
        first.terminate()
        assert first.wait() == 143
        again = electing.desk.wait_world(2, after=world[0].round)
        assert {worker.node for worker in again} == {"b", "c"}
        taken_over(others)
        next(worker for worker in again if worker.node == "c").order("exit 3")
        assert {w.node: w.restarts for w in electing.desk.wait_world(2, after=again[0].round)} == {"b": 0, "c": 1}
        finish(electing)
        assert [node.wait() for node in others] == [0, 0]
    finally:
        electing.close()


def test_a_coordinator_that_is_deposed_disturbs_nobody(electing: Cluster) -> None:
    """Its term ends while it lives on: it falls silent, the same round goes on, and another decides from then on."""
    first, others = coordinator(electing, "a", "b", "c", nnodes="3")
    world = electing.desk.wait_world(3)
    epoch = electing.store.guest().lead("nobody", 0.0) or 1
    for term in range(epoch, epoch + 5):
        electing.store.guest().resign(term)
    assert_undisturbed(electing, world)
    next(worker for worker in world if worker.node == "b").order("exit 3")
    again = electing.desk.wait_world(3, after=world[0].round)
    assert {worker.node: worker.restarts for worker in again} == {"a": 0, "b": 1, "c": 0}
    finish(electing)
    assert [node.wait() for node in (first, *others)] == [0, 0, 0]


def test_one_coordinator_after_the_other_is_lost(electing: Cluster) -> None:
    """As long as a node is left."""
    nodes = [electing.start(name, nnodes="1:4") for name in "abcd"]
    world = electing.desk.wait_world(4)
    for size in (3, 2, 1):
        leading = taken_over(nodes)
        leading.vanish()
        nodes.remove(leading)
        world = electing.desk.wait_world(size, after=world[0].round)
        assert {worker.restarts for worker in world} == {0}
    finish(electing)
    assert [node.wait() for node in nodes] == [0]


def test_after_the_job_only_its_record_is_left_in_the_store(electing: Cluster) -> None:
    """Whoever coordinates clears up once all have ended."""
    nodes = [electing.start(name, nnodes="3") for name in "abc"]
    electing.desk.wait_world(3)
    finish(electing)
    assert [node.wait() for node in nodes] == [0, 0, 0]
    left = electing.store.guest()
    assert jobs.decode_job(left.write_job(b"?")).outcome is Outcome.SUCCEEDED
    assert left.wait_nodes(0, 0.0)[1] == {}
    assert left.wait_round(0, 0.0) is None


# -- one job, one record -----------------------------------------------------------------------------------------------


def refused(node: Node, status: int) -> str:
    """The last line of an agent that is refused with this status, in under 10 s."""
    began = time.monotonic()
    assert node.wait() == status, node.text()
    assert time.monotonic() - began < 10
    return node.text().splitlines()[-1]


def assert_undisturbed(cluster: Cluster, world: list[Worker]) -> None:
    """These workers, and no others, have ever been started, and they still answer."""
    for worker in world:
        worker.order("ping")
        cluster.desk.wait(lambda: "done ping" in worker.said, "an answer of the undisturbed worker")  # noqa: B023
    assert {worker.pid for worker in cluster.desk.workers} == {worker.pid for worker in world}


def test_a_different_job_with_the_same_id_is_refused_and_the_first_is_untouched(cluster: Cluster) -> None:
    """Other arguments under a run id in use, with room in the round: refused with both specs named."""
    a = cluster.start("a", nnodes="1:4", args=("--lr", "0.1"))
    world = cluster.desk.wait_world(1)
    last = refused(cluster.start("b", nnodes="1:4", args=("--lr", "0.2")), 78)
    assert f"'{cluster.run_id}'" in last
    assert "obedient.py --lr 0.1`" in last
    assert "obedient.py --lr 0.2`" in last
    assert "--rdzv-id" in last
    assert_undisturbed(cluster, world)
    finish(cluster)
    assert a.wait() == 0


def test_a_different_job_whose_node_would_host_is_refused_too(tmp_path: Path) -> None:
    """A second job's node 0, told to host where the first one does, names the job, not only the port."""
    cluster = Cluster("c10d", tmp_path)
    try:
        a = cluster.start("a", nnodes="1:4", args=("--lr", "0.1"))
        world = cluster.desk.wait_world(1)
        last = refused(cluster.start("b", nnodes="1:4", args=("--lr", "0.2"), hosts=True), 78)
        assert "obedient.py --lr 0.1`" in last
        assert "obedient.py --lr 0.2`" in last
        assert_undisturbed(cluster, world)
        finish(cluster)
        assert a.wait() == 0
    finally:
        cluster.close()


def test_a_node_with_another_nnodes_is_refused(cluster: Cluster) -> None:
    """--nnodes is the job's, not the node's: both are named, and the job goes on as it was."""
    a = cluster.start("a", nnodes="1:4")
    world = cluster.desk.wait_world(1)
    last = refused(cluster.start("b", nnodes="2:3"), 78)
    assert "differs in --nnodes:" in last
    assert "`--nnodes 1:4 " in last
    assert "`--nnodes 2:3 " in last
    assert_undisturbed(cluster, world)
    finish(cluster)
    assert a.wait() == 0


def test_what_is_a_nodes_own_may_differ(cluster: Cluster) -> None:
    """Workers, budget, log directory, wished rank, times: a job's nodes need not agree on them."""
    a = cluster.start("a", nnodes="2", nproc=1, max_restarts=3, node_rank=1, grace_s=20)
    b = cluster.start("b", nnodes="2", nproc=2, max_restarts=0, node_rank=0, conf={"join_timeout": 50}, barrier_s=100)
    assert len(cluster.desk.wait_world(3)) == 3
    finish(cluster)
    assert (a.wait(), b.wait()) == (0, 0)


def test_an_agent_of_another_protocol_version_is_refused(cluster: Cluster) -> None:
    """Whichever came first: the one that comes later names both versions, and the job goes on."""
    if "memory" in cluster.backend:  # in one process all agents are of one version, so the first job is only a record
        message = wire.JobRecord.FromString(jobs.encode_job(JobRecord(b"", incarnation=1)))
        message.version = 99
        cluster.store = MemoryStore()
        cluster.store.host().write_job(message.SerializeToString())
        last = refused(cluster.start("a"), 79)
        assert not cluster.desk.workers
    else:
        a = cluster.start("a")
        world = cluster.desk.wait_world(1)
        last = refused(cluster.start("b", protocol=99), 79)
        assert_undisturbed(cluster, world)
        finish(cluster)
        assert a.wait() == 0
    assert "protocol version" in last
    assert {"99", "1"} <= set(last.replace(",", " ").replace(":", " ").split())


def test_a_job_of_another_protocol_version_is_left_alone(tmp_path: Path) -> None:
    """The same the other way round: an older agent comes to a newer job."""
    cluster = Cluster("c10d", tmp_path)
    try:
        a = cluster.start("a", protocol=99)
        world = cluster.desk.wait_world(1)
        last = refused(cluster.start("b"), 79)
        assert "protocol version 99, but this agent uses version 1" in last
        assert_undisturbed(cluster, world)
        finish(cluster)
        assert a.wait() == 0
    finally:
        cluster.close()


def test_a_rerun_of_a_finished_id_runs_again(cluster: Cluster) -> None:
    """The id is free when its job has ended: the same job, and another one, run under it from round 1 on."""
    for number, args in enumerate(((), (), ("--lr", "0.2")), start=1):
        first = cluster.start(f"a{number}", nnodes="2", hosts=True, args=args)
        second = cluster.start(f"b{number}", nnodes="2", hosts=False, args=args)
        world = cluster.desk.wait_world(2)
        assert [worker.round for worker in world] == [1, 1]
        assert all(tuple(worker.argv[1:]) == args for worker in world)
        finish(cluster)
        assert (first.wait(), second.wait()) == (0, 0)
        cluster.desk.wait_gone(world)


@pytest.mark.parametrize(("order", "outcome"), [("exit 0", Outcome.SUCCEEDED), ("exit 1", Outcome.FAILED)])
def test_the_record_says_how_the_job_ended(tmp_path: Path, order: str, outcome: Outcome) -> None:
    """On a store that outlives its jobs, each incarnation's outcome is in the record when its agents have ended."""
    cluster = Cluster("memory", tmp_path, nnodes="1", max_restarts=0)
    try:
        for incarnation in (1, 2):
            node = cluster.start(f"a{incarnation}", hosts=True)
            cluster.desk.wait_world(1)[0].order(order)
            node.wait()
            record = jobs.decode_job(cluster.store.guest().write_job(b"?"))
            assert (record.incarnation, record.outcome, record.name) == (incarnation, outcome, f"a{incarnation}")
    finally:
        cluster.close()
