"""The examples of the trainer, run as a user runs them; those of sweeps are in `test_trainer_sweeps.py`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.source_tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(folder: Path, name: str, *options: str, bound_s: float = 200) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".typing"), "OMP_NUM_THREADS": "1", "HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "trainer" / name), *options],
        cwd=folder, env=env, capture_output=True, text=True, timeout=bound_s, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_the_classifier_reads_95_of_100_digits(tmp_path: Path) -> None:
    """It ends with another status below that."""
    printed = run(tmp_path, "digits.py")
    assert len(re.findall(r"epoch \d+: loss [\d.]+, accuracy [\d.]+%, 2 workers\n", printed)) == 8


def test_the_dcgan_writes_a_picture(tmp_path: Path) -> None:
    assert "64 samples are in" in run(tmp_path, "dcgan.py", "samples.png", "--epochs", "2")
    assert (tmp_path / "samples.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.campaign  # test_trainer_nodes.py loses the first node, too
def test_the_demo_loses_its_first_node_and_all_others_agree(tmp_path: Path) -> None:
    """`make trainer-demo`."""
    printed = run(tmp_path, "demo.py", "30", bound_s=280)
    assert "all three nodes printed the same 30 epochs" in printed
