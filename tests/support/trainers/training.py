"""Creators and operators of trainers under test: a small classifier whose every batch can be looked at."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from elastic_agent.trainer import BATCH_SIZE, TrainingOperator
from support.trainers.reports import tell

SAMPLES = 250
SEEN = "seen"
"""Key of the config: a directory to which each worker writes the samples that it trains on."""
IMPORTED_BY = os.getpid()
"""The process that imported this module: an earlier one in a worker that was forked with it."""
TELLS = "tells"
"""Key of the config: a `Reports` that gets process, pass and batch of each batch as it begins."""
HELD = "held"
"""Key of the config: a file. One worker removes it, the first to come to a pass and batch that it names, and stands
still there until it is killed. It tells process, pass and batch once more, and that it is held."""


def make_model(config: dict[str, Any]) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))


def note_type(module: Any, given: Any, made: torch.Tensor) -> None:
    """A forward hook: which type this layer computes in."""
    module.computed_in = str(made.dtype)


def make_noting_model(config: dict[str, Any]) -> nn.Module:
    model = make_model(config)
    next(iter(model.children())).register_forward_hook(note_type)
    return model


def types_of(operator: TrainingOperator) -> list[str]:
    """What the layers that note it computed in last."""
    return [each.computed_in for model in operator.models for each in model.modules() if hasattr(each, "computed_in")]


def make_plain_model(config: dict[str, Any]) -> nn.Module:
    """Without dropout, and the same in every process: what is learned depends on the data alone."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def make_set(samples: int = SAMPLES) -> TensorDataset:
    x = torch.randn(samples, 4, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, (x.sum(1) > 0).long(), torch.arange(samples))


class Pairs(Dataset[tuple[torch.Tensor, ...]]):
    """Features and target, without the number."""

    def __init__(self, samples: int = SAMPLES) -> None:
        self._all = make_set(samples)

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, at: int) -> tuple[torch.Tensor, ...]:
        x, y, _ = self._all[at]
        return x, y


def make_data(config: dict[str, Any]) -> tuple[DataLoader[Any], DataLoader[Any]]:
    batch = config[BATCH_SIZE]
    return DataLoader(Pairs(), batch_size=batch, shuffle=True), DataLoader(Pairs(101), batch_size=batch)


def make_numbered_data(config: dict[str, Any]) -> DataLoader[Any]:
    return DataLoader(make_set(), batch_size=config[BATCH_SIZE], shuffle=True)


def make_optimizer(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=config.get("lr", 1e-2))


def make_counting_optimizer(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    """Knows how many modules its making has imported."""
    before = len(sys.modules)
    made: Any = make_optimizer(model, config)
    made.imported = len(sys.modules) - before
    return made  # type: ignore[no-any-return]


def imports(operator: TrainingOperator) -> list[Any]:
    """Whether this worker has imported this module itself, and how many modules its optimizer needed."""
    return [os.getpid() == IMPORTED_BY, operator.optimizer.imported]


def make_descent(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    """Moves by the gradient as it is, so that a wrong scale of it shows in the weights."""
    return torch.optim.SGD(model.parameters(), lr=0.5)


def make_scheduler(optimizer: torch.optim.Optimizer, config: dict[str, Any]) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)


class Watched(TrainingOperator):
    """Writes what it trains on, and does on its way what the config says."""

    def setup(self, config: dict[str, Any]) -> None:
        self.mine = 0

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        x, y, numbers = batch
        path = os.path.join(self.config[SEEN], f"{os.getpid()}")
        kept = numbers.tolist() if batch_info["weight"] else []
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps([self.epoch, batch_info["batch_idx"], kept]) + "\n")
        if TELLS in self.config:
            tell(self.config[TELLS], [os.getpid(), self.epoch, batch_info["batch_idx"]])
        if HELD in self.config:
            self._hold(batch_info["batch_idx"])
        self.mine += 1
        if "fails" in self.config and batch_info["batch_idx"] == 3 and self.world_rank == 1:
            raise ValueError(self.config["fails"])
        return super().train_batch((x, y), batch_info)

    def _hold(self, batch: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            with open(self.config[HELD], encoding="utf-8") as file:
                if json.load(file) != [self.epoch, batch]:
                    return
            os.unlink(self.config[HELD])
            tell(self.config[TELLS], [os.getpid(), self.epoch, batch, "held"])
            while True:
                signal.pause()

    def state_dict(self) -> dict[str, Any]:
        return {"mine": self.mine}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mine = state["mine"]


class Pair(TrainingOperator):
    """Two models and two optimizers, registered in `setup`; batches are two tensors, too."""

    def setup(self, config: dict[str, Any]) -> None:
        models = [nn.Linear(4, 2), nn.Linear(4, 2)]
        for model in models:
            model.register_forward_hook(note_type)
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
        schedulers = [torch.optim.lr_scheduler.StepLR(each, step_size=1, gamma=0.5) for each in optimizers]
        self.register(models=models, optimizers=optimizers, criterion=nn.CrossEntropyLoss(), schedulers=schedulers)
        self.register_data(train_loader=Pairs(), validation_loader=Pairs(101))

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        x, y = batch
        losses = []
        for model, optimizer in zip(self.models, self.optimizers, strict=True):
            with self.timers.record("guess"):
                loss = self.criterion(model(x), y)
            optimizer.zero_grad()
            self.backward(loss)
            self.step(optimizer)
            losses.append(loss.item())
        return {"first_loss": losses[0], "second_loss": losses[1]}


class Both(Pair):
    """The same, of what creators return."""

    def setup(self, config: dict[str, Any]) -> None:
        return


def rates_of(operator: TrainingOperator) -> list[float]:
    """Learning rates, by optimizer."""
    return [float(each.param_groups[0]["lr"]) for each in operator.optimizers]


CREATORS: dict[str, Any] = {
    "model_creator": make_model,
    "data_creator": make_data,
    "optimizer_creator": make_optimizer,
    "loss_creator": nn.CrossEntropyLoss,
    "use_gpu": False,
}
"""A trainer of these, on the CPU."""
TWO_WORKERS: dict[str, Any] = {**CREATORS, "config": {BATCH_SIZE: 25}, "num_workers": 2}
