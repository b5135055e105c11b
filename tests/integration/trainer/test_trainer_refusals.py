"""Mistakes of a program that runs on two nodes: each is a clear error on both, at once, and nothing is lost."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.network import free_ports
from support.outside.mounts import tmpfs
from support.source_tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PROGRAM = ROOT / "tests" / "support" / "trainers" / "trainer_refused.py"
BOUND_S = 540
AT_ONCE_S = 5.0
"""At most between the errors of both nodes, on a busy machine too."""
NAMED = {
    "model": ("WrongReturn", r"model_creator returned models: a int, and each must be a torch\.nn\.Module"),
    "data": ("WrongReturn", "data_creator returned 3 things, and must return"),
    "empty": ("WrongReturn", "the train data is empty: its dataset has no sample; correct data_creator"),
    "optimizer": ("WrongReturn", "optimizer_creator returned optimizers: a Sequential, and each must be a"),
    "loss": ("WrongReturn", "the loss is a int, and must be a class, an instance or a function"),
    "scheduler": ("WrongReturn", r"schedulers: a int, which has no step\(\)"),
    "gradient": ("WrongReturn", "the loss has no gradient: no parameter of the model needs one"),
    "batch": ("UsageError", r"config\[BATCH_SIZE\] is 1 for 2 workers"),
    "config": ("UsageError", r"config\['net'\] is a object, and must be plain data"),
    "shutdown": ("UsageError", r"train\(\) after shutdown\(\): the trainer has no workers any more"),
    "load": ("CheckpointDamaged", r"cut\.one: .*\(node \d\)"),
}


def played(work: Path, *cases: str) -> dict[str, dict[str, list[Any]]]:
    """By case and node, the exception's name, its text, and when it was raised."""
    # One for each: a node whose host still ends the job before would find that job, not its own.
    ports = ",".join(map(str, free_ports(len(cases))))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / '.typing'}:{ROOT / 'tests'}"}
    programs = {}
    for name in ("one", "two"):
        command = [sys.executable, str(PROGRAM), name, str(work), ports, *cases]
        programs[name] = subprocess.Popen(
            command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
    found: dict[str, dict[str, list[Any]]] = {case: {} for case in cases}
    try:
        for name, program in programs.items():
            _, stderr = program.communicate(timeout=BOUND_S)
            assert program.returncode == 0, stderr[-3000:]
            for line in (work / name).read_text().splitlines():
                case, *error = json.loads(line)
                found[case][name] = error
    finally:
        for program in programs.values():
            program.kill()
            program.communicate()
    return found


def test_each_mistake_is_named_on_every_node(tmp_path: Path) -> None:
    """And at once: neither waits for a time-out of the other one's."""
    for case, said in played(tmp_path, *NAMED).items():
        kind, words = NAMED[case]
        for name in ("one", "two"):
            assert said[name][0] == kind, (case, said)
            assert re.search(words, said[name][1]), (case, said)
        assert abs(said["one"][2] - said["two"][2]) < AT_ONCE_S, (case, said)


def test_a_full_disk_at_save_is_the_error_of_every_node_at_once(tmp_path: Path) -> None:
    """The disk of one node is full. Both programs get its error, and both keep their files from before."""
    said = played(tmp_path, "save")["save"]
    for name in ("one", "two"):
        kind, text, _ = said[name]
        assert kind == "OSError"
        assert re.search(r"cannot write .* to \S*files\.one/saved: .*; what was there stays \(node \d\)", text)
    assert said["one"][1] == said["two"][1]
    assert abs(said["one"][2] - said["two"][2]) < AT_ONCE_S


def test_full_disks_at_save_are_named_on_both_nodes_and_nothing_is_lost(tmp_path: Path) -> None:
    """On file systems of 256 KiB: each node's program gets the error, its file from before stays and is loaded, and
    both train on and save again when there is room."""
    with tmpfs(tmp_path / "disk.one", "size=256k"), tmpfs(tmp_path / "disk.two", "size=256k"):
        said = played(tmp_path, "full")["full"]
    for name in ("one", "two"):
        kind, text, _ = said[name]
        assert kind == "OSError"
        assert re.search(
            r"cannot write the trainer's state to \S*disk\.\w+/saved: No space left .*what was there stays", text
        )
