"""What scripts put before `Exact` and Hugging Face's Trainer: classes that take a training step themselves."""

from __future__ import annotations

from typing import Any

import torch


class Steps:
    accelerator: Any
    compute_loss: Any

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        loss: torch.Tensor = self.compute_loss(model, inputs)
        self.goes_back(loss)
        return loss.detach()

    def goes_back(self, loss: torch.Tensor) -> None:
        self.accelerator.backward(loss)


class Alone(Steps):
    """Goes backward without the Trainer's accelerator."""

    def goes_back(self, loss: torch.Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
