"""What scripts of Lightning do beside the plainest `fit` is exact as well: real Lightning, real SIGKILL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import support.resume
from support.resume.jobs import Job, differences, play
from support.side_environments import side_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SCRIPT = Path(support.resume.__path__[0]) / "lightning_edges_script.py"
IMPORTS = ["torch", "lightning.pytorch"]


@pytest.fixture(scope="module")
def python() -> str:
    return side_python(".frameworks")


def killed_and_whole(
    python: str, path: Path, mode: str, kills: list[str], every: str = "3"
) -> tuple[dict[Any, list[Any]], dict[Any, list[Any]]]:
    """What a run that was killed there said, and one that was not, after the same batches."""
    jobs = [Job(path, name, MODE=mode, ELASTIC_AGENT_SAVE_EVERY=every) for name in ("killed", "whole")]
    for job in jobs:
        job.env["ELASTIC_AGENT_EXACT_RESUME"] = str(job.checkpoints)
    killed, whole = jobs
    for kill in kills:
        killed.life(KILL=kill)
    play(python, SCRIPT, [killed.life(), whole.life()], IMPORTS)
    assert differences(whole, killed) == []
    return killed.reported(), whole.reported()


@pytest.mark.parametrize("kills", [["1:4", "2:4"], ["fitted", "2:0", "3:4"]])
def test_a_second_fit_of_the_same_trainer_goes_on(python: str, tmp_path: Path, kills: list[str]) -> None:
    """Killed in both, between them, and before the second has a checkpoint."""
    killed, whole = killed_and_whole(python, tmp_path, "twice", kills)
    assert killed == whole


def test_what_stands_behind_fit_finds_what_fit_has_left(python: str, tmp_path: Path) -> None:
    """The metrics, and the generators."""
    killed, whole = killed_and_whole(python, tmp_path, "behind", ["fitted"])
    assert killed == whole
    assert "validated" in killed["end", 0][1]


@pytest.mark.parametrize("kills", [["validated 0:3", "1:3", "validated 2:1"], ["fitted"]])
def test_an_average_of_the_weights_goes_on(python: str, tmp_path: Path, kills: list[str]) -> None:
    """Which is in the model while it is validated, and behind `fit`."""
    killed, whole = killed_and_whole(python, tmp_path, "averaged", kills, every="1")
    assert killed == whole


def test_a_stream_goes_on_behind_a_validation_at_the_end_of_an_epoch(python: str, tmp_path: Path) -> None:
    """It keeps its place by itself, and Lightning reads ahead in a pass that it gives up."""
    kills = ["validated 0:3", "1:0", "1:1", "validated 1:2", "2:0"]
    killed, whole = killed_and_whole(python, tmp_path, "stream", kills, every="1")
    assert killed == whole


def test_what_a_callback_sets_at_the_start_of_an_epoch_holds_to_its_end(python: str, tmp_path: Path) -> None:
    """How many batches make a step."""
    killed, whole = killed_and_whole(python, tmp_path, "accumulated", ["1:5", "validated 1:2", "2:4"], every="1")
    assert killed == whole


def test_a_callback_may_make_its_state_when_the_training_begins(python: str, tmp_path: Path) -> None:
    killed, whole = killed_and_whole(python, tmp_path, "late", ["0:0", "0:1", "1:4"], every="1")
    assert killed == whole


def test_what_is_frozen_or_in_another_mode_stays_so(python: str, tmp_path: Path) -> None:
    """A callback changes both when an epoch begins."""
    killed, whole = killed_and_whole(
        python, tmp_path, "unfrozen", ["0:4", "1:4", "validated 1:2", "2:3", "fitted"], "1"
    )
    assert killed == whole
    assert killed["trained", 0][:2] == [[True] * 6, False]


def test_lightnings_own_checkpoints_have_the_names_of_a_run_without_restarts(python: str, tmp_path: Path) -> None:
    """Killed behind a checkpoint that the next start writes again."""
    killed, whole = killed_and_whole(python, tmp_path, "files", ["1:3", "2:2"], every="5")
    assert killed == whole
    assert killed["files", 0][0][:2] == ["best.ckpt", "last.ckpt"]
