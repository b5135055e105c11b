"""What scripts of Lightning keep on each rank, or make anew in some epochs, goes on: real Lightning, real SIGKILL."""

from __future__ import annotations

from pathlib import Path

import pytest

import support.resume
from support.resume.jobs import Job, differences, play
from support.side_environments import side_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SCRIPT = Path(support.resume.__path__[0]) / "lightning_ranks_script.py"
IMPORTS = ["torch", "lightning.pytorch"]


def job(path: Path, name: str, mode: str) -> Job:
    made = Job(path, name, MODE=mode, ELASTIC_AGENT_SAVE_EVERY="1")
    made.env["ELASTIC_AGENT_EXACT_RESUME"] = str(made.checkpoints)
    return made


def compared(path: Path, mode: str, ranks: int, *kills: str) -> Job:
    """A job that was killed at these places, which saw and said what one that was not did."""
    whole, killed = job(path, "whole", mode).life(ranks), job(path, "killed", mode)
    for kill in kills:
        killed.life(ranks, KILL=kill)
    play(side_python(".frameworks"), SCRIPT, [whole, killed.life(ranks)], IMPORTS)
    assert differences(whole, killed) == []
    assert killed.reported() == whole.reported()
    return killed


@pytest.mark.parametrize("ranks", [1, 2])
def test_data_that_is_drawn_anew_in_every_second_epoch(tmp_path: Path, ranks: int) -> None:
    """A start in the second of two epochs was given that one's data, the next ones in other epochs, and each rank its
    own draws."""
    compared(tmp_path, "drawn", ranks, "0:3", "1:4", "validated 2:1", "3:0")


def test_gradients_and_statistics_that_each_rank_has_of_its_own(tmp_path: Path) -> None:
    """A start gave all ranks those of the first."""
    killed = compared(tmp_path, "apart", 2, "0:4", "1:2", "validated 1:2")
    assert "the ranks keep gradients of their own" in killed.reported()["warned", 0][0]


def test_what_one_rank_has_logged_is_a_mean_on_two(tmp_path: Path) -> None:
    """A start on more ranks behind an epoch's last batch: the second had no number, and ended a training that stops
    where a number is none."""
    whole, resized = job(tmp_path, "whole", "logged").life(1), job(tmp_path, "resized", "logged")
    resized.life(1, KILL="validated 2:2").life(2)
    play(side_python(".frameworks"), SCRIPT, [whole, resized], IMPORTS)
    assert differences(whole, resized) == []
    losses = [each.reported()["end", 0][1]["loss_epoch"] for each in (whole, resized)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_models_that_differ_are_warned_of(tmp_path: Path) -> None:
    diverging = job(tmp_path, "diverging", "diverging").life(2)
    play(side_python(".frameworks"), SCRIPT, [diverging], IMPORTS)
    assert "'the model' has other parameters on rank 1 than on rank 0" in diverging.reported()["warned", 0][0]


def test_parts_of_several_loaders_that_weigh_otherwise_are_warned_of(tmp_path: Path) -> None:
    both = job(tmp_path, "both", "both").life(2)
    play(side_python(".frameworks"), SCRIPT, [both], IMPORTS)
    assert "weighed by that of the first loader's" in both.reported()["warned", 0][0]


def test_what_is_pruned_stays_so(tmp_path: Path) -> None:
    """Masks are in none of Lightning's checkpoints, nor that the first weights are those that are trained."""
    compared(tmp_path, "pruned", 1, "0:4", "1:2", "validated 1:2", "2:4")
