"""Loops at level `bits` in one process: their points, their model, and what they have trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from elastic_agent.worker import Every, Run

NEVER = Every(seconds=None)


def points(count: int) -> TensorDataset:
    made = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(count, 3, generator=made), torch.randn(count, 1, generator=made))


def run_in(path: Path, shards: int | None = 4, **more: Any) -> Run:
    return Run(path / "checkpoints", every=NEVER, shards=shards, **more)


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 1)


def loss_sum(net: nn.Module, part: Any) -> torch.Tensor:
    x, y = part
    return nn.functional.mse_loss(net(x), y, reduction="sum")


def trained(path: Path, net: nn.Module, body: Callable[[Run, Any], None], count: int = 16, batch: int = 16) -> Run:
    """One epoch, each batch handed to `body`, with a step after it."""
    run = run_in(path, model=net)
    loader = run.loader(DataLoader(points(count), batch_size=4), global_batch=batch)
    for part in loader:
        body(run, part)
        run.step()
    return run
