"""What scripts of Lightning keep on each rank, or make anew in some epochs; MODE says which, KILL as in
`lightning_edges_script`.
"""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Any

import lightning.pytorch as pl  # type: ignore[import-not-found, unused-ignore]
import torch
from torch.utils.data import DataLoader

from elastic_agent.worker.loop.log import NAME
from support.resume.lightning_edges_script import Model, Numbers, Roots, end, fit, may_die, trainer_of
from support.resume.tools_script import RANK, RANKS, tell, used


class Tells(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            tell("warned", 0, record.getMessage(), [], [])


class Drawn(pl.LightningDataModule):  # type: ignore[misc, unused-ignore]
    """Makes its data anew each time that it is asked, of the epoch and of what it draws."""

    def train_dataloader(self) -> Any:
        epoch = torch.full((24,), float(self.trainer.current_epoch))
        data = torch.stack([torch.randperm(24) + torch.rand(24), epoch], 1)
        return DataLoader(list(data), 4 // RANKS, shuffle=True)  # type: ignore[arg-type]

    def val_dataloader(self) -> Any:
        return DataLoader(Numbers(18), 4 // RANKS)


def drawn() -> None:
    """Data of every second epoch."""
    trainer, model = trainer_of(reload_dataloaders_every_n_epochs=2, max_epochs=4), Model()
    trainer.fit(model, datamodule=Drawn())
    end(trainer, model)


class Apart(Roots):
    """Steps with every third batch, and reduces gradients then. Lightning leaves each rank its own statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.BatchNorm1d(4))

    def training_step(self, batch: torch.Tensor, number: int) -> None:
        used(self.current_epoch, number, batch)
        may_die(f"{self.current_epoch}:{number}")
        optimizer, steps = self.optimizers(), number % 3 == 2
        with contextlib.nullcontext() if steps else self.trainer.strategy.model.no_sync():
            self.manual_backward(self.loss(batch))
        if steps:
            optimizer.step()
            optimizer.zero_grad()


def apart() -> None:
    trainer, model = trainer_of(), Apart()
    fit(trainer, model)
    end(trainer, model)


def logged() -> None:
    trainer, model = trainer_of(), Model()
    fit(trainer, model)
    end(trainer, model)


class Diverging(Model):
    def on_train_epoch_start(self) -> None:
        with torch.no_grad():
            self.head.bias.add_(float(RANK))


def diverging() -> None:
    """Ranks train models that differ."""
    trainer, model = trainer_of(max_epochs=1), Diverging()
    fit(trainer, model)
    end(trainer, model)


class Both(Model):
    def training_step(self, batch: Any, number: int) -> torch.Tensor | None:
        return super().training_step(torch.cat([batch["one"], batch["other"]]), number)


def both() -> None:
    """Two loaders, of which the second has a last batch that two ranks do not divide."""
    trainer, model = trainer_of(max_epochs=1), Both()
    loaders = {"one": DataLoader(Numbers(24), 4 // RANKS), "other": DataLoader(Numbers(23), 4 // RANKS)}
    fit(trainer, model, loaders)


def pruned() -> None:
    from lightning.pytorch.callbacks import ModelPruning  # type: ignore[import-not-found, unused-ignore]

    trainer, model = trainer_of(ModelPruning("l1_unstructured", amount=0.3)), Model()
    fit(trainer, model)
    end(trainer, model)


if __name__ == "__main__":
    logging.getLogger(NAME).addHandler(Tells())
    globals()[os.environ["MODE"]]()
