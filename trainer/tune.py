"""A `TorchTrainer` as a trainable of Ray Tune's: `tune.Tuner(TorchTrainer.as_trainable(...), ...)`.

Ray is imported when this module is, which nothing else here does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from ray.tune import Trainable

from ..agent.errors import UsageError
from .operator import validates

FILE = "trainer.pt"


class TorchTrainable(Trainable):  # type: ignore[misc, unused-ignore] # untyped where ray is not installed
    """One trial: a trainer with the trial's configuration, one pass and one validation a step. Made by
    `TorchTrainer.as_trainable`."""

    _make: Callable[..., Any]
    _arguments: Mapping[str, Any] = {}
    _override: Callable[[Any, dict[str, Any]], dict[str, Any]] | None = None

    def setup(self, config: dict[str, Any]) -> None:
        """Begins the workers; the trial's configuration is laid over the trainer's."""
        arguments = dict(self._arguments)
        merged = {**(arguments.pop("config", None) or {}), **config}
        self._trainer = type(self)._make(**arguments, config=merged)
        self._validates: bool | None = None

    def step(self) -> dict[str, Any]:
        """What the trial reports: of a training pass and, where there is data for it, a validation pass."""
        if (own := type(self)._override) is not None:
            return own(self._trainer, {"iteration": self.iteration})
        reported: dict[str, Any] = self._trainer.train()
        if self._validates is None:
            self._validates = all(self._trainer.apply_all_operators(validates))
        return {**reported, **self._trainer.validate()} if self._validates else reported

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """The trainer's state, for Tune to keep, and to go on from on any node, with any number of workers."""
        self._trainer.save(os.path.join(checkpoint_dir, FILE))

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Goes on from what `save_checkpoint` wrote."""
        if not isinstance(checkpoint, str):
            raise UsageError(f"the checkpoint is a {type(checkpoint).__name__}, and must be a directory")
        self._trainer.load(os.path.join(checkpoint, FILE))

    def cleanup(self) -> None:
        """Ends the workers."""
        trainer = getattr(self, "_trainer", None)
        if trainer is not None:
            trainer.shutdown(force=True)

    @property
    def trainer(self) -> Any:
        """The trial's `TorchTrainer`."""
        return self._trainer


def as_trainable(
    make: Callable[..., Any],
    override_tune_step: Callable[[Any, dict[str, Any]], dict[str, Any]] | None,
    arguments: dict[str, Any],
) -> type[TorchTrainable]:
    """A class for Tune; see `TorchTrainer.as_trainable`. make: makes a trainer of arguments."""
    step = None if override_tune_step is None else staticmethod(override_tune_step)
    fields = {"_make": staticmethod(make), "_arguments": arguments, "_override": step}
    made: type[TorchTrainable] = type("TorchTrainable", (TorchTrainable,), fields)
    return made
