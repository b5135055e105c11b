"""Calls of train() of Hugging Face's Trainer give and log what they would have without a kill: real SIGKILL."""

from __future__ import annotations

from pathlib import Path

import pytest

import support.resume
from support.resume.jobs import Job, differences, play
from support.side_environments import side_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SCRIPT = Path(support.resume.__path__[0]) / "trainer_script.py"
HUGGING_FACE = ["torch", "transformers.trainer", "accelerate"]


@pytest.fixture(scope="module")
def python() -> str:
    return side_python(".frameworks")


def compared(python: str, path: Path, mode: str, *kills: list[str], **first: str) -> Job:
    """Jobs that were killed at these places and ended, as one that was not; the last life of each says all calls."""
    whole, jobs = Job(path, "whole", MODE=mode).life(), []
    for number, places in enumerate(kills):
        jobs.append(Job(path, f"killed-{number}", MODE=mode))
        if first:
            jobs[-1].life(1, **first)
        for place in places:
            jobs[-1].life(KILL=place)
    play(python, SCRIPT, [whole, *(job.life() for job in jobs)], HUGGING_FACE)
    for job in jobs:
        assert differences(whole, job) == []
        assert {key: told for key, told in job.reported().items() if key[0] != "killed"} == whole.reported()
    return jobs[0]


def test_a_second_call_trains_and_a_start_goes_on_in_it(python: str, tmp_path: Path) -> None:
    killed = compared(python, tmp_path, "stages", ["0:6", "10:7", "20:12"])
    steps = [killed.reported()["call", call][0][0] for call in range(3)]
    assert steps == [8, 10, 20]


def test_each_fold_has_its_own_checkpoints_and_first_weights(python: str, tmp_path: Path) -> None:
    killed = compared(python, tmp_path, "folds", ["0:6", "10:2", "10:7"])
    assert (killed.checkpoints / "train-2" / "checkpoint-12").is_dir()


def test_an_early_end_is_an_end_and_no_start_evaluates_again(python: str, tmp_path: Path) -> None:
    killed = compared(python, tmp_path, "early", ["0:1", "0:3", "0:5"], ["save:6"], ["evaluate:6"])
    assert killed.reported()["call", 0][0][0] == 6


def test_losses_and_what_is_done_at_the_end_of_an_epoch(python: str, tmp_path: Path) -> None:
    """The third is killed when the training is over; the second and the fourth behind an epoch's last checkpoint."""
    kills = ["0:6", "1:7"], ["evaluate:16", "evaluate:32"], ["save:40"], ["evaluate:40"]
    compared(python, tmp_path, "epochs", *kills)


def test_a_training_that_a_callback_stopped_goes_on(python: str, tmp_path: Path) -> None:
    killed = compared(python, tmp_path, "limit", ["0:11"], LIMIT="6")
    assert killed.reported()["call", 0][0][0] == 16


def test_a_stream_is_in_the_epoch_in_which_it_would_be_and_a_refusal_says_what_to_do(
    python: str, tmp_path: Path
) -> None:
    killed = compared(python, tmp_path, "stream", ["0:9", "0:14"])
    assert "`replay = True` in the class of the Trainer" in killed.reported()["refused", 0][0]


def test_what_a_callback_lets_train_goes_on_training(python: str, tmp_path: Path) -> None:
    """A start behind that had it frozen."""
    compared(python, tmp_path, "later", ["0:5", "0:11"])


def test_a_stream_that_may_be_read_again(python: str, tmp_path: Path) -> None:
    compared(python, tmp_path, "replay", ["0:9"])


def test_a_class_that_makes_its_loader_and_takes_its_steps_itself(python: str, tmp_path: Path) -> None:
    """Its methods stand before those of `Exact`. One is killed behind the last step of an epoch, before its end."""
    killed = compared(python, tmp_path, "own", ["0:6", "1:7"], ["save:32"])
    assert [path.name for path in sorted(killed.checkpoints.iterdir())] == ["checkpoint-28", "checkpoint-32"]
