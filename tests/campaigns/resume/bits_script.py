"""The training script of the campaign of digests: what makes the bits of a model depend on how it is trained."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, default_collate

from elastic_agent.worker.run import Run

SHARDS = 8
WIDTH = 6


@dataclass(frozen=True)
class Training:
    """One script."""

    seed: int
    samples: int
    batch: int
    """Global; the last one of an epoch is smaller where it does not divide the samples."""
    epochs: int
    save_steps: int
    norm: bool
    """BatchNorm: shards of one sample are not possible then."""
    dropout: bool
    noise: bool
    """In the dataset and in the collation."""
    unused: bool
    """A branch that only some samples pass, so that some shards give it no gradient."""
    iterable: bool
    optimizer: str
    validation: bool


def draw_training(rng: random.Random, seed: int) -> Training:
    """A random script."""
    norm = rng.random() < 0.4
    batch = rng.choice([16, 32, 24]) if norm else rng.randint(3, 40)
    samples = batch * rng.randint(1, 3) if norm else rng.randint(batch, 90)
    names = ("dropout", "noise", "unused", "iterable", "validation")
    flags = {name: rng.random() < 0.5 for name in names}
    kind = rng.choice(["SGD", "AdamW", "Adagrad"])
    epochs, save_steps = rng.randint(2, 3), rng.randint(1, 4)
    return Training(seed, samples, batch, epochs, save_steps, norm, optimizer=kind, **flags)


class Points(Dataset[Any]):
    def __init__(self, training: Training) -> None:
        self._training = training
        made = torch.Generator().manual_seed(training.seed)
        self._x = torch.randn(training.samples, WIDTH, generator=made)
        self._y = torch.randn(training.samples, 1, generator=made)

    def __len__(self) -> int:
        return self._training.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = self._x[index]
        if self._training.noise:
            x = x + 0.1 * torch.randn(WIDTH) * random.random() * float(np.random.random_sample())
        return x, self._y[index]


class Streamed(IterableDataset[Any]):
    """The same, as an iterable dataset that exposes its sampler."""

    def __init__(self, points: Points) -> None:
        self.points = points
        self.sampler: Any = RandomSampler(points)

    def __len__(self) -> int:
        return len(self.points)

    def __iter__(self) -> Any:
        for index in self.sampler:
            yield self.points[index]


class Mixed:
    """A collation that draws: mixup."""

    def __call__(self, samples: list[Any]) -> Any:
        x, y = default_collate(samples)
        share, other = torch.rand(()), torch.randperm(len(x))
        return x * share + x[other] * (1 - share), y * share + y[other] * (1 - share)


class Net(nn.Module):
    def __init__(self, training: Training) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 16)
        self.norm = nn.BatchNorm1d(16) if training.norm else nn.Identity()
        self.dropout = nn.Dropout(0.3 if training.dropout else 0.0)
        self.branch = nn.Linear(WIDTH, 1) if training.unused else None
        self.last = nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.last(self.dropout(torch.relu(self.norm(self.first(x)))))
        if self.branch is not None and float(x.detach()[0, 0]) > 0.8:
            y = y + self.branch(x)
        return torch.as_tensor(y)


def train(
    training: Training, directory: str, every: Any, loader_processes: int, prepare: Callable[[Run], None]
) -> tuple[Run, str]:
    """The script, from its top to its end: the run, and its digest."""
    torch.manual_seed(training.seed)
    net = Net(training)
    optimizer = getattr(torch.optim, training.optimizer)(net.parameters(), lr=0.01)
    run = Run(directory, seed=training.seed, every=every, shards=SHARDS, model=net, optimizer=optimizer)
    prepare(run)
    points = Points(training)
    data: Any = Streamed(points) if training.iterable else points
    more: dict[str, Any] = {"collate_fn": Mixed()} if training.noise else {}
    more |= {} if training.iterable else {"shuffle": True}
    loader = run.loader(
        DataLoader(data, batch_size=4, num_workers=loader_processes, **more), global_batch=training.batch
    )
    held_out = run.loader(DataLoader(points, batch_size=4), global_batch=training.batch)
    for _ in run.epochs(training.epochs):
        net.train()
        for batch in loader:
            optimizer.zero_grad()
            for x, y in run.shards(batch):
                ((net(x) - y) ** 2).sum().backward()
            with torch.no_grad():
                for parameter in net.parameters():
                    # Langevin: noise that every rank draws alike, outside of shards.
                    if parameter.grad is not None:
                        parameter.grad += 0.01 * torch.randn(parameter.shape)
            optimizer.step()
            run.step()
        if training.validation:
            net.eval()
            with torch.no_grad():
                for batch in held_out:
                    for x, y in run.shards(batch):
                        run.mean("loss").update(((net(x) - y) ** 2).mean(), len(x))
    return run, run.digest()
