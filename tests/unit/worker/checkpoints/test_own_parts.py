"""What the ranks do not share of a state: each goes on with its own."""

from __future__ import annotations

import io
import logging
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from elastic_agent.worker import Every, Run
from elastic_agent.worker.loop.log import NAME
from support.workers.ranks import play

pytestmark = pytest.mark.leaves_behind("torch.distributed keeps threads in the processes that tests fork from")

DATA = TensorDataset(torch.arange(96.0).view(24, 4))


class Dice:
    """An environment with a generator of its own on each rank."""

    def __init__(self, seed: int) -> None:
        self.generator, self.sum = random.Random(seed), 0.0

    def roll(self) -> float:
        self.sum += self.generator.random()
        return self.sum

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.getstate(), "sum": self.sum}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        version, words, gauss = state["generator"]
        self.generator.setstate((version, tuple(words), gauss))
        self.sum = state["sum"]


def rolls(path: Path, rank: int, until: int) -> list[float]:
    dice = Dice(rank)
    run = Run(path / "c", every=Every(steps=1, seconds=None), dice=dice)
    loader = run.loader(DataLoader(DATA, batch_size=2), global_batch=4)
    seen = []
    for _ in run.epochs(1):
        for _ in loader:
            seen.append(dice.roll())
            run.step()
            if run.steps == until:
                run.close()
                return seen
    return seen


def test_a_state_that_differs_between_the_ranks_goes_on_on_each(tmp_path: Path) -> None:
    whole = play(lambda rank: rolls(tmp_path / "whole", rank, 0), 2, tmp_path)
    before = play(lambda rank: rolls(tmp_path / "killed", rank, 2), 2, tmp_path)
    after = play(lambda rank: rolls(tmp_path / "killed", rank, 0), 2, tmp_path)
    assert whole[0] != whole[1]
    assert [before[rank] + after[rank] for rank in (0, 1)] == whole


def test_ranks_that_are_new_go_on_with_what_the_first_had_and_the_log_says_so(tmp_path: Path) -> None:
    def act(rank: int) -> list[Any]:
        said = io.StringIO()
        logging.getLogger(NAME).addHandler(logging.StreamHandler(said))
        return [rolls(tmp_path / "killed", rank, 0), said.getvalue()]

    whole = play(lambda rank: rolls(tmp_path / "whole", rank, 0), 2, tmp_path)
    play(lambda rank: rolls(tmp_path / "killed", rank, 2), 2, tmp_path)
    after = play(act, 3, tmp_path)
    assert [seen for seen, _ in after] == [whole[0][2:], whole[1][2:], whole[0][2:]]
    said = "has a state 'dice' for each of 2 ranks, and there are 3 now: each rank goes on with its own"
    assert all(said in text for _, text in after)


class Replay:
    """Of a size that is not kept for each rank."""

    def __init__(self, rank: int) -> None:
        self.held = torch.full((2 << 20,), float(rank))

    def state_dict(self) -> dict[str, Any]:
        return {"held": self.held}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held = state["held"]


def test_a_large_state_that_differs_is_named(tmp_path: Path) -> None:
    def act(rank: int) -> str:
        said = io.StringIO()
        logging.getLogger(NAME).addHandler(logging.StreamHandler(said))
        run = Run(tmp_path / "c", every=Every(seconds=None), replay=Replay(rank))
        run.step()
        run.close()
        return said.getvalue()

    first, second = play(act, 2, tmp_path)
    assert "'replay' of rank 1 is not that of rank 0, and too large to be kept for each" in first
    assert "'replay'" not in second


def statistics(path: Path, until: int) -> list[Any]:
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    run = Run(path / "c", every=Every(steps=1, seconds=None), model=net, optimizer=optimizer)
    loader = run.loader(DataLoader(DATA, batch_size=3), global_batch=6)
    for _ in run.epochs(1):
        with Join([model]):
            for (batch,) in loader:
                optimizer.zero_grad()
                model(batch).mean().backward()
                optimizer.step()
                run.step()
                if run.steps == until:
                    run.close()
                    return []
    return [name + str(tensor.tolist()) for name, tensor in net.state_dict().items()]


def test_statistics_of_a_batch_norm_go_on_also_where_another_rank_decides_them(tmp_path: Path) -> None:
    """Within `Join` all ranks are given those of the last rank before each forward pass."""
    whole = play(lambda _: statistics(tmp_path / "whole", 0), 2, tmp_path)
    play(lambda _: statistics(tmp_path / "killed", 2), 2, tmp_path)
    assert play(lambda _: statistics(tmp_path / "killed", 0), 2, tmp_path) == whole
