"""A training script of Lightning's that does not import elastic-agent; SIGKILL ends it where KILL says.

Writes what it saw to the file SEEN.<rank>, a line of JSON each: batches with their samples and draws, what callbacks
find at the end of an epoch, and the parameters at the end of the training.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import random
import signal
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

pl: Any = importlib.import_module(os.environ.get("PACKAGE", "lightning.pytorch"))
torchmetrics: Any = importlib.import_module("torchmetrics")

SEEN = open(f"{os.environ['SEEN']}.{os.environ.get('RANK', '0')}", "a")  # noqa: SIM115 - until the kill
KILL = os.environ.get("KILL", "")


def tell(kind: str, *what: Any) -> None:
    SEEN.write(json.dumps([kind, *what]) + "\n")
    SEEN.flush()
    if KILL and f"{':'.join([kind, *map(str, what[:3])])}:".startswith(KILL + ":"):
        try:
            os.close(os.open(f"{os.environ['SEEN']}.{KILL}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return  # once
        os.kill(os.getpid(), signal.SIGKILL)


class Numbers(Dataset):  # type: ignore[type-arg]
    """Each sample: its index, and a draw of each of three libraries."""

    def __init__(self, count: int, first: int = 0) -> None:
        self.count, self.first = count, first

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        draws = [float(torch.rand(())), random.random(), float(np.random.rand())]
        return torch.tensor([self.first + index, *draws], dtype=torch.float64)


class Model(pl.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(3, 8), torch.nn.Dropout(float(os.environ.get("DROPOUT", "0.25"))), torch.nn.Linear(8, 1)
        ).double()
        self.error = torchmetrics.MeanSquaredError()

    def loss(self, batch: Any) -> Any:
        return ((self.net(batch[:, 1:]).squeeze(1) - batch[:, 0] / 64) ** 2).mean()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        both = torch.cat(list(batch.values())) if isinstance(batch, dict) else batch
        tell("train", self.current_epoch, batch_idx, self.global_step, both.tolist())
        loss = self.loss(both)
        self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        if batch_idx % 5 == 1:
            self.log("seldom", loss, on_step=False, on_epoch=True, reduce_fx="max", sync_dist=True)
        self.error(both[:, 1].float(), both[:, 2].float())
        self.log("error", self.error, on_epoch=True, on_step=False)
        return loss

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        tell("val", self.global_step, dataloader_idx, batch_idx, batch.tolist())
        self.log("val", self.loss(batch), on_epoch=True, sync_dist=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)}


class Watch(pl.Callback):  # type: ignore[misc]
    """A callback with a state of its own."""

    def __init__(self) -> None:
        self.batches = 0

    def on_train_batch_start(self, *_: Any) -> None:
        self.batches += 1

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.found(trainer, "epoch")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self.found(trainer, "validated")

    def found(self, trainer: Any, what: str) -> None:
        found = {name: float(value) for name, value in trainer.callback_metrics.items()}
        if trainer.global_rank == 0:
            tell(what, trainer.current_epoch, trainer.global_step, self.batches, found)

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.batches = state["batches"]


def main() -> None:
    pl.seed_everything(3, verbose=False)
    ranks, processes = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("PROCESSES", "0"))
    batch = 12 // ranks
    options = json.loads(os.environ.get("TRAINER", "{}"))
    train: Any = DataLoader(Numbers(100), batch_size=batch, shuffle=True, num_workers=processes)
    if os.environ.get("TWO"):
        train = {"a": train, "b": DataLoader(Numbers(40, 1000), batch_size=batch, shuffle=True)}
    validation = [
        DataLoader(Numbers(36, 2000), batch_size=batch, num_workers=processes),
        DataLoader(Numbers(48, 3000), batch_size=batch),
    ]
    trainer = pl.Trainer(
        accelerator="cpu", devices=ranks, strategy="ddp" if ranks > 1 else "auto", max_epochs=3, logger=False,
        callbacks=[Watch()], enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        **options,
    )  # fmt: skip
    model = Model()
    trainer.fit(model, train, validation)
    digest = hashlib.sha256(b"".join(held.detach().numpy().tobytes() for held in model.parameters())).hexdigest()
    tell("end", trainer.current_epoch, trainer.global_step, digest, [held.tolist() for held in model.parameters()])


if __name__ == "__main__":
    main()
