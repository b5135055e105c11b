"""The examples of the trainer, run as a user runs them; those with other packages where these are installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from elastic_agent.trainer import BATCH_SIZE, TorchTrainer
from support.source_tree import ROOT
from support.workers import training

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")


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


def test_the_demo_loses_its_first_node_and_all_others_agree(tmp_path: Path) -> None:
    """`make trainer-demo`."""
    printed = run(tmp_path, "demo.py", "30", bound_s=280)
    assert "all three nodes printed the same 30 epochs" in printed


@pytest.mark.skipif(find_spec("optuna") is None, reason="optuna is not installed")
def test_a_study_prunes_by_validation(tmp_path: Path) -> None:
    assert re.search(r"best: \d\d\.\d% with lr=", run(tmp_path, "optuna_sweep.py", "--trials", "3", "--epochs", "2"))


@needs_ray
def test_a_trial_of_tune_is_saved_and_gone_on_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By Tune's own methods: what a paused trial had is what its successor has, with other workers."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    common: dict[str, Any] = {
        "model_creator": training.make_model,
        "data_creator": training.make_data,
        "optimizer_creator": training.make_optimizer,
        "loss_creator": nn.CrossEntropyLoss,
        "config": {BATCH_SIZE: 20},
        "use_gpu": False,
    }
    first = TorchTrainer.as_trainable(**common, num_workers=2)(config={"lr": 0.02})
    try:
        first.train()
        assert first.trainer.config["lr"] == 0.02
        first.save(str(tmp_path / "kept"))
        wanted = first.trainer.validate()
    finally:
        first.stop()
    second = TorchTrainer.as_trainable(
        **common, num_workers=1, override_tune_step=lambda trainer, info: trainer.validate()
    )(config={"lr": 0.02})
    try:
        second.restore(str(tmp_path / "kept"))
        found = second.train()
        assert found["val_loss"] == pytest.approx(wanted["val_loss"], rel=1e-6)
    finally:
        second.stop()


@needs_ray
def test_tune_searches_with_trainers(tmp_path: Path) -> None:
    printed = run(tmp_path, "tune_sweep.py", "--trials", "1", "--epochs", "1")
    assert re.search(r"best: \d+\.\d% with lr=", printed)
