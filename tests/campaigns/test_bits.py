"""Levels `bits` and `batches` with real ranks; `make resume` plays more of it, and measures."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest

from campaigns.resume import bits, fold_times, tolerance
from campaigns.resume.bits_script import Training, draw_training
from campaigns.resume.schedule import Life
from elastic_agent.worker.shards import fold as fold_module
from elastic_agent.worker.shards.sharding import Sharding

pytestmark = [
    pytest.mark.slow,
    pytest.mark.leaves_behind("torch handles SIGCHLD from the first loader process on"),
]

EVERYTHING = dataclasses.replace(
    draw_training(random.Random(0), 5), samples=50, batch=20, norm=False, dropout=True, noise=True, unused=True
)
"""Dropout, noise in the dataset and the collation, a branch without gradients, a last batch of half the size."""
WITH_NORM = dataclasses.replace(EVERYTHING, samples=48, batch=16, norm=True, iterable=False)


def alone(training: Training, path: Path) -> str:
    """The digest of one life with one rank and no loader processes."""
    (found,) = bits.play(training, (Life(1, 0, None),), path / "whole")
    return found


@pytest.mark.parametrize("training", [EVERYTHING, WITH_NORM], ids=["everything", "with norm"])
def test_the_model_has_the_same_bits_on_one_to_eight_ranks(training: Training, tmp_path: Path) -> None:
    """On every rank: parameters, optimizer, random generators and place."""
    expected = alone(training, tmp_path)
    for ranks in range(2, 9):
        found = bits.play(training, (Life(ranks, 0, None),), tmp_path / str(ranks))
        assert found == [expected] * ranks, f"{ranks} ranks"


@pytest.mark.parametrize("processes", [1, 3])
def test_the_model_has_the_same_bits_with_any_number_of_loader_processes(processes: int, tmp_path: Path) -> None:
    found = bits.play(EVERYTHING, (Life(2, processes, None),), tmp_path / "more")
    assert set(found) == {alone(EVERYTHING, tmp_path)}


def test_ranks_without_samples_take_part(tmp_path: Path) -> None:
    """Three samples in eight shards on four ranks: the first has none, and never meets a mean that others keep."""
    few = dataclasses.replace(EVERYTHING, samples=6, batch=3, noise=False, validation=True)
    assert bits.play(few, (Life(4, 0, None),), tmp_path / "more") == [alone(few, tmp_path)] * 4


@pytest.mark.parametrize("seed", [102, 103, 104])
def test_the_model_has_the_same_bits_over_kills_and_resizes(seed: int) -> None:
    _, _, wrong = bits.judge(seed, most_ranks=5, most_processes=2)
    assert wrong == []


def test_random_numbers_that_follow_the_rank_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the tests above can fail."""
    monkeypatch.setattr(Sharding, "turn", property(lambda held: held._exchange.ranks))
    found = bits.play(EVERYTHING, (Life(2, 0, None),), tmp_path / "more")
    monkeypatch.undo()
    assert found[0] != alone(EVERYTHING, tmp_path)


def test_an_order_of_additions_that_follows_the_ranks_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the tests above can fail: what ranks have is added from left to right."""

    def left_to_right(_: object, values: dict[object, object]) -> object:
        first, *others = values.values()
        for other in others:
            first += other  # type: ignore[operator]
        return first

    monkeypatch.setattr(fold_module, "_sum", left_to_right)
    found = bits.play(EVERYTHING, (Life(5, 0, None),), tmp_path / "more")
    monkeypatch.undo()
    assert found[0] != alone(EVERYTHING, tmp_path)


def test_at_batches_three_ranks_train_the_model_of_one_but_for_rounding() -> None:
    """150 steps here, 1,000 in `make resume`."""
    assert 0 < tolerance.distance(3, steps=150) <= tolerance.GOAL


def test_the_time_of_the_sums_is_measured() -> None:
    """How much it may be is the business of `make resume`: here it is only seen to run."""
    reduced_s, folded_s = fold_times.times(2, numbers=1000, turns=3)
    assert len(reduced_s) == len(folded_s) == 3
