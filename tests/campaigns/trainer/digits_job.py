"""The digits CNN as a trainer's creators and as a plain DDP script, which is what both are compared by."""

from __future__ import annotations

import json
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

PASSES = 12
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


def plain() -> None:
    """A DDP script; its first rank writes when it was started, when its first batch began, and how long passes took."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = make_set()
    sampler: DistributedSampler[Any] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH // dist.get_world_size(), sampler=sampler)
    model = DistributedDataParallel(make_model({}))
    optimizer, criterion = make_optimizer(model, {}), nn.CrossEntropyLoss()
    first_s, took = time.time(), []
    for epoch in range(PASSES):
        began_s = time.perf_counter()
        sampler.set_epoch(epoch)
        total = 0.0
        for x, y in loader:
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(x)
        took.append(time.perf_counter() - began_s)
    if dist.get_rank() == 0:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            json.dump({"first_s": first_s, "took_s": took}, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    plain()
