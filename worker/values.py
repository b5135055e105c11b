"""Plain values and sums that a run keeps over restarts."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING, Any

import torch

from .checkpoints.files import why_unreadable
from .checkpoints.pieces import savable
from .checkpoints.staging import Staging
from .checkpoints.tensor_files import to_bytes
from .errors import Misused
from .loop.log import RunLog
from .shards.digest import sum_of
from .world import World


class Vars:
    """`run.vars.best = 0.3`: attributes that checkpoints keep. Numbers, texts, lists, dicts and tensors."""

    def state_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.__dict__.clear()
        self.__dict__.update(state)

    def __setattr__(self, name: str, value: Any) -> None:
        """Raises Misused for the name of a method, which a save would call."""
        if hasattr(type(self), name):
            raise Misused(f"run.vars.{name} is a method of run.vars: give the value another name")
        super().__setattr__(name, value)

    if TYPE_CHECKING:  # so that type checkers know what users write

        def __getattr__(self, name: str) -> Any: ...

    def get(self, name: str, default: Any = None) -> Any:
        return self.__dict__.get(name, default)


def kept_of(variables: Vars, world: World, log: RunLog) -> dict[str, Any]:
    """Collective: what a checkpoint keeps, that of rank 0, on all ranks: each node may have checkpoints of its own.
    Says once where the ranks have different values. Raises NotResumable."""
    state = variables.state_dict()
    if world.size == 1:
        return state
    savable({"run.vars": state})  # what has no sum is refused in a line, as without other ranks
    sums = world.gather(sum_of(state))
    differs = next((rank for rank, text in enumerate(sums) if text != sums[0]), 0)
    if not differs:
        return state
    if not world.rank:
        log.warning_once(
            f"run.vars of rank {differs} is not that of rank 0, and a start gives all ranks that of rank 0: keep what "
            "is the same on all of them, as run.mean makes it"
        )
    data = world.broadcast_bytes(_written(state) if not world.rank else b"", 0)
    return _read(data) if data and world.rank else state


def _written(state: dict[str, Any]) -> bytes:
    """Nothing where it cannot be written, which the save is about to say."""
    with contextlib.suppress(Exception):
        if not why_unreadable(copied := Staging().copy(state)):
            return to_bytes(copied)
    return b""


def _read(data: bytes) -> dict[str, Any]:
    return dict(torch.load(io.BytesIO(data), weights_only=True, map_location="cpu"))


class Mean:
    """The mean over all samples of all ranks since the last `reset`, kept over restarts.

    `update` adds this rank's part; `compute` is collective.
    """

    def __init__(self, world: Any) -> None:
        self._world = world
        self.total, self.count = 0.0, 0.0

    def update(self, value: Any, count: float = 1) -> None:
        """value: the mean over `count` samples of this rank; 0 samples add nothing, whatever the value is."""
        count = float(count)
        if count:
            self.total += float(value) * count
            self.count += count

    def compute(self) -> float:
        """Collective: the mean over all ranks; NaN where nothing was added."""
        total, count = self._world.sum([self.total, self.count])
        return total / count if count else float("nan")

    def sum(self) -> float:
        """Collective: the sum over all ranks."""
        return float(self._world.sum([self.total])[0])

    def reset(self) -> None:
        self.total, self.count = 0.0, 0.0

    def gather(self) -> list[float]:
        """Collective: what a checkpoint keeps."""
        return [*self._world.sum([self.total, self.count])]

    def restore(self, kept: list[float]) -> None:
        """The first rank goes on with all of it, the others with nothing: their number may have changed."""
        self.total, self.count = kept if self._world.rank == 0 else (0.0, 0.0)
