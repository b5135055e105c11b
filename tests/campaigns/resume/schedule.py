"""A random training script, and when it is killed and started again with how many ranks and loader processes."""

from __future__ import annotations

import random
from dataclasses import dataclass

SHAPES = ("epochs", "epochs_with_validation", "validation_inside", "zipped", "nested", "cycled")
"""Forms of the loop; see `script`."""
DRAWS = ("nothing", "torch", "random", "numpy", "own generator", "all")
"""What the dataset draws its random numbers from."""


@dataclass(frozen=True)
class Loading:
    """One DataLoader."""

    samples: int
    batch: int
    """Global."""
    order: str
    """shuffled, in order, weighted, with replacement, own sampler, own batches, iterable."""
    draws: str
    drop_last: bool = False


@dataclass(frozen=True)
class Life:
    """One start of the script, up to the step after whose commit it is killed; None: to the end."""

    ranks: int
    loader_processes: int
    until: int | None


@dataclass(frozen=True)
class Schedule:
    """One trial."""

    seed: int
    shape: str
    loaders: tuple[Loading, ...]
    epochs: int
    save_steps: int
    lives: tuple[Life, ...]
    persistent: bool = False
    """Whether loader processes outlive an epoch."""


def draw(seed: int, most_ranks: int = 8, most_processes: int = 0) -> Schedule:
    """The schedule of this seed."""
    rng = random.Random(seed)
    shape = rng.choice(SHAPES)
    loaders = tuple(_loading(rng, shape, number) for number in range(1 if shape in ("epochs", "cycled") else 2))
    lives = [
        Life(rng.randint(1, most_ranks), rng.randint(0, most_processes), rng.randint(1, 40))
        for _ in range(rng.randint(1, 4))
    ]
    last = Life(rng.randint(1, most_ranks), rng.randint(0, most_processes), None)
    epochs, save_steps = rng.randint(1, 3), rng.randint(1, 6)
    return Schedule(seed, shape, loaders, epochs, save_steps, (*lives, last), persistent=rng.random() < 0.5)


def _loading(rng: random.Random, shape: str, number: int) -> Loading:
    orders = ["shuffled", "shuffled", "in order", "weighted", "with replacement", "own sampler", "iterable"]
    order = rng.choice(orders)
    batch = rng.randint(1, 16)
    samples = rng.randint(1, 6) if shape == "nested" and number else rng.randint(1, 60)
    drop_last = rng.random() < 0.2 and samples >= batch
    return Loading(samples, batch, order, rng.choice(DRAWS), drop_last)
