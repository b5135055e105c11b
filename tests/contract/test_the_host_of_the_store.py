"""The section "The host of the store" of docs/failover-contract.md."""

from __future__ import annotations

import signal

from support.desk import worker_of
from support.harness import Cluster


def test_the_host_serves_until_the_last_node_has_ended(cluster: Cluster) -> None:
    """The hosting agent finishes first and serves the store until the other has ended."""
    host, b = cluster.start("a", nnodes="2"), cluster.start("b", nnodes="2")
    world = cluster.desk.wait_world(2)
    worker_of(world, "a").order("exit 0")
    host.wait_text("all workers of this node exited 0")
    rest = worker_of(world, "b")
    cluster.desk.ask(rest, "ping")
    rest.order("exit 0")
    assert (host.wait(), b.wait()) == (0, 0)


def test_the_host_serves_on_after_it_was_asked_to_leave(cluster: Cluster) -> None:
    """SIGTERM to the hosting agent: its workers stop, the other node runs on and finishes, then the host exits 143."""
    host, b = cluster.start("a", nnodes="1:2"), cluster.start("b", nnodes="1:2")
    world = cluster.desk.wait_world(2)
    host.terminate(signal.SIGTERM)
    again = cluster.desk.wait_world(1, after=world[0].round)
    assert again[0].node == "b"
    cluster.finish()
    assert b.wait() == 0
    assert host.wait() == 143


def test_the_host_serves_on_after_its_own_budget_is_spent(cluster: Cluster) -> None:
    """The hosting agent's budget is spent: the other agent still reads the cause and exits 1, not 80."""
    host = cluster.start("a", nnodes="2", max_restarts=0, grace_s=1)
    b = cluster.start("b", nnodes="2", max_restarts=0, grace_s=1)
    world = cluster.desk.wait_world(2)
    slow = worker_of(world, "b")
    cluster.desk.ask(slow, "ignore 15")
    worker_of(world, "a").order("exit 9")
    assert (host.wait(), b.wait()) == (1, 1)
    assert "exit code 9" in b.last_line()


def test_losing_the_host_by_force_is_an_orderly_end_that_names_it(c10d: Cluster) -> None:
    """The host stands still for ever, so nobody knows that it is dead: after store_grace the other agent stops its
    workers and exits 80, naming the endpoint."""
    host = c10d.start("a", nnodes="1:2", conf={"store_grace": 1.5})
    b = c10d.start("b", nnodes="1:2", conf={"store_grace": 1.5})
    world = c10d.desk.wait_world(2)
    rest = worker_of(world, "b")
    host.terminate(signal.SIGSTOP)
    b.wait_text(f"the store at {c10d.endpoint} does not answer")
    assert b.wait() == 80
    assert f"the store at {c10d.endpoint} did not answer for 1.5 s (store_grace)" in b.last_line()
    c10d.desk.wait_gone([rest])
    host.vanish()


def test_a_host_that_is_started_again_begins_a_new_job_and_workers_of_the_old_one_are_killed_first(
    c10d: Cluster,
) -> None:
    """With one endpoint, its node is started again while the others, which are frozen, can neither tell it of their
    job nor elect another host. Their workers have a grace, which they do not get once these agents run again."""
    conf = {"lease": 40}
    host = c10d.start("a", nnodes="1:3", conf=conf)
    c10d.desk.wait_world(1)
    others = [c10d.start(name, nnodes="1:3", conf=conf) for name in ("b", "c")]
    world = c10d.desk.wait_world(3)
    rest = [worker for worker in world if worker.node != "a"]
    for worker in rest:
        c10d.desk.ask(worker, f"ignore {int(signal.SIGTERM)}")
    for other in others:
        other.terminate(signal.SIGSTOP)
    host.vanish()
    host.wait()
    c10d.start("a2", nnodes="1:3", hosts=True, conf=conf)
    c10d.desk.wait(lambda: [each for each in c10d.desk.workers if each.node == "a2"], "the new job's first worker")
    for other in others:
        other.terminate(signal.SIGCONT)
    c10d.desk.wait_gone(rest)
    assert [other.wait() for other in others] == [80, 80]
    assert all("was restarted and has lost the records" in other.last_line() for other in others)
    c10d.finish()
    assert c10d.nodes["a2"].wait() == 0
