"""What an operator and the rest of a worker may read about their worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class Surroundings:
    """What an operator may read about its worker. Made before it, and shared with what runs the passes."""

    rank: int
    local_rank: int
    world_size: int
    device: torch.device
    config: dict[str, Any]
    program: Mapping[str, Any]
    """What the trainer was made with; see `Session`."""
    amp_dtype: torch.dtype | None = None
    use_tqdm: bool = False
    weight: float = 1.0
    """See `TrainingOperator.weight`."""
    samples: float = 0.0
    """Of this worker in the batch in hand."""
    weighs_in_ddp: bool = False
    """Whether DDP multiplies gradients by `weight`."""
    loaders: dict[str, Any] = field(default_factory=dict)
    """DataLoaders as the creators made them: train, validation."""
    registering: Any = None
    """What takes the things that an operator registers; see `build.Registering`."""

    def to_device(self, batch: Any) -> Any:
        if self.device.type == "cpu":
            return batch
        if isinstance(batch, torch.Tensor):
            return batch.to(self.device, non_blocking=True)
        if isinstance(batch, dict):
            return {name: self.to_device(value) for name, value in batch.items()}
        if isinstance(batch, tuple) and hasattr(batch, "_fields"):
            return type(batch)(*(self.to_device(part) for part in batch))
        if isinstance(batch, (list, tuple)):
            return type(batch)(self.to_device(part) for part in batch)
        return batch
