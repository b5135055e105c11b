"""Draws of datasets and collations: the same after a restart, on a CUDA device too."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    Subset,
    TensorDataset,
)

from elastic_agent.worker import Every, Run
from elastic_agent.worker.data import randomness
from elastic_agent.worker.data.randomness import Draws, generators_in
from support.rigs.data_kinds import NEVER

pytestmark = [
    pytest.mark.leaves_behind("torch handles SIGCHLD from the first loader process on"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


class Transformed(Dataset[Any]):
    """Holds its generators where users put them."""

    def __init__(self, transform: Callable[[int], Any]) -> None:
        self.transforms = {"train": [transform]}

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return self.transforms["train"][0](index)


class Jitter:
    """A transform with a generator of its own."""

    def __init__(self) -> None:
        self.generator = torch.Generator()
        self.generator.seed()

    def __call__(self, index: int) -> float:
        return float(torch.rand((), generator=self.generator))

    def shift(self, index: int) -> float:
        return float(torch.rand((), generator=self.generator))


class Late(Jitter):
    """Makes its generator when it is first called, from a seed of its own."""

    def __init__(self) -> None:
        self.late: torch.Generator | None = None

    def __call__(self, index: int) -> float:
        self.late = self.late or torch.Generator().manual_seed(3)
        return float(torch.rand((), generator=self.late))


def noise(generator: random.Random, index: int) -> float:
    return generator.random()


GENERATOR = np.random.default_rng()


class Named:
    """Uses a generator of its module by name, in a function that it calls."""

    def __call__(self, index: int) -> float:
        return [jitter() for _ in range(2)][1]


def jitter() -> float:
    return float(GENERATOR.random())


def closed_over() -> Callable[[int], float]:
    generator = random.Random()
    return lambda index: generator.random()


@pytest.mark.parametrize(
    "transform",
    [Jitter, Late, lambda: functools.partial(noise, random.Random()), lambda: Jitter().shift, closed_over, Named],
    ids=["transform in a list in a dict", "made when it is first called", "partial", "bound method", "closure", "name"],
)
def test_generators_that_the_dataset_holds_follow_from_the_samples_place(
    tmp_path: Path, transform: Callable[[], Any]
) -> None:
    def drawn(batch: int) -> list[Any]:
        run = Run(tmp_path / f"{batch}", every=NEVER)
        data = Subset(Transformed(transform()), range(8))
        loader = run.loader(DataLoader(data, batch_size=batch, collate_fn=list, shuffle=True))
        return [sample for batch in loader for sample in batch]

    assert drawn(2) == drawn(8)
    assert len(set(drawn(4))) == 8


def test_a_long_list_of_samples_is_not_searched_for_generators() -> None:
    assert generators_in([[torch.Generator()] * 65, {number: torch.Generator() for number in range(65)}]) == []
    assert len(generators_in({"a": [torch.Generator()]})) == 1


class Mixing:
    """A collation that draws, as mixup does."""

    def __call__(self, samples: list[Any]) -> Any:
        return [int(sample[0]) for sample in samples], float(np.random.beta(0.4, 0.4)), float(torch.rand(()))


@pytest.mark.parametrize("processes", [0, 2])
def test_a_collation_that_draws_draws_the_same_after_a_restart(tmp_path: Path, processes: int) -> None:
    def epoch(where: str, count: int, until: int) -> list[Any]:
        run = Run(tmp_path / where, every=Every(steps=1, seconds=None))
        data = TensorDataset(torch.arange(24))
        loader = run.loader(DataLoader(data, batch_size=4, shuffle=True, num_workers=count, collate_fn=Mixing()))
        seen, batches = [], iter(loader)
        for _ in range(until):
            seen.append(next(batches))
            run.step()
        run.close()
        return seen

    whole = epoch("whole", 0, 6)
    assert epoch(f"parts{processes}", processes, 2) + epoch(f"parts{processes}", 0, 4) == whole
    assert len({drawn for _, drawn, _ in whole}) == 6


class OneDevice:
    """Stands for CUDA with one device: its generator is one for the CPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.generator = torch.Generator()
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "default_generators", (self.generator,))
        monkeypatch.setattr(torch.cuda, "manual_seed_all", self.generator.manual_seed)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[OneDevice]:
    kept, randomness.FURTHER[:] = randomness.FURTHER[:], [randomness.Cuda()]
    monkeypatch.setattr(randomness, "LIBRARIES", (*randomness.LIBRARIES[:3], *randomness.FURTHER))
    yield OneDevice(monkeypatch)
    randomness.FURTHER[:] = kept


def test_draws_on_a_cuda_device_are_found_and_keyed(device: OneDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """The logic without a device; not run on one."""
    monkeypatch.setattr(randomness, "LIBRARIES", (randomness.Cuda(),))
    draws = Draws(always=False, held=(), on_sample=None)
    draws.park()
    assert not draws.found_more()
    draws.park()
    torch.rand((), generator=device.generator)
    assert draws.found_more()
    draws.key_sample(7)
    first = float(torch.rand((), generator=device.generator))
    draws.key_sample(7)
    assert float(torch.rand((), generator=device.generator)) == first
    assert draws.keyed


def test_the_training_process_draws_the_same_on_a_cuda_device_after_a_restart(
    device: OneDevice, tmp_path: Path
) -> None:
    def main_draws(where: str) -> list[float]:
        run = Run(tmp_path / where, every=NEVER)
        loader = run.loader(DataLoader(TensorDataset(torch.arange(8)), batch_size=4))
        return [float(torch.rand((), generator=device.generator)) for _ in loader]

    first = main_draws("one")
    torch.rand(5, generator=device.generator)
    assert main_draws("two") == first
    assert len(set(first)) == 2
