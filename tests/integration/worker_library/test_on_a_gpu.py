"""Exact resume of a training on a GPU, killed with SIGKILL. Skipped where there is no GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import support.resume
from support.source_tree import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

SCRIPT = Path(support.resume.__path__[0]) / "gpu_script.py"
STEPS = 24
"""4 epochs of 6 batches."""


def life(path: Path, number: int, mode: str, ranks: int = 1, kill: int = 0) -> str:
    """What one life says; kill: a step behind which its last rank kills itself."""
    path.mkdir(exist_ok=True)
    variables = {
        **os.environ,
        "PYTHONPATH": str(ROOT / ".typing"),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "OMP_NUM_THREADS": "1",
        "MODE": mode,
        "KILL": str(kill),
        "CHECKPOINTS": str(path / "checkpoints"),
        "STORE": str(path / f"store{number}"),
        "PROCESSES": str(number % 3),
    }
    launcher = ["-m", "elastic_agent", "--standalone", "--max-restarts", "0", "--nproc-per-node", str(ranks)]
    command = [sys.executable, *(launcher if ranks > 1 else []), str(SCRIPT)]
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode != 0) == bool(kill), ended.stdout + ended.stderr
    return ended.stdout


def ended(path: Path, mode: str, *lives: tuple[int, int]) -> str:
    """The digest at the end of lives, each (ranks, step of its kill), and a last one with one rank."""
    for number, (ranks, kill) in enumerate(lives):
        life(path, number, mode, ranks, kill)
    (digest,) = [line for line in life(path, len(lives), mode).splitlines() if "digest " in line]
    assert f"digest {STEPS} " in digest
    return digest.split()[-1]


@pytest.mark.parametrize("mode", ["plain", "nccl", "bits"])
def test_a_killed_training_ends_with_the_same_bits(tmp_path: Path, mode: str) -> None:
    """Parameters, optimizer, scale of the gradients, random numbers of the GPU, place."""
    whole = ended(tmp_path / "whole", mode)
    assert ended(tmp_path / "killed", mode, (1, 9), (1, 17)) == whole


def test_at_bits_ranks_that_share_a_gpu_are_as_one(tmp_path: Path) -> None:
    whole = ended(tmp_path / "whole", "bits")
    assert ended(tmp_path / "resized", "bits", (2, 7), (4, 15)) == whole


def test_at_bits_another_device_is_refused_by_name(tmp_path: Path) -> None:
    life(tmp_path / "killed", 0, "bits", kill=9)
    program = "import sys; from elastic_agent.worker import Run; Run(sys.argv[1], shards=4)"
    refused = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "killed" / "checkpoints")],
        env={**os.environ, "PYTHONPATH": str(ROOT / ".typing"), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    # The name would have to be asked of CUDA, which this process would then have in use.
    assert re.search(r"made with device (?!cpu).+, and here device is cpu", refused.stderr), refused.stderr
