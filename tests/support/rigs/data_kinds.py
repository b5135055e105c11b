"""Datasets beyond a plain map-style one, and loops over them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    get_worker_info,
)

from elastic_agent.worker import Every, Run

NEVER = Every(seconds=None)
SAMPLES = 61


class Dividing(IterableDataset[Any]):
    """Divides itself by `get_worker_info()`, unevenly, and draws a random number for each sample."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng()
        self.given = 0

    def mine(self) -> list[int]:
        info = get_worker_info()
        number, count = (info.id, info.num_workers) if info is not None else (0, 1)
        bounds = [SAMPLES * turn * turn // (count * count) for turn in range(count + 1)]
        return list(range(bounds[number], bounds[number + 1]))

    def __iter__(self) -> Iterator[Any]:
        for index in self.mine():
            yield index, float(torch.rand(())), random.random(), float(self.generator.random())


class Sampled(IterableDataset[Any]):
    """Exposes its sampler, has no length, and draws from the global generators."""

    def __init__(self) -> None:
        self.sampler: Any = RandomSampler(range(SAMPLES))

    def __iter__(self) -> Iterator[Any]:
        for index in self.sampler:
            yield index, float(torch.rand(())), random.random(), float(np.random.random_sample())


class Stateful(Dividing):
    """The same, and can say where it is."""

    reads = 0

    def __iter__(self) -> Iterator[Any]:
        while self.given < len(self.mine()):
            self.given += 1
            Stateful.reads += 1
            yield self.mine()[self.given - 1], float(torch.rand(())), random.random(), float(self.generator.random())
        self.given = 0

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given = state["given"]


def life(path: Path, dataset: Any, processes: int, until: int | None, **more: Any) -> list[Any]:
    """One start of a script that reads two epochs; killed after `until` steps."""
    run = Run(path, every=Every(steps=1, seconds=None))
    given: dict[str, Any] = {"num_workers": processes, "batch_size": 4, "collate_fn": list}
    loader = run.loader(DataLoader(dataset, **given), **more)
    seen: list[Any] = []
    for _ in run.epochs(2):
        for batch in loader:
            seen.append(batch)
            run.step()
            if len(seen) == until:
                # The step belongs to a checkpoint once the loop has asked again; so it does not here.
                run.account.between_steps()
                run._between(force=True)
                run._persistence.wait()
                return seen
    return seen
