"""A DCGAN that draws digits, with two models and two optimizers: `python examples/trainer/dcgan.py samples.png`.

Several models need an operator: it registers them in `setup`, and says what a batch does to them.
"""

from __future__ import annotations

import argparse
import struct
import zlib
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from elastic_agent.trainer import BATCH_SIZE, TorchTrainer, TrainingOperator

NOISE = 32


class Generator(nn.Sequential):
    """Noise -> an image of 8 x 8."""

    def __init__(self) -> None:
        super().__init__(
            nn.ConvTranspose2d(NOISE, 64, 2), nn.BatchNorm2d(64), nn.ReLU(),
            nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.ConvTranspose2d(32, 1, 4, 2, 1), nn.Tanh(),
        )  # fmt: skip


class Discriminator(nn.Sequential):
    """An image -> how likely it is a real one, before the sigmoid."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 32, 4, 2, 1), nn.LeakyReLU(0.2),
            nn.Conv2d(32, 64, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(256, 1),
        )  # fmt: skip


class Drawing(TrainingOperator):
    """Trains both against each other."""

    def setup(self, config: dict[str, Any]) -> None:
        models = [Generator(), Discriminator()]
        optimizers = [torch.optim.Adam(model.parameters(), lr=config["lr"], betas=(0.5, 0.999)) for model in models]
        self.register(models=models, optimizers=optimizers, criterion=nn.BCEWithLogitsLoss())
        images = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 8 - 1
        self.register_data(train_loader=DataLoader(TensorDataset(images), batch_size=config[BATCH_SIZE], shuffle=True))

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        (real,) = batch
        generator, discriminator = self.models
        drawn = generator(torch.randn(len(real), NOISE, 1, 1, device=self.device))
        told = self._update(1, [(discriminator(torch.cat([real, drawn.detach()])), [1.0, 0.0])])
        return {"discriminator_loss": told, "generator_loss": self._update(0, [(discriminator(drawn), [1.0])])}

    def _update(self, which: int, judged: list[tuple[Tensor, list[float]]]) -> float:
        """A step of one of them, by what the discriminator said and should have said."""
        loss = torch.zeros((), device=self.device)
        for said, wanted in judged:
            target = torch.tensor(wanted, device=self.device).repeat_interleave(len(said) // len(wanted))
            loss = loss + self.criterion(said.squeeze(1), target)
        self.optimizers[which].zero_grad()
        self.backward(loss)
        self.step(self.optimizers[which])
        return float(loss.item())


def write_png(path: Path, pixels: Tensor) -> None:
    """Grey values from 0 to 255, as a picture."""
    height, width = pixels.shape
    rows = b"".join(b"\0" + bytes(row) for row in pixels.byte().tolist())

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack("!I", len(data)) + kind + data + struct.pack("!I", zlib.crc32(kind + data))

    header = struct.pack("!IIBBBBB", width, height, 8, 0, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--epochs", type=int, default=15)
    arguments = parser.parse_args()
    with TorchTrainer(
        training_operator_cls=Drawing,
        config={"lr": 1e-3, BATCH_SIZE: 64},
        num_workers=2,
    ) as trainer:
        for _ in range(arguments.epochs):
            stats = trainer.train()
            print(
                f"epoch {stats['epoch']}: generator {stats['generator_loss']:.3f}, "
                f"discriminator {stats['discriminator_loss']:.3f}",
                flush=True,
            )
        generator, _ = trainer.get_model()
    with torch.no_grad():
        drawn = generator.eval()(torch.randn(64, NOISE, 1, 1, generator=torch.Generator().manual_seed(1)))
    grid = drawn.reshape(8, 8, 8, 8).transpose(1, 2).reshape(64, 64)
    write_png(arguments.picture, ((grid + 1) * 127.5).clamp(0, 255))
    print(f"64 samples are in {arguments.picture}")


if __name__ == "__main__":
    main()
