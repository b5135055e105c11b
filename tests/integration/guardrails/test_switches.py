"""The kill switch and the save switch: files and signals by which people ask something of a running job.

Real agents on the c10d store, real workers that wait for each other in each step, real files.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.harness import Cluster, ProcessNode
from support.outside.stepping import BOUND_S, SCRIPT, Training

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    made = Training(tmp_path)
    yield made
    made.cluster.close()


def test_a_kill_switch_that_one_node_sees_stops_the_job_at_one_step_with_a_checkpoint_and_83(
    training: Training,
) -> None:
    """All ranks act at the same step, within two steps of the request; workers exit 0; every agent ends with 83."""
    mine, other = training.folder / "kill", training.folder / "not-seen-here"
    training.start(a=("--kill-switch", str(other)), b=("--kill-switch", str(mine)))
    training.wait_steps(20)
    asked_s = time.monotonic()
    mine.write_text("the budget is spent\n")
    assert [training.cluster.nodes[name].wait(BOUND_S) for name in ("a", "b")] == [83, 83]
    assert len(training.last_steps()) == 1, training.last_steps()
    last = int(training.last_steps().pop().removeprefix("end "))
    assert (training.checkpoints / f"step-{last:06d}" / "manifest.json").exists()
    training.assert_stopped_within_two_steps(asked_s)
    for name in ("a", "b"):
        text = training.cluster.nodes[name].text()
        assert "all workers of this node exited 0" in text
        assert "the budget is spent; all workers exited 0" in training.cluster.nodes[name].last_line()
    assert mine.exists()


def test_the_save_switch_makes_one_checkpoint_keeps_it_by_its_label_and_training_goes_on(training: Training) -> None:
    """Both nodes see the file; it is removed, and saved once, within two steps. The checkpoint outlives those that
    retention removes."""
    switch = training.folder / "save"
    training.start(a=("--save-switch", str(switch)), b=("--save-switch", str(switch)))
    training.wait_steps(20)
    asked_s = time.monotonic()
    switch.write_text("before the merge\n")
    labels = training.wait_label()
    assert list(labels.values()) == ["before the merge"]
    assert not switch.exists()
    training.assert_acted_within_two_steps(asked_s, training.step_of(labels))
    # Checkpoints follow every 50 steps, and two are kept.
    training.wait_steps(len(training.lines(0)) + 170)
    assert training.labels() == labels
    texts = "".join(training.cluster.nodes[name].text() for name in ("a", "b"))
    assert texts.count(f"the save switch {switch}, made by ") == texts.count("all ranks save at boundary") + 1 == 3
    assert not list(training.folder.glob(".save*"))


def test_signals_of_ones_choice_to_any_one_agent_do_what_the_files_do(training: Training) -> None:
    """SIGUSR2 to one agent saves, SIGUSR1 to the other ends the job, each within two steps."""
    flags = ("--save-signal", "USR2", "--kill-signal", "SIGUSR1")
    training.start(a=flags, b=flags)
    training.wait_steps(10)
    asked_s = time.monotonic()
    training.cluster.nodes["a"].terminate(signal.SIGUSR2)
    labels = training.wait_label()
    assert list(labels.values()) == ["save-signal"]
    training.assert_acted_within_two_steps(asked_s, training.step_of(labels))
    asked_s = time.monotonic()
    training.cluster.nodes["b"].terminate(signal.SIGUSR1)
    assert [training.cluster.nodes[name].wait(BOUND_S) for name in ("a", "b")] == [83, 83]
    assert len(training.last_steps()) == 1
    training.assert_stopped_within_two_steps(asked_s)
    assert "the kill signal 10 to" in training.cluster.nodes["a"].last_line()


COUNTING = f"""
import json, runpy, sys
import torch
import torch.distributed as dist
destroy = dist.destroy_process_group
def count():
    entries = json.loads(torch._C._distributed_c10d._dump_fr_trace_json())["entries"]
    own = [each["collective_seq_id"] for each in entries if each["process_group"][1] == "default_pg"]
    with open(f"{{sys.argv[2]}}.collectives.{{dist.get_rank()}}", "w") as file:
        file.write(str(max(own)))
    destroy()
dist.destroy_process_group = count
runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
"""


def test_nothing_is_asked_or_saved_by_a_collective_of_the_trainings_own_process_groups(tmp_path: Path) -> None:
    """Behind checkpoints of its own, a labelled one and the kill switch, torch's flight recorder has one collective a
    step there: the script's."""
    script = tmp_path / "counting.py"
    script.write_text(COUNTING)
    training = Training(tmp_path, script=script)
    flags = ("--kill-switch", str(tmp_path / "kill"), "--save-switch", str(tmp_path / "save"))
    try:
        training.start(a=flags, b=flags).wait_steps(60)
        (tmp_path / "save").write_text("labelled\n")
        training.wait_label()
        (tmp_path / "kill").touch()
        assert [training.cluster.nodes[name].wait(BOUND_S) for name in ("a", "b")] == [83, 83]
    finally:
        training.cluster.close()
    for rank in (0, 1):
        assert f"end {(tmp_path / f'notes.collectives.{rank}').read_text()}" == training.lines(rank)[-1]


def test_scripts_without_the_library_are_stopped_within_the_usual_grace_and_every_agent_ends_with_83(
    tmp_path: Path,
) -> None:
    """They have no step boundary, and the last line says so."""
    cluster = Cluster("c10d", tmp_path, nnodes="2")
    switch = tmp_path / "kill"
    try:
        for name in ("a", "b"):
            cluster.start(name, flags=("--kill-switch", str(switch)))
        cluster.desk.wait_world(2, bound_s=BOUND_S)
        switch.touch()
        assert [cluster.nodes[name].wait() for name in ("a", "b")] == [83, 83]
        assert "not every worker calls run.step()" in cluster.nodes["b"].last_line()
    finally:
        cluster.close()


def started(folder: Path, *flags: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """An agent whose worker leaves a file, and how long it took: by the clock on an idle host, in processor time on
    one that is busy, which adds delays of its own."""
    (folder / "train.py").write_text("open('started', 'w')\n")
    began_s, spent_s = time.monotonic(), processor_s()
    command = [sys.executable, "-m", "elastic_agent", *flags, "train.py"]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    took_s = time.monotonic() - began_s
    return ended, took_s if os.getloadavg()[0] < (os.cpu_count() or 1) else processor_s() - spent_s


def processor_s() -> float:
    """Of all processes that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_a_queued_job_burns_through_with_83_in_under_half_a_second_without_starting_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best of five runs counts. Nothing is left of them, not even a log directory."""
    (tmp_path / "kill").touch()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    runs = [started(tmp_path, "--kill-switch", "kill") for _ in range(5)]
    assert [ended.returncode for ended, _ in runs] == [83] * 5
    assert {path.name for path in tmp_path.iterdir()} == {"kill", "train.py"}
    assert min(took_s for _, took_s in runs) < 0.5
    assert "no worker was started" in runs[0][0].stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file to another user")
def test_the_log_says_who_owns_the_kill_switch(tmp_path: Path) -> None:
    """Anybody who may write the file may use it."""
    (tmp_path / "kill").touch()
    os.chown(tmp_path / "kill", 65534, -1)
    ended, _ = started(tmp_path, "--kill-switch", "kill")
    assert f"exit 83: the kill switch {tmp_path / 'kill'}, made by nobody" in ended.stderr


def test_a_relative_switch_is_in_the_working_directory_and_a_directory_is_refused(tmp_path: Path) -> None:
    """A mistake is one line, before anything starts."""
    (tmp_path / "kill").touch()
    ended, _ = started(tmp_path, "--kill-switch", "kill")
    assert f"exit 83: the kill switch {tmp_path / 'kill'}, made by" in ended.stderr
    ended, _ = started(tmp_path, "--save-switch", ".")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "no path of a file" in ended.stderr


@pytest.mark.parametrize("preload", [(), ("--preload", "json")], ids=["plain", "preload"])
def test_a_schedulers_own_copy_of_the_kill_or_save_signal_ends_no_worker(
    tmp_path: Path, preload: tuple[str, ...]
) -> None:
    """A worker ignores both from its start: SLURM may send them to every process, and they are for the agent."""
    script = tmp_path / "imports.py"
    script.write_text(
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "here = Path(sys.argv[1])\n"
        "(here / 'pid.new').write_text(str(os.getpid()))\n"
        "(here / 'pid.new').rename(here / 'pid')\n"
        "until = time.monotonic() + 60\n"
        "while not (here / 'go').exists() and time.monotonic() < until: time.sleep(0.01)\n"
    )
    asking = ("--kill-signal", "USR1", "--save-signal", "USR2")
    flags = ["--standalone", "--log-dir", os.devnull, *asking, *preload, str(script), str(tmp_path)]
    agent = ProcessNode("one", flags, dict(os.environ), tmp_path)
    try:
        until = time.monotonic() + BOUND_S
        while not (tmp_path / "pid").exists():
            assert time.monotonic() < until, agent.text()
            time.sleep(0.02)
        pid = int((tmp_path / "pid").read_text())
        for signum in (signal.SIGUSR1, signal.SIGUSR2):
            os.kill(pid, signum)
        (tmp_path / "go").touch()
        assert agent.wait(BOUND_S) == 0, agent.text()
    finally:
        agent.end()
