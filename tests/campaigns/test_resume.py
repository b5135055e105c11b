"""A small part of the campaign of kills and resizes; `make resume` plays all of it."""

from __future__ import annotations

import importlib
import os
import random
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from campaigns.resume import campaign, real, rivals, shuffle
from campaigns.resume.schedule import SHAPES, draw
from support.resume import saves_script

np: Any = importlib.import_module("numpy")
REAL_SEEDS = range(40, 46)
"""Schedules of these seeds are played with real processes, at most 4 ranks and 2 loader processes."""


def seeds_of(shape: str, count: int) -> list[int]:
    return [seed for seed in range(500) if draw(seed).shape == shape][:count]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_script_trains_alike_over_kills_and_resizes(shape: str) -> None:
    """Samples, their order, their random numbers, the batches and the training process's own draws, in one process."""
    for seed in seeds_of(shape, 6):
        _, wrong = campaign.judge_in_process(seed)
        assert wrong == [], f"seed {seed}"


def test_what_the_training_process_draws_has_no_pattern() -> None:
    """Each score is normal with deviation 1 for numbers of chance."""
    assert {name: z for name, z in shuffle.draws(10_000).items() if abs(z) > 4.5} == {}


def test_libraries_that_draw_the_same_numbers_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_turned(key: int) -> None:
        np.random.seed(key & 0xFFFFFFFF)
        random.setstate((3, (*np.random.get_state()[1].tolist(), 624), None))

    monkeypatch.setattr(shuffle, "key_everything", not_turned)
    scores = shuffle.draws(1_000)
    assert scores["Python's beside numpy's"] > 4.5
    assert abs(scores["bits"]) < 4.5


@pytest.mark.slow
@pytest.mark.parametrize("seed", REAL_SEEDS)
@pytest.mark.leaves_behind("torch handles SIGCHLD from the first loader process on")
def test_the_same_with_real_ranks_loader_processes_and_sigkill(seed: int) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        _, wrong = campaign.judge_real(seed, most_ranks=4, most_processes=2)
    assert wrong == []


@pytest.mark.slow
def test_schedules_played_by_several_jobs_are_all_played_and_counted() -> None:
    """None twice, and none left out of the last part."""
    tally = campaign.in_jobs(campaign.IN_PROCESS, 600, 7, 2, most_ranks=8, most_processes=0)
    assert tally.played == 7
    assert tally.lives == sum(len(draw(seed).lives) for seed in range(600, 607))
    assert tally.wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("forks", [False, True])
def test_interpreters_that_fork_much_keep_their_memory_in_large_pages(forks: bool) -> None:
    """By variables that the tests themselves do not keep."""
    before = dict(os.environ)
    with real.pool_of(1, forks) as pool:
        there = {name: pool.submit(os.getenv, name).result() for name in real.LARGE_PAGES}
    assert there == (real.LARGE_PAGES if forks else {name: before.get(name) for name in real.LARGE_PAGES})
    assert dict(os.environ) == before


def test_the_campaign_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader that forgets its place after a restart is found."""
    from elastic_agent.worker.data.cursors import Account

    monkeypatch.setattr(Account, "restore", lambda *_: None)
    found = [seed for seed in range(12) if campaign.judge_in_process(seed)[1]]
    assert len(found) >= 3


def test_weights_of_two_checkpoints_are_told_from_those_of_one() -> None:
    net = saves_script.Net(0.01)
    net.step()
    net.step()
    assert net.one_step() == 2
    with torch.no_grad():
        net.layers[3][-1] += 1
    assert net.one_step() is None


def test_a_start_that_finds_no_whole_checkpoint_counts_as_torn() -> None:
    row = rivals.Saver("theirs", 0.25, 0.125, Counter(whole=7, unreadable=1, mixed=1, lost=1))
    assert row.torn == 3
    assert "| theirs | 0.250 | 0.125 | 3 of 10 | 1, 1, 1 |" in rivals.table_of_saves([row])


@pytest.mark.slow
def test_a_job_that_is_killed_while_it_saves_is_found_whole(tmp_path: Path) -> None:
    assert saves_script.start_after_a_kill("ours", 0.1, tmp_path, 0.05) == "whole"
