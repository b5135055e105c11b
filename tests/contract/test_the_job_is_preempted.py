"""The section "The job is preempted" of docs/failover-contract.md."""

from __future__ import annotations

from support.desk import worker_of
from support.harness import Cluster


def test_a_worker_that_exits_75_ends_the_job_with_75_on_every_node_and_charges_nobody(cluster: Cluster) -> None:
    """With restarts left: none is used, no block says FAILED, and the worker of the other node ends by itself."""
    a, b = cluster.start("a", nnodes="2", max_restarts=3), cluster.start("b", nnodes="2", max_restarts=3)
    world = cluster.desk.wait_world(2)
    worker_of(world, "b").order("exit 75")
    a.wait_text("asked for the end by exit code 75")
    assert not worker_of(world, "a").gone.is_set(), "it was not given the time to write what it saves"
    worker_of(world, "a").order("exit 0")
    assert (a.wait(), b.wait()) == (75, 75)
    for node in (a, b):
        assert "FAILED" not in node.text()
        assert "worker failed" not in node.text()
    assert "the job was preempted" in a.last_line()
    assert "start the job again to go on" in b.last_line()
    assert {worker.round for worker in cluster.desk.workers} == {1}, "a round was begun again"


def test_a_code_that_the_user_forbids_keeps_its_meaning(cluster: Cluster) -> None:
    """--no-restart-codes 75 was the way to say so before, and ends with 93 as ever."""
    a = cluster.start("a", nnodes="2", policy={"no_restart_codes": "75"})
    b = cluster.start("b", nnodes="2", policy={"no_restart_codes": "75"})
    worker_of(cluster.desk.wait_world(2), "b").order("exit 75")
    assert (a.wait(), b.wait()) == (93, 93)


def test_a_node_that_is_only_itself_preempted_leaves_and_the_others_go_on(cluster: Cluster) -> None:
    """SIGTERM reaches one agent; its workers, which use no library, are stopped at once, whatever they exit with."""
    a, b = cluster.start("a", nnodes="1:2"), cluster.start("b", nnodes="1:2")
    world = cluster.desk.wait_world(2)
    b.terminate()
    again = cluster.desk.wait_world(1, after=world[0].round)
    assert [worker.node for worker in again] == ["a"]
    cluster.finish()
    assert (a.wait(), b.wait()) == (0, 143)
