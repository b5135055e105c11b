"""Ends that a script, a watch or a scheduler asks for, on real agents, real workers and real signals."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.desk import Desk, worker_of
from support.harness import Cluster, ProcessNode
from support.procfs import slowed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

ENDURING = Path(__file__).parents[2] / "support" / "workers" / "enduring.py"
WORKER = Path(__file__).parents[2] / "support" / "workers" / "obedient.py"
BOUND_S = 90.0
"""On anything that takes an import of torch, on a busy host."""


class Training:
    """A job of `enduring.py`, or of a script that runs it, one worker on each node."""

    def __init__(self, folder: Path, nnodes: str, step_s: float = 0.02, script: Path = ENDURING) -> None:
        self.folder = folder
        args = (str(folder / "checkpoints"), str(folder / "notes"), "100000", str(step_s))
        self.cluster = Cluster("c10d", folder, nnodes=nnodes, worker=str(script), args=args, max_restarts=0)

    def lines(self, number: int, rank: int = 0) -> list[str]:
        """What a rank wrote of its steps in a round."""
        path = self.folder / f"notes.{number}.{rank}"
        return path.read_text().splitlines() if path.exists() else []

    def wait(self, number: int, least: int) -> None:
        """Until rank 0 has begun this round, and done so many steps."""
        until = time.monotonic() + BOUND_S
        while not (self.folder / f"notes.{number}.0").exists() or len(self.lines(number)) < least:
            assert time.monotonic() < until, "".join(node.text() for node in self.cluster.nodes.values())
            time.sleep(0.02)


@pytest.fixture
def begun() -> Iterator[list[Cluster]]:
    clusters: list[Cluster] = []
    yield clusters
    for cluster in clusters:
        cluster.close()


def test_a_script_that_stops_on_one_rank_saves_at_one_step_and_ends_every_agent_with_75(
    tmp_path: Path, begun: list[Cluster]
) -> None:
    """`run.stop()` on rank 1 alone, at its 30th step."""
    script = tmp_path / "stops.py"
    script.write_text(
        "import runpy, sys\nfrom elastic_agent.worker import Run\nstep = Run.step\n"
        "def stop_there(run):\n    step(run)\n    if run.rank == 1 and run.steps == 30: run.stop()\n"
        f"Run.step = stop_there\nrunpy.run_path({str(ENDURING)!r}, run_name='__main__')\n"
    )
    training = Training(tmp_path, "2", script=script)
    begun.append(training.cluster)
    a, b = training.cluster.start("a"), training.cluster.start("b")
    assert (a.wait(BOUND_S), b.wait(BOUND_S)) == (75, 75)
    last = [training.lines(1, rank)[-1] for rank in (0, 1)]
    assert last[0] == last[1]
    step = int(last[0].split()[0])
    assert (tmp_path / "checkpoints" / f"step-{step:06d}" / "manifest.json").exists()
    assert "FAILED" not in a.text() + b.text()


def test_a_planned_change_waits_for_a_step_boundary_only_as_long_as_the_settle_timeout(
    tmp_path: Path, begun: list[Cluster]
) -> None:
    """A step of 100 s is not waited for: the round that lets the new node in begins some seconds after it came."""
    training = Training(tmp_path, "1:2", step_s=100)
    begun.append(training.cluster)
    flags = ("--settle-timeout", "2", "--shutdown-timeout", "1")
    training.cluster.start("a", conf={"last_call_quiet": 0.2}, flags=flags)
    training.wait(1, 0)
    came_s = time.monotonic()
    training.cluster.start("b", conf={"last_call_quiet": 0.2}, flags=flags)
    training.wait(2, 0)
    assert time.monotonic() - came_s < slowed(45.0), "as long as without the flag"
    assert training.lines(1) == []


def test_workers_without_the_library_are_waited_for_by_no_planned_change(tmp_path: Path, begun: list[Cluster]) -> None:
    """They have nothing to save: an hour is allowed, and the round of two nodes begins at once, and that of one."""
    cluster = Cluster("c10d", tmp_path, nnodes="1:2", max_restarts=0, flags=("--settle-timeout", "3600"))
    begun.append(cluster)
    cluster.start("a", conf={"last_call_quiet": 0.2})
    cluster.desk.wait_world(1, bound_s=BOUND_S)
    b = cluster.start("b", conf={"last_call_quiet": 0.2})
    first = cluster.desk.wait_world(2, after=1, bound_s=BOUND_S)
    b.terminate()
    assert b.wait(BOUND_S) == 143
    cluster.desk.wait_world(1, after=first[0].round, bound_s=BOUND_S)
    assert "all ranks save" not in cluster.nodes["a"].text()


def test_a_watch_that_drains_has_its_node_leave_and_the_others_go_on_at_the_next_step(
    tmp_path: Path, begun: list[Cluster]
) -> None:
    """A quota is over by what its command prints; the node ends as with 75, nobody is charged, no step is repeated."""
    table, quota = tmp_path / "w.toml", tmp_path / "quota"
    quota.write_text("10 %\n")
    watch = f'what = "quota"\nof = "node"\ncommand = "cat {quota}"\nthreshold = "90 % used"\nevery = "0.2 s"\n'
    table.write_text(f'[[watch]]\n{watch}do = ["drain"]\n')
    training = Training(tmp_path, "1:2")
    begun.append(training.cluster)
    a, b = training.cluster.start("a"), training.cluster.start("b", flags=("--watch", str(table)))
    training.wait(1, 20)
    quota.write_text("95 %\n")
    assert b.wait(BOUND_S) == 75
    training.wait(2, 20)
    first, second = training.lines(1), training.lines(2)
    assert second[0] == f"{int(first[-1].split()[0]) + 1} 1"
    assert "worker failed" not in a.text() + b.text()


def test_a_pods_grace_period_is_enough_for_workers_that_ignore_sigterm(tmp_path: Path) -> None:
    """The kubelet sends SIGKILL `terminationGracePeriodSeconds` after SIGTERM: the agent has ended before."""
    grace_s = 12
    desk = Desk(tmp_path)
    variables = {"TEST_NODE": "one", "TEST_DESK": desk.path, "ELASTIC_AGENT_TERMINATION_GRACE": str(grace_s)}
    flags = ["--standalone", "--log-dir", os.devnull, str(WORKER)]
    agent = ProcessNode("one", flags, {**os.environ, **variables, "LOGLEVEL": "INFO"}, tmp_path)
    try:
        worker = worker_of(desk.wait_world(1), "one")
        desk.ask(worker, "ignore 15")
        begun_s = time.monotonic()
        agent.terminate()
        assert agent.wait(BOUND_S) == 143
        assert time.monotonic() - begun_s < slowed(grace_s)
        assert worker.gone.wait(BOUND_S)
    finally:
        agent.end()
        desk.close()
