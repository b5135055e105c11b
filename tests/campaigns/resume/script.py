"""The training script of the campaign: loops of several forms over datasets that draw random numbers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, Sampler, WeightedRandomSampler

from elastic_agent.worker.run import Run

from .schedule import Loading, Schedule

Record = Callable[[str, int, list[Any], float], None]
"""Called for each batch: loader, steps done, the samples with what they drew, the batch's weight."""


class Samples(Dataset[Any]):
    """Each sample is its index and the random numbers drawn for it."""

    def __init__(self, loading: Loading) -> None:
        self.loading = loading
        self.generator = torch.Generator()

    def __len__(self) -> int:
        return self.loading.samples

    def __getitem__(self, index: int) -> tuple[int, tuple[float, ...]]:
        return index, tuple(self._draw())

    def _draw(self) -> Iterator[float]:
        draws = self.loading.draws
        if draws in ("torch", "all"):
            yield float(torch.rand(()))
        if draws in ("random", "all"):
            yield random.random()
        if draws in ("numpy", "all"):
            yield float(np.random.random_sample())
        if draws in ("own generator", "all"):
            yield float(torch.rand((), generator=self.generator))


class Streamed(IterableDataset[Any]):
    """The same, as an iterable dataset that exposes its sampler."""

    def __init__(self, loading: Loading) -> None:
        self.samples = Samples(loading)
        self.sampler: Any = RandomSampler(self.samples)

    def __len__(self) -> int:
        return len(self.samples)

    def __iter__(self) -> Iterator[Any]:
        for index in self.sampler:
            yield self.samples[index]


class EveryOther(Sampler[int]):
    """A sampler of the user's: the even indices shuffled, then the odd ones."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        even, odd = list(range(0, self.count, 2)), list(range(1, self.count, 2))
        random.shuffle(even)
        yield from even
        yield from odd

    def __len__(self) -> int:
        return self.count


def dataloader(loading: Loading, loader_processes: int, persistent: bool = False) -> DataLoader[Any]:
    """The DataLoader of this description."""
    samples = Samples(loading)
    weights = [1.0 + index % 3 for index in range(loading.samples)]
    choice: dict[str, dict[str, Any]] = {
        "shuffled": {"shuffle": True},
        "in order": {},
        "weighted": {"sampler": WeightedRandomSampler(weights, loading.samples)},
        "with replacement": {"sampler": RandomSampler(samples, replacement=True)},
        "own sampler": {"sampler": EveryOther(loading.samples)},
        "iterable": {},
    }
    data: Any = Streamed(loading) if loading.order == "iterable" else samples
    return DataLoader(
        data,
        batch_size=4,
        drop_last=loading.drop_last,
        collate_fn=list,
        num_workers=loader_processes,
        persistent_workers=persistent and loader_processes > 0,
        **choice[loading.order],
    )


def train(run: Run, schedule: Schedule, loader_processes: int, record: Record) -> None:
    """The script, from its top to its end."""
    loaders = [
        run.loader(dataloader(loading, loader_processes, schedule.persistent), global_batch=loading.batch)
        for loading in schedule.loaders
    ]

    def see(loader: Any, batch: list[Any]) -> None:
        main = (float(torch.rand(())), random.random(), float(np.random.random_sample()))
        record(loader.name, run.steps, [*batch, ("main", main)], loader.weight)

    LOOPS[schedule.shape](run, schedule, loaders, see)


See = Callable[[Any, Any], None]


def _epochs(run: Run, schedule: Schedule, loaders: list[Any], see: See) -> None:
    for _ in run.epochs(schedule.epochs):
        for batch in loaders[0]:
            see(loaders[0], batch)
            run.step()


def _epochs_with_validation(run: Run, schedule: Schedule, loaders: list[Any], see: See) -> None:
    for _ in run.epochs(schedule.epochs):
        for batch in loaders[0]:
            see(loaders[0], batch)
            run.step()
        with torch.no_grad():
            for batch in loaders[1]:
                see(loaders[1], batch)


def _validation_inside(run: Run, schedule: Schedule, loaders: list[Any], see: See) -> None:
    for _ in run.epochs(schedule.epochs):
        for batch in loaders[0]:
            see(loaders[0], batch)
            run.step()
            if run.steps % 5 == 0:
                with torch.no_grad():
                    for held_out in loaders[1]:
                        see(loaders[1], held_out)


def _zipped(run: Run, schedule: Schedule, loaders: list[Any], see: See) -> None:
    for _ in run.epochs(schedule.epochs):
        for first, second in zip(loaders[0], loaders[1], strict=False):
            see(loaders[0], first)
            see(loaders[1], second)
            run.step()


def _nested(run: Run, schedule: Schedule, loaders: list[Any], see: See) -> None:
    for _ in run.epochs(schedule.epochs):
        for outer in loaders[0]:
            see(loaders[0], outer)
            for inner in loaders[1]:
                see(loaders[1], inner)
                run.step()


def _cycled(run: Run, schedule: Schedule, loaders: list[Any], see: See) -> None:
    for batch in run.batches(loaders[0], steps=20 * schedule.epochs):
        see(loaders[0], batch)
        run.step()


LOOPS: dict[str, Callable[[Run, Schedule, list[Any], See], None]] = {
    "epochs": _epochs,
    "epochs_with_validation": _epochs_with_validation,
    "validation_inside": _validation_inside,
    "zipped": _zipped,
    "nested": _nested,
    "cycled": _cycled,
}
