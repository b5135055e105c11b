"""All ranks read one order of the same samples: what a script has divided among them already is refused, and what it
draws for all of them is the same on each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    random_split,
)

from elastic_agent.worker import Every, Run
from elastic_agent.worker.errors import NotResumable
from support.workers.ranks import play

NEVER = Every(seconds=None)
DATA = TensorDataset(torch.arange(24))

pytestmark = pytest.mark.leaves_behind("torch.distributed keeps threads in the processes that tests fork from")


class Derived(DistributedSampler[Any]):
    """As of a script that adds to torch's: it gives this rank's part."""


class Batches(Sampler[list[int]]):
    """A batch sampler over some indices."""

    def __init__(self, indices: range) -> None:
        self.indices = indices

    def __iter__(self) -> Iterator[list[int]]:
        return iter([list(self.indices[first : first + 2]) for first in range(0, len(self.indices), 2)])


def train(run: Run, loader: Any) -> None:
    for _ in run.batches(loader, steps=2):
        run.step()


DIVIDED: dict[str, Callable[[int], DataLoader[Any]]] = {
    "a sampler derived from DistributedSampler": lambda rank: DataLoader(DATA, batch_size=2, sampler=Derived(DATA)),
    "a sampler over a part": lambda rank: DataLoader(DATA, batch_size=2, sampler=range(rank, 24, 2)),
    "torch's sampler of a part": lambda rank: DataLoader(
        DATA, batch_size=2, sampler=SubsetRandomSampler(range(rank, 24, 2))
    ),
    "a batch sampler over a part": lambda rank: DataLoader(DATA, batch_sampler=Batches(range(rank, 24, 2))),
    "a part of the dataset": lambda rank: DataLoader(Subset(DATA, range(rank, 24, 2)), batch_size=2, shuffle=True),
    "parts of two lengths": lambda rank: DataLoader(Subset(DATA, range(rank, 23, 2)), batch_size=2, shuffle=True),
    "another batch size": lambda rank: DataLoader(DATA, batch_size=2 + rank),
}


@pytest.mark.parametrize("kind", DIVIDED)
def test_what_the_script_has_divided_among_the_ranks_is_refused_before_a_checkpoint(tmp_path: Path, kind: str) -> None:
    """Half of the samples were read by nobody, and the ledger knew nothing of it."""

    def act(rank: int) -> str:
        run = Run(tmp_path / "c", every=Every(steps=1))
        loader = run.loader(DIVIDED[kind](rank))
        with pytest.raises(
            NotResumable, match=r"rank 1 reads \d+ in.*and rank 0 \d+.*give every rank the s"
        ) as refused:
            train(run, loader)
        return str(refused.value)

    assert len(set(play(act, 2, tmp_path))) == 1
    assert not list((tmp_path / "c").glob("step-*"))


def test_a_sampler_over_all_is_read_once_by_all_ranks_together(tmp_path: Path) -> None:
    """What the refusal advises."""

    def act(rank: int) -> list[int]:
        run, seen = Run(tmp_path / "c", every=NEVER), list[int]()
        sampler = Derived(DATA, num_replicas=1, rank=0)
        loader = run.loader(DataLoader(DATA, batch_size=2, sampler=sampler))
        for _ in run.epochs(2):
            for (batch,) in loader:
                seen += batch.tolist()
                run.step()
        return seen

    assert sorted(chain(*play(act, 2, tmp_path))) == sorted(2 * list(range(24)))


def test_a_loader_that_one_rank_reads_alone_within_the_training_is_compared_with_nothing(tmp_path: Path) -> None:
    def act(rank: int) -> int:
        run = Run(tmp_path / "c", every=NEVER)
        loader = run.loader(DataLoader(DATA, batch_size=2))
        alone = run.loader(DataLoader(DATA, batch_size=2, sampler=range(24)), train=False)
        for _ in run.epochs(2):
            for _ in loader:
                run.step()
                if rank == 0:
                    list(alone)
        return run.steps

    assert play(act, 2, tmp_path) == [12, 12]


def test_what_a_script_draws_before_its_loop_is_the_same_on_each_rank(tmp_path: Path) -> None:
    """`random_split` behind `Run(...)`, over any number of ranks; in the loop each draws numbers of its own."""

    def act(rank: int) -> Any:
        torch.manual_seed(0)
        run = Run(tmp_path / str(torch.distributed.is_initialized()), every=NEVER)
        trained_on, held_out = random_split(DATA, [20, 4])
        drawn = [float(torch.rand(())) for _ in run.epochs(1)]
        return [list(trained_on.indices), list(held_out.indices)], drawn

    alone, several = play(act, 1, tmp_path), play(act, 3, tmp_path)
    assert [split for split, _ in several] == 3 * [alone[0][0]]
    assert len({drawn for _, (drawn,) in several}) == 3
