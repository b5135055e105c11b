"""Trainers on several nodes, each a process with the same program: late, lost, replaced, and different ones.

What every program was told must be the same, and each sample of a pass must have been counted once.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from support.network import free_port
from support.source_tree import ROOT
from support.trainers.reports import Reports

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PROGRAM = ROOT / "tests" / "support" / "trainers" / "trainer_program.py"
BOUND_S = 100


class Nodes:
    """Programs of one training in one directory."""

    def __init__(self, work: Path) -> None:
        self.work = work
        (work / "seen").mkdir()
        self.endpoints = ",".join(f"127.0.0.1:{free_port()}" for _ in range(2))
        self.running: dict[str, subprocess.Popen[str]] = {}
        self.told = Reports(work / "told")
        self.calls: Counter[str] = Counter()

    def start(self, name: str, nnodes: str = "1:2", workers: int = 2, **env: str) -> None:
        paths = f"{ROOT / '.typing'}:{ROOT / 'tests'}"
        variables = {"PASSES": "5", "SLOW_S": "0.03", "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, **env}
        self.running[name] = subprocess.Popen(
            [sys.executable, str(PROGRAM), name, str(self.work), self.endpoints, nnodes, str(workers)],
            env={**os.environ, **variables}, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        process.kill()
        process.communicate()

    def end(self, name: str) -> tuple[int, str]:
        _, stderr = self.running[name].communicate(timeout=BOUND_S)
        return self.running.pop(name).returncode, stderr

    def said(self, name: str) -> list[Any]:
        path = self.work / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_calls(self, name: str, count: int, what: str = "") -> None:
        """Until this program's calls have returned so often, or it was told of so many of something else."""
        while self.calls[what or name] < count:
            self.calls[self.told.next(self.running[name].pid)] += 1

    def weights(self, name: str) -> dict[str, torch.Tensor]:
        loaded: dict[str, torch.Tensor] = torch.load(self.work / f"{name}.pt", weights_only=True)
        return loaded


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    yield made
    made.told.close()
    for process in made.running.values():
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate()


def check_alike(nodes: Nodes, *names: str, passes: int = 5) -> None:
    """Every program was told the same, and got the same model; no pass was lost or counted twice."""
    told = {name: [stats for _, stats, _ in nodes.said(name)][-passes:] for name in names}
    assert len(told[names[0]]) == passes
    for name in names:
        assert told[name] == told[names[0]]
        assert all(torch.equal(one, nodes.weights(names[0])[key]) for key, one in nodes.weights(name).items())
    assert [(stats["epoch"], stats["num_samples"], stats["batch_count"]) for stats in told[names[0]]] == [
        (number, 250, 25) for number in range(1, passes + 1)
    ]


def test_a_late_node_takes_part_from_the_present_call_on(nodes: Nodes) -> None:
    """Its calls that are done return at once what they gave, and the others go on with it at the next batch; that
    counts for no `max_retries`."""
    nodes.start("one", RETRIES="0", SLOW_S="0", ALONE_S="0.5")
    nodes.wait_calls("one", 1)
    nodes.start("late", RETRIES="0", SLOW_S="0", ALONE_S="0.5")
    assert [nodes.end(name)[0] for name in ("one", "late")] == [0, 0]
    check_alike(nodes, "one", "late")
    workers = [count for *_, count in nodes.said("one")]
    assert (workers[0], workers[-1]) == (1, 2)
    replayed = [again for again, *_ in nodes.said("late")]
    assert replayed[0]
    assert not replayed[-1]


def test_the_first_node_is_lost_and_replaced(nodes: Nodes) -> None:
    """It hosts the rendezvous: the others go to the second endpoint, and its replacement finds them there. It is lost
    during a validation, which goes on, too. No node that goes or comes counts for `max_retries`."""
    for name in ("first", "second"):
        nodes.start(name, RETRIES="0", VALIDATES="1", ALONE_S="0.5")
    nodes.wait_calls("first", 2, "a validation")
    nodes.kill("first")
    nodes.start("new", RETRIES="0", VALIDATES="1", ALONE_S="0.5")
    assert [nodes.end(name)[0] for name in ("second", "new")] == [0, 0]
    check_alike(nodes, "second", "new")
    assert all(again or count == 2 for again, _, count in nodes.said("new"))
    validated = [stats["validated"] for _, stats, _ in nodes.said("second")]
    assert [(each["num_samples"], each["batch_count"]) for each in validated] == [(101, 11)] * 5


def test_all_nodes_are_lost_and_the_same_programs_go_on(nodes: Nodes) -> None:
    """From the checkpoints in a directory: what is done there returns what it gave."""
    states = str(nodes.work / "states")
    for name in ("one", "two"):
        nodes.start(name, nnodes="2", STATES=states)
    nodes.wait_calls("one", 3)
    for name in ("one", "two"):
        nodes.kill(name)
    before = nodes.said("one")
    for name in ("one", "two"):
        nodes.start(name, nnodes="2", STATES=states)
    assert [nodes.end(name)[0] for name in ("one", "two")] == [0, 0]
    check_alike(nodes, "one", "two")
    verified = subprocess.run(
        [sys.executable, "-m", "elastic_agent.worker", "verify", states], capture_output=True, text=True, check=True
    )
    assert "5 finished epochs, 1250 samples, each trained on exactly once" in verified.stdout
    assert nodes.said("one")[len(before) :][0][:2] == [True, before[0][1]]
    assert [stats for _, stats, _ in nodes.said("one")[len(before) :]][:2] == [stats for _, stats, _ in before][:2]


def test_different_programs_stop_with_both_named(nodes: Nodes) -> None:
    """Before anything is done of the call by which they differ; other arguments are in
    `test_trainer_agreement.py`."""
    nodes.start("plain", nnodes="2")
    nodes.start("odd", nnodes="2", ODD="call")
    for name in ("plain", "odd"):
        code, stderr = nodes.end(name)
        assert code == 1
        assert "Diverged: call 2 is " in stderr
        assert re.search(r"train\(num_steps=None, .*\) on .*\(node \d\)", stderr)
        assert re.search(r"apply_all_workers\(function='getpid', code=''\) on .*\(node \d\)", stderr)
        assert "(node 0)" in stderr
        assert "(node 1)" in stderr
        assert len(nodes.said(name)) == 1
    lines = [line for path in (nodes.work / "seen").iterdir() for line in path.read_text().splitlines()]
    assert {json.loads(line)[0] for line in lines} == {0}


def test_trainers_that_are_made_with_another_config_stop_with_both_named(nodes: Nodes) -> None:
    """Before anything is made of it. No creator is called."""
    nodes.start("plain", nnodes="2")
    nodes.start("odd", nnodes="2", ODD="config")
    for name in ("plain", "odd"):
        code, stderr = nodes.end(name)
        assert code == 1
        words = r"Diverged: the trainer is made with (no )?config\['odd'\]\S* on .* and with (no )?config\['odd'\]"
        assert re.search(words, stderr), stderr[-2000:]
        assert "(node 0)" in stderr
        assert "(node 1)" in stderr
    assert not nodes.said("plain")
    assert not list((nodes.work / "seen").iterdir())


def test_a_worker_that_fails_again_ends_all_nodes_alike(nodes: Nodes) -> None:
    """Beyond `max_retries`, every program raises TrainingFailed, with rank, node and traceback of the worker that
    failed, also where that was another node's."""
    for name in ("one", "two"):
        nodes.start(name, nnodes="2", FAILS="this sample is broken")
    pids = {str(process.pid) for process in nodes.running.values()}
    for name in ("one", "two"):
        code, stderr = nodes.end(name)
        assert code == 1
        assert "TrainingFailed: train was restarted 4 times; max_retries allows 3; last: " in stderr
        assert "ValueError: this sample is broken" in stderr
    causes = [json.loads((nodes.work / f"{name}.failed").read_text()) for name in ("one", "two")]
    for rank, node, traceback in causes:
        assert (rank, node) == (1, causes[0][1])
        assert node.rpartition(":")[0] == os.uname().nodename
        assert node.rpartition(":")[2] in pids
        assert "in train_batch" in traceback
        assert 'raise ValueError(self.config["fails"])' in traceback


def test_a_file_of_one_node_is_loaded_on_all(nodes: Nodes) -> None:
    """The weights are those from before the pass that followed the save, on the node that has no file, too."""
    for name in ("one", "two"):
        nodes.start(name, nnodes="2", PASSES="1", KEPT="two")
    assert [nodes.end(name)[0] for name in ("one", "two")] == [0, 0]
    kept = torch.load(nodes.work / "two.kept", weights_only=True)["state"]["model0"]
    for name in ("one", "two"):
        assert all(torch.equal(kept[key], weight) for key, weight in nodes.weights(name).items())
