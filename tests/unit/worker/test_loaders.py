"""Loaders: what order and weights they give, which datasets they refuse, and with which sentence."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    get_worker_info,
)

from elastic_agent.worker import Every, Run
from elastic_agent.worker.errors import Misused, NotResumable, WrongState

NEVER = Every(seconds=None)

pytestmark = pytest.mark.leaves_behind("torch handles SIGCHLD from the first loader process on")


def numbers(count: int) -> TensorDataset:
    return TensorDataset(torch.arange(count))


def run_in(path: Path, **more: Any) -> Run:
    return Run(path / "checkpoints", every=NEVER, **more)


def epoch_of(run: Run, loader: Any) -> list[list[int]]:
    """One pass, with a step after each batch."""
    batches = []
    for (batch,) in loader:
        batches.append(batch.tolist())
        run.step()
    return batches


def test_an_epoch_has_every_sample_once_and_the_next_another_order(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    loader = run.loader(DataLoader(numbers(50), batch_size=8, shuffle=True))
    first, second = epoch_of(run, loader), epoch_of(run, loader)
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(50))
    assert first != second
    assert len(loader) == len(first) == 7


def test_two_loaders_over_one_dataset_have_orders_of_their_own(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    loaders = [run.loader(DataLoader(numbers(50), batch_size=8, shuffle=True)) for _ in range(2)]
    assert epoch_of(run, loaders[0]) != epoch_of(run, loaders[1])


def test_the_last_batch_is_smaller_and_neither_padded_nor_dropped(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    assert [len(batch) for batch in epoch_of(run, run.loader(DataLoader(numbers(10), batch_size=4)))] == [4, 4, 2]
    dropping = run.loader(DataLoader(numbers(10), batch_size=4, drop_last=True))
    assert [len(batch) for batch in epoch_of(run, dropping)] == [4, 4]


@pytest.mark.parametrize(
    "choice",
    [
        {"batch_sampler": BatchSampler(RandomSampler(range(20)), 5, drop_last=False)},
        {"sampler": SubsetRandomSampler(range(20)), "batch_size": 5},
        {"sampler": torch.utils.data.DistributedSampler(numbers(20), 1, 0), "batch_size": 5},
    ],
    ids=["batch sampler", "subset", "distributed"],
)
def test_samplers_of_torch_are_read_and_replaced(tmp_path: Path, choice: dict[str, Any]) -> None:
    run = run_in(tmp_path)
    batches = epoch_of(run, run.loader(DataLoader(numbers(20), **choice)))
    assert [len(batch) for batch in batches] == [5, 5, 5, 5]
    assert sorted(chain(*batches)) == list(range(20))
    assert list(chain(*batches)) != list(range(20))


class Buckets:
    """A batch sampler of the user's, with batches of several sizes."""

    def __iter__(self) -> Iterator[list[int]]:
        batches = [[0, 1, 2], [3], [4, 5]]
        random.shuffle(batches)
        yield from batches

    def __len__(self) -> int:
        return 3


def test_a_batch_sampler_of_the_users_decides_the_batches(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    loader = run.loader(DataLoader(numbers(6), batch_sampler=Buckets()))
    assert sorted(epoch_of(run, loader)) == [[0, 1, 2], [3], [4, 5]]
    with pytest.raises(NotResumable, match="its batch sampler decides how large batches are; leave global_batch out"):
        run.loader(DataLoader(numbers(6), batch_sampler=Buckets()), global_batch=4)


class Unsteady:
    """A sampler whose order does not follow from any generator."""

    turns = 0

    def __iter__(self) -> Iterator[int]:
        Unsteady.turns += 1
        yield from (range(6) if Unsteady.turns % 2 else reversed(range(6)))

    def __len__(self) -> int:
        return 6


def test_a_sampler_that_changes_by_itself_is_refused(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    loader = run.loader(DataLoader(numbers(6), sampler=Unsteady()))
    with pytest.raises(NotResumable, match=r"Unsteady gives another order each time.*give it set_epoch\(epoch\)"):
        next(iter(loader))


class Plain(IterableDataset[int]):
    """An iterable dataset that says nothing about its place."""

    def __iter__(self) -> Iterator[int]:
        yield from range(10)


class Placed(Plain):
    """One that can be put back where it was."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < 10:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def test_an_iterable_dataset_without_a_place_is_refused_with_what_to_add(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    with pytest.raises(NotResumable, match=r"Plain cannot say where it is.*state_dict\(\).*`sampler`.*replay=True"):
        run.loader(DataLoader(Plain(), batch_size=3))
    with pytest.raises(NotResumable, match=r"Placed is read by 2 loader processes.*num_workers=1"):
        run.loader(DataLoader(Placed(), batch_size=3, num_workers=2))


@pytest.mark.parametrize(("dataset", "replay"), [(Plain, True), (Placed, False)])
def test_a_stream_goes_on_after_its_last_committed_batch(
    tmp_path: Path, dataset: type[IterableDataset[int]], replay: bool
) -> None:
    def stream(run: Run) -> Any:
        return run.loader(DataLoader(dataset(), batch_size=3), replay=replay)

    run = Run(tmp_path / "checkpoints", every=Every(steps=1, seconds=None))
    seen = []
    killed = iter(stream(run))
    for _ in range(3):
        seen.append(next(killed).tolist())
        run.step()
    run.close()
    again = Run(tmp_path / "checkpoints", every=NEVER)
    rest = []
    for batch in stream(again):
        rest.append(batch.tolist())
        again.step()
    assert seen + rest == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]


def test_batch_size_none_and_out_of_order_loading_are_refused(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    with pytest.raises(NotResumable, match="batch_size=None leaves batches to the dataset"):
        run.loader(DataLoader(numbers(6), batch_size=None))
    with pytest.raises(NotResumable, match="in_order=False"):
        run.loader(DataLoader(numbers(6), num_workers=1, in_order=False))


def test_a_checkpoint_of_another_dataset_is_refused_by_name(tmp_path: Path) -> None:
    run = Run(tmp_path / "checkpoints", every=Every(steps=1, seconds=None))
    loader = run.loader(DataLoader(numbers(10), batch_size=5))
    epoch_of(run, loader)
    run.close()
    again = run_in(tmp_path)
    with pytest.raises(WrongState, match="'loader0': the checkpoint is of length 10, and it is 12 now"):
        again.loader(DataLoader(numbers(12), batch_size=5))


def test_stop_ends_the_pass_and_a_later_start_goes_on_in_it(tmp_path: Path) -> None:
    def one_life(run: Run, stop_at: int) -> list[list[int]]:
        batches = []
        loader = run.loader(DataLoader(numbers(12), batch_size=2))
        for _ in run.epochs(1):
            for (batch,) in loader:
                batches.append(batch.tolist())
                run.step()
                if run.steps == stop_at:
                    run.stop()
        return batches

    first = one_life(run_in(tmp_path), 2)
    assert first == [[0, 1], [2, 3]]
    assert first + one_life(run_in(tmp_path), -1) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]


def test_an_epoch_without_a_step_is_refused_where_steps_are_counted(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    loader = run.loader(DataLoader(numbers(6), batch_size=3))
    with pytest.raises(Misused, match=r"an epoch of loader 'loader0' passed without run.step\(\)"):
        list(run.batches(loader, steps=10))


class Noisy(Dataset[Any]):
    """Draws from all three libraries and from a generator of its own."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng()

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return float(torch.rand(())), random.random(), float(np.random.rand()), float(self.generator.random())


@pytest.mark.parametrize("loader_processes", [0, 1, 2])
def test_random_numbers_of_samples_follow_from_their_position(tmp_path: Path, loader_processes: int) -> None:
    def drawn(batch_size: int, processes: int) -> list[Any]:
        run = Run(tmp_path / f"{batch_size}-{processes}", every=NEVER)
        loader = run.loader(DataLoader(Noisy(), batch_size=batch_size, num_workers=processes, collate_fn=list))
        return [sample for batch in loader for sample in batch]

    assert drawn(3, loader_processes) == drawn(4, 0)


def test_the_first_batch_of_a_dataset_that_draws_is_as_random_as_the_others(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    drawn = [sample for batch in run.loader(DataLoader(Noisy(), batch_size=3, collate_fn=list)) for sample in batch]
    assert len(set(drawn)) == 12


def test_what_the_dataset_draws_does_not_shift_the_training_process(tmp_path: Path) -> None:
    def main_draws(processes: int) -> list[float]:
        run = Run(tmp_path / f"{processes}", every=NEVER)
        return [float(torch.rand(())) for _ in run.loader(DataLoader(Noisy(), batch_size=3, num_workers=processes))]

    assert main_draws(0) == main_draws(2)


class Curious(Dataset[int]):
    """Looks at what a loader process knows of itself."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        info = get_worker_info()
        return int(info is not None and isinstance(info.dataset, Curious))


def test_a_loader_process_shows_the_users_dataset(tmp_path: Path) -> None:
    loader = run_in(tmp_path).loader(DataLoader(Curious(), batch_size=2, num_workers=1))
    assert [batch.tolist() for batch in loader] == [[1, 1]]


def test_persistent_loader_processes_begin_each_pass_where_it_must(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    loader = run.loader(DataLoader(numbers(8), batch_size=2, num_workers=1, persistent_workers=True))
    first = []
    for (batch,) in loader:
        first.append(batch.tolist())
        run.step()
        if len(first) == 2:
            break
    assert first + epoch_of(run, loader) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert epoch_of(run, loader) == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.slow
def test_a_loader_takes_at_most_a_hundred_bytes_of_a_checkpoint(tmp_path: Path) -> None:
    import json

    run = run_in(tmp_path)
    for _ in range(4):
        epoch_of(run, run.loader(DataLoader(numbers(10), sampler=SequentialSampler(range(10)), batch_size=5)))
    assert len(json.dumps(run.account.places())) <= 100
