"""The main example, run as a user runs it: two workers learn to read digits, and a crash loses no sample."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.source_tree import ROOT

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "examples" / "digits" / "train.py"
RUN_S = 100
"""Bound on one whole run, imports of torch included; about ten seconds on two idle cores."""


def train(checkpoints: Path, *options: str, agent_options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    agent = [sys.executable, "-m", "elastic_agent", "--standalone", "--nproc-per-node", "2", *agent_options]
    command = [*agent, str(SCRIPT), "--checkpoint-dir", str(checkpoints), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)


def accuracies(output: str) -> dict[int, float]:
    """Test accuracy in percent by epoch, in the order printed."""
    return {
        int(epoch): float(percent) for epoch, percent in re.findall(r"epoch (\d+): test accuracy ([\d.]+)%", output)
    }


@pytest.mark.quick
def test_two_workers_learn_to_read_digits(tmp_path: Path) -> None:
    """A script with the worker library trains to the end: 95 % of unseen digits are recognised, and the job exits 0."""
    job = train(tmp_path)
    assert job.returncode == 0, job.stderr
    reached = accuracies(job.stdout)
    assert list(reached) == list(range(1, 13))
    assert reached[12] >= 95.0
    assert "resuming" not in job.stdout


def test_training_goes_on_in_the_middle_of_an_epoch_after_a_crash(tmp_path: Path) -> None:
    """A worker that fails in epoch 4 costs one restart; the epoch goes on where the last checkpoint is, and at the end
    every sample of every epoch was trained on exactly once."""
    job = train(tmp_path, "--crash-at-epoch", "4", agent_options=("--max-restarts", "1"))
    assert job.returncode == 0, job.stderr
    assert (tmp_path / "crashed").exists()
    assert job.stdout.count("resuming at step 80, in epoch 4") == 1
    assert "trained 12 epochs on 2 workers, every sample of every epoch exactly once" in job.stdout
    trained = re.findall(r"^.*epoch (\d+): test", job.stdout, re.MULTILINE)
    assert trained == [str(epoch) for epoch in range(1, 13)]
    assert accuracies(job.stdout)[12] >= 95.0


def test_a_kill_switch_ends_the_training_in_its_midst_without_a_failure(tmp_path: Path) -> None:
    """The workers exit 0 behind their checkpoint: an accuracy that is wanted at the end is none of theirs."""
    switch = tmp_path / "stop"
    agent = [sys.executable, "-m", "elastic_agent", "--standalone", "--nproc-per-node", "2"]
    job = [*agent, "--kill-switch", str(switch), str(SCRIPT), "--checkpoint-dir", str(tmp_path / "saves")]
    printed = ""
    with subprocess.Popen(
        [*job, "--epoch-seconds", "0.5"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout or ():
            printed += line
            if "epoch 1: test" in line:
                switch.touch()
    assert process.returncode == 83, printed
    assert re.search(r"stopped at step \d+, in epoch ([2-9]|1[01]); its checkpoint is kept", printed), printed
    assert "the job was ended on request: the kill switch" in printed
    assert "failed" not in printed


def test_a_crash_without_restarts_fails_the_job_and_its_error_is_printed(tmp_path: Path) -> None:
    """Without a restart left the exit status is not 0, and the worker's error is on stderr."""
    job = train(tmp_path, "--crash-at-epoch", "1")
    assert job.returncode != 0
    assert "crashing once, as --crash-at-epoch asked" in job.stderr


def test_a_job_that_trains_too_little_fails(tmp_path: Path) -> None:
    """Workers raise an error when the accuracy is too low, and the exit status is not 0."""
    job = train(tmp_path, "--epochs", "1")
    assert job.returncode != 0
    assert "wanted 95%" in job.stderr
