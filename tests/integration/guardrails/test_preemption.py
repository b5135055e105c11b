"""Preemption with a deadline, planned changes that lose nothing, and the end of a complete training.

Real agents, real workers that wait for each other in each step, real signals.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from elastic_agent.launcher.preemption.notices import URL
from elastic_agent.worker.schedule import EXCHANGE_S
from support.harness import Cluster, ProcessNode
from support.network import free_port
from support.outside import stepping
from support.outside.asking import Asking
from support.outside.metadata import LOUD, QUIET, Service

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SCRIPT = Path(__file__).parents[2] / "support" / "workers" / "enduring.py"
BOUND_S = 90.0
"""On anything that takes an import of torch, on a busy host."""
LOOK_S = 0.05


class Training:
    """A job of `enduring.py`, one worker on each node."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.checkpoints = folder, folder / "checkpoints"
        self.cluster: Cluster | None = None

    def job(self, nnodes: str, steps: int = 100_000, step_s: float = 0.02, backend: str = "c10d") -> Cluster:
        args = (str(self.checkpoints), str(self.folder / "notes"), str(steps), str(step_s))
        self.cluster = Cluster(backend, self.folder, nnodes=nnodes, worker=str(SCRIPT), args=args, max_restarts=0)
        return self.cluster

    def steps(self, number: int) -> list[list[int]]:
        """Of rank 0 in this round: each step that it did, and of how many ranks."""
        try:
            lines = (self.folder / f"notes.{number}.0").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [[int(word) for word in line.split()] for line in lines if not line.startswith("complete")]

    def wait_steps(self, *numbers: int, least: int = 20) -> int:
        """Until rank 0 has done so many steps in one of these rounds; which one."""
        assert self.cluster is not None
        until = time.monotonic() + BOUND_S
        while True:
            for number in numbers:
                if len(self.steps(number)) >= least:
                    return number
            texts = "".join(node.text() for node in self.cluster.nodes.values())
            assert time.monotonic() < until, f"no step {least} in round {numbers}: {texts}"
            time.sleep(LOOK_S)

    def wait_both(self) -> int:
        """Until two nodes train that were started together; their round: the second where one was late, on a busy
        host."""
        number = self.wait_steps(1, 2)
        return number if self.steps(number)[0][1] == 2 else self.wait_steps(2)

    def saved(self) -> list[int]:
        """Steps of the checkpoints, each of which is whole."""
        found = self.checkpoints.glob("step-*/manifest.json")
        return sorted(int(json.loads(path.read_text())["step"]) for path in found)

    def repeated(self, *rounds: int) -> list[int]:
        """Steps that were done in more than one of these rounds."""
        done = [step for number in rounds for step, _ in self.steps(number)]
        return sorted({step for step in done if done.count(step) > 1})


@pytest.fixture
def asking() -> Iterator[Asking]:
    made = Asking()
    yield made
    made.close()


@pytest.fixture
def aws() -> Iterator[Service]:
    """A host of AWS that nobody takes back so far."""
    with closing(Service()) as service:
        service.answer = QUIET["aws"]
        yield service


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    made = Training(tmp_path)
    yield made
    if made.cluster is not None:
        made.cluster.close()


def test_before_a_deadline_all_ranks_save_in_time_and_every_agent_ends_with_75(training: Training) -> None:
    """The deadline is one agent's only. The save is measured, whole, and of the last step that was done."""
    cluster = training.job("2")
    a = cluster.start("a")
    a.wait_text("1 of at least 2 nodes joined", BOUND_S)  # it serves the store, and has imported torch for that
    deadline_s = time.time() + 30
    b = cluster.start("b", flags=("--deadline", str(deadline_s)))
    training.wait_steps(1)
    assert (a.wait(BOUND_S), b.wait(BOUND_S)) == (75, 75)
    last = training.saved()[-1]
    assert last == training.steps(1)[-1][0]
    assert (training.checkpoints / f"step-{last:06d}" / "manifest.json").stat().st_mtime < deadline_s
    assert "FAILED" not in a.text() + b.text()


@pytest.mark.parametrize("how", ["--deadline", "--exit-duration-in-mins", "SLURM_JOB_END_TIME"])
def test_every_end_of_the_jobs_time_is_the_deadline_that_the_library_knows(how: str, tmp_path: Path) -> None:
    """Of a real worker, from the agent's flags or variables. Minutes may be fractions."""
    (tmp_path / "left.py").write_text(
        "from elastic_agent.worker.loop.deadline import Deadline\nopen('left', 'w').write(str(Deadline().left_s()))\n"
    )
    end = str(time.time() + 90)
    flags = {"--deadline": ["--deadline", end], "--exit-duration-in-mins": ["--exit-duration-in-mins", "1.5"]}
    env = {**os.environ, how: str(int(float(end)))} if how == "SLURM_JOB_END_TIME" else dict(os.environ)
    command = ["--standalone", "--log-dir", os.devnull, *flags.get(how, []), "left.py"]
    agent = ProcessNode("one", command, env, tmp_path)
    try:
        assert agent.wait() == 0, agent.text()
    finally:
        agent.end()
    assert 0 < float((tmp_path / "left").read_text()) <= 90.5


def test_a_signal_to_any_one_agent_saves_at_one_step_and_ends_all_with_75(tmp_path: Path) -> None:
    """SIGUSR1 is passed on to the workers of one node, where the library takes it, and acted upon within two steps or
    1 s. Copies that a scheduler sends to all workers are dropped, and so is the agent's second."""
    script = tmp_path / "known.py"
    script.write_text(
        "import os, runpy, sys\n"
        "with open(f'{sys.argv[2]}.pid.{os.environ[\"RANK\"]}', 'w') as file: file.write(str(os.getpid()))\n"
        f"runpy.run_path({str(stepping.SCRIPT)!r}, run_name='__main__')\n"
    )
    training = stepping.Training(tmp_path, script=script)
    flags = ("--forward-signals", "USR1")
    try:
        training.start(a=flags, b=flags).wait_steps(20)
        a, b = (training.cluster.nodes[name] for name in ("a", "b"))
        asked_s = time.monotonic()
        b.terminate(signal.SIGUSR1)
        for rank in (0, 1):
            os.kill(int(Path(f"{training.notes}.pid.{rank}").read_text()), signal.SIGUSR1)
        b.terminate(signal.SIGUSR1)
        assert (a.wait(BOUND_S), b.wait(BOUND_S)) == (75, 75)
    finally:
        training.cluster.close()
    last = [int(training.lines(rank)[-1].split()[0]) for rank in (0, 1)]
    saved = sorted(training.checkpoints.glob("step-*/manifest.json"))[-1]
    assert last == [json.loads(saved.read_text())["step"]] * 2
    training.assert_acted_within_two_steps(asked_s, last[0], 2 * EXCHANGE_S)


def test_an_arrival_repeats_no_step(training: Training) -> None:
    cluster = training.job("1:2")
    cluster.start("a", conf={"last_call_quiet": 0.2})
    training.wait_steps(1)
    cluster.start("b", conf={"last_call_quiet": 0.2})
    training.wait_steps(2)
    assert training.repeated(1, 2) == []
    assert training.steps(2)[0] == [training.steps(1)[-1][0] + 1, 2]


@pytest.mark.parametrize("how", ["SIGTERM", "drain", "notice"])
def test_a_node_that_is_asked_to_leave_lets_all_save_first_and_no_step_is_repeated(
    how: str, training: Training, asking: Asking, aws: Service
) -> None:
    """It ends with 75, and the other goes on at the step after the last one of both. A cloud's notice, in its metadata
    service, is one way to ask."""
    cluster = training.job("1:2")
    a = cluster.start("a", env=asking.env)
    spot = ("--spot-notices", "aws") if how == "notice" else ()
    b = cluster.start("b", env={**asking.env, URL: aws.url}, flags=spot)
    number = training.wait_both()
    if how == "drain":
        asking.ask(asking.path(b.process.pid), "Drain", reason="its disk fails")
    elif how == "notice":
        aws.answer = LOUD["aws"]
    else:
        b.terminate()
    assert b.wait(BOUND_S) == 75
    training.wait_steps(number + 1)
    assert training.repeated(number, number + 1) == []
    assert training.steps(number + 1)[0] == [training.steps(number)[-1][0] + 1, 1]
    assert ("AWS will terminate this host" in b.last_line()) is (how == "notice")
    a.terminate()
    assert a.wait(BOUND_S) == 75


def test_with_a_settle_timeout_of_0_workers_are_stopped_at_once(training: Training) -> None:
    cluster = training.job("1:2")
    flags = ("--settle-timeout", "0")
    cluster.start("a", flags=flags)
    b = cluster.start("b", flags=flags)
    number = training.wait_both()
    b.terminate()
    assert b.wait(BOUND_S) == 143
    training.wait_steps(number + 1)
    assert training.steps(number + 1)[0][0] == 1, "nothing was saved, so the training begins anew"


def test_a_complete_training_ends_every_later_start_at_once_with_0(tmp_path: Path) -> None:
    """The same command starts no worker on either of two nodes that share no files, each of which has the mark; with
    other arguments it trains on."""
    folders = {name: tmp_path / name for name in ("a", "b")}
    for folder in folders.values():
        folder.mkdir()

    def run(steps: int, *names: str) -> list[tuple[int, str, int]]:
        """Of each of these nodes: status, what it said, its worker's last step; 0: it has started none."""
        job = ["--nnodes", str(len(names)), "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
        flags = [*job, "--exact-resume", "checkpoints", "--log-dir", os.devnull]
        command = [*flags, str(SCRIPT), "checkpoints", "notes", str(steps), "0.01"]
        agents = [ProcessNode(name, command, dict(os.environ), folders[name]) for name in names]
        try:
            ended = []
            for agent in agents:
                status, last = agent.wait(BOUND_S), 0
                for notes in folders[agent.name].glob("notes.*"):
                    last = int(notes.read_text().splitlines()[-2].split()[0])
                    notes.unlink()
                ended.append((status, agent.text(), last))
            return ended
        finally:
            for agent in agents:
                agent.end()

    assert [ended[::2] for ended in run(30, "a", "b")] == [(0, 30)] * 2
    for folder in folders.values():
        assert json.loads((folder / "checkpoints" / "complete.json").read_text())["step"] == 30
    for status, text, last in run(30, "a", "b"):
        assert (status, last) == (0, 0), "a worker was started"
        assert "exit 0: the training was complete at step 30" in text
    assert run(40, "a")[0][::2] == (0, 40)


def test_a_schedulers_own_copy_of_a_forwarded_signal_ends_no_worker_that_still_imports(tmp_path: Path) -> None:
    """The worker ignores the signal from the start of its process; its handler gets what comes once it is there."""
    script = tmp_path / "imports.py"
    script.write_text(
        "import os, signal, sys, time\n"
        "from pathlib import Path\n"
        "here = Path(sys.argv[1])\n"
        "(here / 'pid.new').write_text(str(os.getpid()))\n"
        "(here / 'pid.new').rename(here / 'pid')\n"
        "until = time.monotonic() + 60\n"
        "while not (here / 'go').exists() and time.monotonic() < until: time.sleep(0.01)\n"
        "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))\n"
        "(here / 'handles').touch()\n"
        "time.sleep(60)\n"
    )
    flags = ["--standalone", "--log-dir", os.devnull, "--forward-signals", "USR1", str(script), str(tmp_path)]
    agent = ProcessNode("one", flags, dict(os.environ), tmp_path)
    try:
        pid = int(wait_file(tmp_path / "pid").read_text())
        for _ in range(3):
            os.kill(pid, signal.SIGUSR1)
        agent.terminate(signal.SIGUSR1)
        agent.wait_text("signal 10 was not passed on to local rank 0, which has no handler for it")
        (tmp_path / "go").touch()
        wait_file(tmp_path / "handles")
        agent.terminate(signal.SIGUSR1)
        assert agent.wait() == 0
    finally:
        agent.end()


def wait_file(path: Path) -> Path:
    until = time.monotonic() + BOUND_S
    while not path.exists():
        assert time.monotonic() < until, f"{path} was not made"
        time.sleep(LOOK_S)
    return path
