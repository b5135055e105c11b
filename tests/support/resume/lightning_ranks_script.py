"""What scripts of Lightning make anew in some epochs; MODE says which, KILL as in
`lightning_edges_script`.
"""

from __future__ import annotations

import os
from typing import Any

import lightning.pytorch as pl  # type: ignore[import-not-found, unused-ignore]
import torch
from torch.utils.data import DataLoader

from support.resume.lightning_edges_script import Model, Numbers, end, trainer_of
from support.resume.tools_script import RANKS


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


if __name__ == "__main__":
    globals()[os.environ["MODE"]]()
