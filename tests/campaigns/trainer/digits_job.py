"""The digits CNN as a trainer's creators and as a plain DDP script, which is what both are compared by."""

from __future__ import annotations

import itertools
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from support.trainers.reports import tell

PASSES = 1
BATCH = 64


def make_model(config: dict[str, Any]) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def make_set() -> TensorDataset:
    """1,408 images: 22 batches of 64, of which two workers get 32 each."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    return TensorDataset(x[:1408], torch.tensor(labels)[:1408])


def make_data(config: dict[str, Any]) -> DataLoader[Any]:
    return DataLoader(make_set(), batch_size=config["*batch_size"], shuffle=True)


def make_optimizer(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-3)


def plain(folder: str) -> None:
    """A DDP script. Where `folder` has pipes for it (`pairs.py`), it makes a pass whenever it is told to, and says what
    the pass took; else its first rank writes to a file there when its first batch began."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = make_set()
    sampler: DistributedSampler[Any] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH // dist.get_world_size(), sampler=sampler)
    model = DistributedDataParallel(make_model({}))
    optimizer, criterion = make_optimizer(model, {}), nn.CrossEntropyLoss()
    rank, ended_s = dist.get_rank(), time.process_time()
    go = os.path.join(folder, f"go{rank}")
    told = open(go, encoding="utf-8") if os.path.exists(go) else None  # noqa: SIM115 - until the process ends
    if told is None and rank == 0:
        with open(os.path.join(folder, "first"), "w", encoding="utf-8") as file:
            file.write(str(time.time()))
    for epoch in itertools.count():
        if epoch == PASSES if told is None else "go" not in told.readline():
            break
        began_s = time.perf_counter()
        sampler.set_epoch(epoch)
        total = 0.0
        for x, y in loader:
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(x)
        now_s = time.process_time()
        if told is not None:
            tell(os.path.join(folder, "told"), [time.perf_counter() - began_s, now_s - ended_s])
        ended_s = now_s
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    plain(sys.argv[1])
