"""Real agents under a real SLURM: nodes that are lost, spares that take their place, nodes that come from elsewhere,
and trainings with the worker library that are preempted, or stopped by the kill switch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.desk import WORKER, Desk, Worker
from support.network import free_port
from support.outside.slurm_cluster import BOUND_S, SCRIPTS, SlurmCluster

pytestmark = pytest.mark.campaign


NEXT_ROUND_S, BUSY_S = 6.0, 4.0
"""From a node's death to the next round without it, a lease of 5 s among it; and what a busy host may take longer."""
TRAINING = str(Path(WORKER).with_name("enduring.py"))
AGENT = f"""\
#!/bin/bash
# The agent, on nodes that share one address: elsewhere only the first one could serve the store there.
export TEST_NODE=$SLURMD_NODENAME
first=$([ "$TEST_NODE" = n1 ] && echo 1 || echo 0)
exec {sys.executable} -m elastic_agent --rdzv-conf "last_call_quiet=0.5,read_timeout=30,is_host=$first" "$@"
"""


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.close()


def variables(desk: Desk) -> dict[str, str]:
    program = Path(desk.path).with_name("agent")
    program.write_text(AGENT)
    program.chmod(0o755)
    return {
        "ELASTIC_AGENT": str(program),
        "ELASTIC_AGENT_PORT": str(free_port()),
        "TEST_DESK": desk.path,
        "LOGLEVEL": "INFO",
    }


def places(world: list[Worker]) -> list[str]:
    """The node of each rank."""
    return sorted(worker.node for worker in world)


def finish(cluster: SlurmCluster, desk: Desk, job: str) -> None:
    """All workers exit 0; the job with them."""
    for worker in desk.world():
        worker.order("exit 0")
    cluster.wait_end(job)


def test_a_job_goes_on_without_a_lost_node_of_its_allocation(cluster: SlurmCluster, desk: Desk) -> None:
    """`--nnodes 2:3`: when a node of three loses its power, the agents form a round of two within 6 s and train on,
    also after SLURM has noticed; the job is done when they are."""
    job = cluster.submit("spares.sbatch", WORKER, options=("--nodes=3",), **variables(desk))
    world = desk.wait_world(3, bound_s=BOUND_S)
    assert places(world) == ["n1", "n2", "n3"]
    lost_s = time.monotonic()
    cluster.lose("n3")
    left = desk.wait_world(2, after=world[0].round, bound_s=BOUND_S)
    assert time.monotonic() - lost_s < NEXT_ROUND_S + BUSY_S
    assert places(left) == ["n1", "n2"]
    cluster.wait(lambda: "Node failure on n3" in cluster.story(), "SLURM's own verdict on n3")
    for worker in left:
        desk.ask(worker, "ping")
    finish(cluster, desk, job)
    assert cluster.state(job) == "COMPLETED"


def test_a_spare_of_the_allocation_takes_the_place_of_a_bad_node(cluster: SlurmCluster, desk: Desk) -> None:
    """Two of three nodes train and one waits. replace.sh drains one that trains, and the third trains in its place."""
    settings = {**variables(desk), "ELASTIC_AGENT_NNODES": "2:2"}
    job = cluster.submit("spares.sbatch", WORKER, options=("--nodes=3",), **settings)
    world = desk.wait_world(2, bound_s=BOUND_S)
    bad = next(node for node in places(world) if node != "n1")  # n1 hosts the store
    replace(cluster, job, bad)
    again = desk.wait_world(2, after=world[0].round, bound_s=BOUND_S)
    assert places(again) == [node for node in cluster.nodes if node != bad]
    assert "drain" in cluster.run("sinfo", "--noheader", f"--nodes={bad}", "--format=%T")
    finish(cluster, desk, job)
    assert cluster.state(job) == "COMPLETED"


def test_a_node_from_another_allocation_takes_the_place_of_a_bad_node(cluster: SlurmCluster, desk: Desk) -> None:
    """Where no spare waits, join.sbatch brings one: a job of one node, which SLURM places anywhere but on the drained
    node, becomes a node of the training."""
    settings = {**variables(desk), "ELASTIC_AGENT_NNODES": "1:2"}
    job = cluster.submit("requeue.sbatch", WORKER, options=("--nodes=2", "--exclusive"), **settings)
    world = desk.wait_world(2, bound_s=BOUND_S)
    assert places(world) == ["n1", "n2"]
    replace(cluster, job, "n2")
    alone = desk.wait_world(1, after=world[0].round, bound_s=BOUND_S)
    joined = cluster.submit("join.sbatch", job, options=(), **variables(desk))
    both = desk.wait_world(2, after=alone[0].round, bound_s=BOUND_S)
    assert places(both) == ["n1", "n3"]
    finish(cluster, desk, job)
    cluster.wait_end(joined)
    assert [cluster.state(each) for each in (job, joined)] == ["COMPLETED", "COMPLETED"]


def replace(cluster: SlurmCluster, job: str, node: str) -> None:
    cluster.run(str(SCRIPTS / "replace.sh"), job, node)


class Training:
    """`enduring.py`, which needs a second for 50 steps, and what rank 0 noted of its steps over all starts."""

    def __init__(self, folder: Path, steps: int) -> None:
        self.arguments = (str(folder / "checkpoints"), str(folder / "notes"), str(steps), "0.02")
        self._notes = folder / "notes.1.0"

    def done(self) -> list[int]:
        """Steps that were done, in this order."""
        lines = self._notes.read_text().splitlines() if self._notes.exists() else []
        return [int(line.split()[0]) for line in lines if not line.startswith("complete")]


def test_a_training_that_is_preempted_goes_on_where_it_was_saved(
    cluster: SlurmCluster, desk: Desk, tmp_path: Path
) -> None:
    """USR1, 75, requeue, resume: over both starts each step is done once, and the job is done at the last."""
    training = Training(tmp_path, 400)
    job = cluster.submit("requeue.sbatch", TRAINING, *training.arguments, options=("--nodes=2",), **variables(desk))
    cluster.wait(lambda: len(training.done()) > 20, "20 steps")
    cluster.run("scancel", "--batch", "--signal=USR1", job)
    cluster.wait(lambda: "Restarts=1" in cluster.run("scontrol", "show", "job", job), "the requeue")
    cluster.wait_end(job)
    assert cluster.state(job) == "COMPLETED"
    assert training.done() == list(range(1, 401))
    assert "the job ends with 75: again" in cluster.story()


def test_the_kill_switch_stops_a_training_and_its_array(cluster: SlurmCluster, desk: Desk, tmp_path: Path) -> None:
    """The file stops the element that runs, with 83, and no other starts."""
    training, switch = Training(tmp_path, 100_000), tmp_path / "stop"
    settings = {**variables(desk), "ELASTIC_AGENT_FLAGS": f"--kill-switch {switch}"}
    job = cluster.submit("array.sbatch", TRAINING, *training.arguments, options=("--nodes=2",), **settings)
    cluster.wait(lambda: len(training.done()) > 20, "20 steps")
    switch.touch()
    cluster.wait_end(job)
    assert sorted(cluster.state(job).split(",")) == ["CANCELLED", "FAILED"]
    assert "nodes ended with 83 (2); the job ends with 83: stop" in cluster.story()
