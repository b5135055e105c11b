"""The examples beside the main one, run as a user runs them, and their output."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.network import free_port
from support.source_tree import ROOT

pytestmark = pytest.mark.slow

RUN_S = 110
"""Bound on one whole run; the demo takes about half a minute on two idle cores, the scheduler ten seconds."""


def run(folder: Path, name: str, *options: str, bound_s: float = RUN_S) -> tuple[int, str]:
    """Exit status, and what was printed."""
    command = [sys.executable, str(ROOT / "examples" / name), *options]
    env = {**os.environ, "TMPDIR": str(folder)}  # a killed process leaves its temporary files
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=bound_s, check=False)
    return done.returncode, done.stdout + done.stderr


def assert_in_order(output: str, *parts: str) -> None:
    """Each part is found after the one before it."""
    at = 0
    for part in parts:
        found = re.compile(part).search(output, at)
        assert found, f"{part!r} is missing, or too early:\n{output}"
        at = found.end()


def test_the_demo_loses_a_node_admits_another_and_trains_to_the_end(tmp_path: Path) -> None:
    """`make demo`: two nodes train, one is killed and named as lost, one trains alone, two finish and exit 0; then
    the report of it, as text and as a page. The worker with rank 0 prints the epochs, whichever node has it."""
    status, printed = run(tmp_path, "demo.py", "--epoch-seconds", "0.8")
    output = re.sub(r"\s*\n\s+\| ", " ", printed)  # long lines are wrapped
    assert status == 0, printed
    assert_in_order(
        output,
        r"demo .*starting node-a",
        r"node-a agent .*round 1 begins with 2 nodes",
        r"node-[ab] worker .*epoch 3: test accuracy",
        r"demo .*killing the agent of node-b",
        r"node-a agent .*round 2 begins with 1 node.*node-b was lost",
        r"node-a worker .*resuming at step \d+, in epoch [3-9]",
        r"node-a worker .*epoch \d+: test accuracy",
        r"demo .*starting node-c",
        r"node-a agent .*round 2 is over: node-c arrived",
        r"node-a agent .*round 3 begins with 2 nodes",
        r"node-[ac] worker .*resuming at step \d+",
        r"trained 12 epochs on 2 workers, every sample of every epoch exactly once: test accuracy (9[5-9]|100)\.\d%",
        r"exit statuses: node-a 0, node-c 0\n",
        r"demo .*elasticctl explain node-a\.jsonl node-b\.jsonl node-c\.jsonl\n",
        r"demo .*3 rounds in .*the job succeeded",
        r"demo .*round 1 .*began .*with 2 nodes, 2 workers",
        r"demo .*ended by departure: node-b was lost",
        r"demo .*round 2 .*began .*with 1 node, 1 worker",
        r"demo .*ended by arrival: .*node-c",
        r"demo .*round 3 .*began .*with 2 nodes, 2 workers",
        r"the same as a page, by elasticctl report: ",
    )
    assert (tmp_path / "elastic-agent-demo.html").read_text().startswith("<!doctype html>")


GUARDS_S = 1700
"""As RUN_S, of the demo of guardrails: 40 s on two idle cores, ten minutes where other work goes first."""


@pytest.mark.campaign
@pytest.mark.timeout(GUARDS_S + 60)
def test_the_demo_of_guardrails_shows_each_on_the_digits_job(tmp_path: Path) -> None:
    """`make guard-demo`: a labelled checkpoint, two endings with 83, one with 75 after which no sample is lost, a leak
    that is found in time, and a disc that fills while there is room for the last checkpoint."""
    status, printed = run(tmp_path, "guard_demo.py", bound_s=GUARDS_S)
    output = re.sub(r"\s*\n\s+\| ?", " ", printed)
    assert status == 0, printed
    assert_in_order(
        output,
        r"a checkpoint has the label, and the switch is gone",
        r"job1 .*stopped at step",
        r"job1 ended with 83",
        r"job2 ended with 83",
        r"job3 .*resuming at step",
        r"job3 ended with 75",
        r"job4 .*every sample of every epoch exactly once",
        r"job4 ended with 0",
        r"watch6 .*worker-memory .* left \(limit 1 hour left\)",
        r"job5 .*all ranks save at",
        r"A FULL DISC",
    )
    if "takes root" not in output:
        assert_in_order(
            output, r"watch8 .*disk disc: .*limit 50 % free", r"job7 ended with 83", r"job9 .*resuming at step"
        )
    assert "failed" not in output
    assert "that was all" in output


def test_the_toy_scheduler_replaces_a_node_that_died(tmp_path: Path) -> None:
    """A program of at most 60 lines embeds the agent, replaces a node that dies, and gets all results."""
    status, output = run(tmp_path, "toy_scheduler.py")
    assert status == 0, output
    assert_in_order(output, "round 1 begins with 2 nodes", "ended with exit code -9", "round 2 begins with 2 nodes")
    assert "node-1 was lost" in output
    assert sorted(re.findall(r"results: \{(\d): 'trained to the end in round [2-9]'\}", output)) == ["0", "1"]
    assert len((ROOT / "examples" / "toy_scheduler.py").read_text().splitlines()) <= 60


@pytest.mark.parametrize(("words", "said"), [("--nodes 3:1 train.py", "MIN:MAX"), ("nosuch.py", "does not exist")])
def test_the_autoscaler_ends_with_the_status_of_its_job(words: str, said: str, tmp_path: Path) -> None:
    """It ended with 0 whatever became of the job, and with a traceback where `--nodes` was wrong."""
    status, output = run(tmp_path, "autoscaler.py", "--endpoint", f"127.0.0.1:{free_port()}", *words.split())
    assert status == 2, output
    assert said in output
    assert "Traceback" not in output


def test_the_autoscaler_takes_its_nodes_along_when_it_is_stopped(tmp_path: Path) -> None:
    """By SIGTERM too, as a scheduler above it sends: they trained on without it."""
    (tmp_path / "train.py").write_text("import threading\nprint('training', flush=True)\nthreading.Event().wait()\n")
    command = [sys.executable, str(ROOT / "examples" / "autoscaler.py"), "--nodes", "1:1"]
    command += ["--endpoint", f"127.0.0.1:{free_port()}", "train.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any(line == "training\n" for line in process.stdout)
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()  # to its end, which every node holds
    assert "autoscaler: interrupted; all save and end" in rest
    assert "autoscaler: node0 ended with 83" in rest
    assert process.returncode == 0
