"""The section "One job, one record" of docs/failover-contract.md."""

from __future__ import annotations

import time

import pytest

from elastic_agent.proto import elastic_pb2 as wire
from elastic_agent.rendezvous.codec import job as jobs
from elastic_agent.rendezvous.codec.fields import PROTOCOL_VERSION
from elastic_agent.rendezvous.codec.job import JobRecord
from elastic_agent.rendezvous.memory_store import MemoryStore
from elastic_agent.rendezvous.records import Outcome
from support.harness import Cluster, Node
from support.procfs import slowed


def refused(node: Node, status: int) -> str:
    """The last line of an agent that is refused with this status, in under 10 s."""
    began = time.monotonic()
    assert node.wait() == status, node.text()
    assert time.monotonic() - began < slowed(10.0)
    return node.last_line()


def test_a_different_job_with_the_same_id_is_refused_and_the_first_is_untouched(cluster: Cluster) -> None:
    """Other arguments under a run id in use, with room in the round: refused, and both specs are named."""
    a = cluster.start("a", nnodes="1:4", args=("--lr", "0.1"))
    world = cluster.desk.wait_world(1)
    last = refused(cluster.start("b", nnodes="1:4", args=("--lr", "0.2")), 78)
    assert f"'{cluster.run_id}'" in last
    assert "obedient.py --lr …`" in last
    assert "obedient.py --lr 0.2`" in last
    assert "--rdzv-id" in last
    cluster.assert_undisturbed(world)
    cluster.finish()
    assert a.wait() == 0


def test_a_different_job_whose_node_would_host_is_refused_too(c10d: Cluster) -> None:
    """A node that is to host the store at the first job's port names the other job, not only the port in use."""
    a = c10d.start("a", nnodes="1:4", args=("--lr", "0.1"))
    world = c10d.desk.wait_world(1)
    last = refused(c10d.start("b", nnodes="1:4", args=("--lr", "0.2"), hosts=True), 78)
    assert "obedient.py --lr …`" in last
    assert "obedient.py --lr 0.2`" in last
    c10d.assert_undisturbed(world)
    c10d.finish()
    assert a.wait() == 0


def test_a_node_with_another_nnodes_is_refused(cluster: Cluster) -> None:
    """--nnodes must be the same on all nodes: both values are named, and the job goes on undisturbed."""
    a = cluster.start("a", nnodes="1:4")
    world = cluster.desk.wait_world(1)
    last = refused(cluster.start("b", nnodes="2:3"), 78)
    assert "differs in --nnodes:" in last
    assert "`--nnodes 1:4 " in last
    assert "`--nnodes 2:3 " in last
    cluster.assert_undisturbed(world)
    cluster.finish()
    assert a.wait() == 0


def test_what_is_a_nodes_own_may_differ(cluster: Cluster) -> None:
    """Number of workers, budget, log directory, preferred rank and time limits may differ between nodes."""
    a = cluster.start("a", nnodes="2", nproc=1, max_restarts=3, node_rank=1, grace_s=20)
    b = cluster.start("b", nnodes="2", nproc=2, max_restarts=0, node_rank=0, conf={"join_timeout": 50}, barrier_s=100)
    assert len(cluster.desk.wait_world(3)) == 3
    cluster.finish()
    assert (a.wait(), b.wait()) == (0, 0)


def test_an_agent_of_another_protocol_version_is_refused(cluster: Cluster) -> None:
    """The later agent is refused and names both versions; the job goes on."""
    if "memory" in cluster.backend:  # one process has agents of one version, so the first job is only a record
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
        cluster.assert_undisturbed(world)
        cluster.finish()
        assert a.wait() == 0
    assert "protocol version" in last
    assert {"99", str(PROTOCOL_VERSION)} <= set(last.replace(",", " ").replace(":", " ").split())


def test_a_job_of_another_protocol_version_is_left_alone(c10d: Cluster) -> None:
    """An agent of this version that joins a job of version 99 is refused, and the job goes on."""
    a = c10d.start("a", protocol=99)
    world = c10d.desk.wait_world(1)
    last = refused(c10d.start("b"), 79)
    assert f"protocol version 99, but this agent uses version {PROTOCOL_VERSION}" in last
    c10d.assert_undisturbed(world)
    c10d.finish()
    assert a.wait() == 0


def test_a_rerun_of_a_finished_id_runs_again(cluster: Cluster) -> None:
    """When a job has ended, the same job and another one run under its id, each from round 1 on."""
    for number, args in enumerate(((), (), ("--lr", "0.2")), start=1):
        first = cluster.start(f"a{number}", nnodes="2", hosts=True, args=args)
        second = cluster.start(f"b{number}", nnodes="2", hosts=False, args=args)
        world = cluster.desk.wait_world(2)
        assert [worker.round for worker in world] == [1, 1]
        assert all(tuple(worker.argv[1:]) == args for worker in world)
        cluster.finish()
        assert (first.wait(), second.wait()) == (0, 0)
        cluster.desk.wait_gone(world)


@pytest.mark.parametrize(("order", "outcome"), [("exit 0", Outcome.SUCCEEDED), ("exit 1", Outcome.FAILED)])
def test_the_record_says_how_the_job_ended(memory: Cluster, order: str, outcome: Outcome) -> None:
    """On a store that outlives its jobs the record holds each incarnation's outcome when its agents have ended."""
    for incarnation in (1, 2):
        node = memory.start(f"a{incarnation}", nnodes="1", max_restarts=0, hosts=True)
        memory.desk.wait_world(1)[0].order(order)
        node.wait()
        record = jobs.decode_job(memory.store.guest().write_job(b"?"))
        assert (record.incarnation, record.outcome, record.name) == (incarnation, outcome, f"a{incarnation}")
