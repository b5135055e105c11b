"""Trainers in sweeps of Ray Tune and Optuna, with the real packages, in an environment of their own."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from support.side_environments import side_python
from support.source_tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.campaign, pytest.mark.timeout(1000)]

BOUND_S = 840
"""Of one program. Tune starts a process for each step of a trial, which takes minutes beside other work."""
PROGRAMS = ROOT / "tests" / "support" / "trainers"
EXAMPLES = ROOT / "examples" / "trainer"


@pytest.fixture(scope="module")
def python() -> str:
    return side_python(".sweeps")


def run(python: str, script: Path, folder: Path, *options: str) -> str:
    env = {**os.environ, "PYTHONPATH": f"{ROOT / '.typing'}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"}
    env |= {"HOME": str(folder), "RAY_USAGE_STATS_ENABLED": "0", "RAY_AIR_NEW_OUTPUT": "0"}
    done = subprocess.run(
        [python, str(script), *options],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_a_trial_is_saved_and_restored_with_other_workers(python: str, tmp_path: Path) -> None:
    """By the methods that Tune calls: what a paused trial had is what its successor has. One without data for it is not
    validated."""
    found = json.loads(run(python, PROGRAMS / "tune_steps.py", tmp_path, str(tmp_path)).splitlines()[-1])
    assert found["saved"] == pytest.approx(found["restored"], rel=1e-6)
    assert found["is a trainable"]
    assert (found["rate"], found["reported"]) == (0.02, [1, 1, True])
    assert found["without validation"] == [True, False]


def test_tune_pauses_and_resumes_trials_that_never_notice(python: str, tmp_path: Path) -> None:
    """A scheduler pauses each trial after each step: every report is that of a trainer that was never paused, to the
    last bit, though another process goes on with it each time."""
    run(python, PROGRAMS / "tune_trials.py", tmp_path, str(tmp_path))
    reported, undisturbed = json.loads((tmp_path / "told.json").read_text())
    assert sorted(reported) == sorted(undisturbed)
    for rate, lines in reported.items():
        assert len({line["pid"] for line in lines}) == len(lines) == 3
        for line, whole in zip(lines, undisturbed[rate], strict=True):
            assert {name: line[name] for name in whole if name != "pid"} == {
                name: value for name, value in whole.items() if name != "pid"
            }


def test_tune_searches_with_trainers(python: str, tmp_path: Path) -> None:
    """The example."""
    printed = run(python, EXAMPLES / "tune_sweep.py", tmp_path, "--trials", "1", "--epochs", "1")
    assert re.search(r"best: \d+\.\d% with lr=", printed)


def test_a_study_of_optuna_prunes_by_validation(python: str, tmp_path: Path) -> None:
    """The example."""
    printed = run(python, EXAMPLES / "optuna_sweep.py", tmp_path, "--trials", "3", "--epochs", "2")
    assert re.search(r"best: \d\d\.\d% with lr=", printed)
