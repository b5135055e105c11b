"""Plain values and sums that a run keeps over restarts, and what each rank has of its own in other states."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .checkpoints.files import why_unreadable
from .checkpoints.pieces import is_sharded, savable, tensors
from .checkpoints.staging import Staging, size_of
from .checkpoints.tensor_files import to_bytes
from .errors import Misused
from .loop.log import RunLog
from .shards.digest import sum_of
from .world import World

OWN = "run.own"
"""The name, among a checkpoint's states, of what the ranks do not share."""
_OWN_BYTES = 4 << 20
"""Of a state that has more of it over all ranks each is given that of rank 0: a save waits until it is gathered."""


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


def own_parts(things: Mapping[str, Any], states: Mapping[str, Any], world: World) -> dict[str, list[Any]]:
    """Collective: by the name of a state what each rank has of it, where they differ, as BatchNorm's statistics do
    between two forward passes, or environments with a generator for each rank."""
    if world.size == 1:
        return {}
    most = _OWN_BYTES // world.size
    mine = {name: part for name, thing in things.items() if (part := _own_part(thing, states[name], most)) is not None}
    savable(mine)  # as above
    sums = world.gather({name: sum_of(part) for name, part in mine.items()})
    names = [name for name in sums[0] if all(name in each for each in sums) and len({each[name] for each in sums}) > 1]
    written = world.gather_bytes(_written({name: mine[name] for name in names})) if names else [b""]
    by_rank = [_read(data) for data in written] if all(written) else []
    return {name: [parts[name] for parts in by_rank] for name in names} if by_rank else {}


def _own_part(thing: Any, state: Any, most: int) -> Any:
    """What ranks may differ in: a model's buffers, an optimizer's settings, and all of another state; None where that
    is larger than `most` bytes, or a framework's, which looks after it itself."""
    if _of_framework(thing):
        return None
    part = state
    if isinstance(thing, nn.Module):
        part = {name: state[name] for name, _ in thing.named_buffers(remove_duplicate=False) if name in state}
    elif isinstance(state, Mapping) and "param_groups" in state:
        part = [{key: value for key, value in group.items() if key != "params"} for group in state["param_groups"]]
    return part if size_of(part) <= most and not _is_sharded(part) else None


def _of_framework(thing: Any) -> bool:
    return type(thing).__module__.startswith(f"{__package__}.frameworks.")


def _is_sharded(state: Any) -> bool:
    return any(is_sharded(tensor) for _, tensor in tensors(state))


def large_apart(things: Mapping[str, Any], world: World) -> dict[str, int]:
    """Collective: states that are too large to be kept for each rank, and a rank that has another than rank 0."""
    sums = dict[str, str]()
    for name, thing in things.items():
        if isinstance(thing, nn.Module) or hasattr(thing, "param_groups") or _of_framework(thing):
            continue  # which are compared by their parameters, as far as they are
        state = thing.state_dict()
        if size_of(state) > _OWN_BYTES // world.size and not _is_sharded(state):
            sums[name] = sum_of(state)
    by_rank = world.gather(sums)
    differ = ((rank, name) for rank, each in enumerate(by_rank) for name in each if each[name] != by_rank[0].get(name))
    return {name: rank for rank, name in differ}


def with_own(
    states: dict[str, Any], things: Mapping[str, Any], world: World, where: str, log: RunLog
) -> dict[str, Any]:
    """The states of a checkpoint, with what this rank had of its own. where: how messages name the checkpoint."""
    for name, by_rank in states.pop(OWN, {}).items():
        thing, same = things.get(name), len(by_rank) == world.size
        if name not in states or (isinstance(thing, nn.Module) and not same):
            continue  # of other ranks' parts of a batch
        if not same:
            log.warning(
                f"{where} has a state {name!r} for each of {len(by_rank)} ranks, and there are {world.size} now: each "
                "rank goes on with its own, further ones with that of rank 0"
            )
        part, state = by_rank[world.rank if world.rank < len(by_rank) else 0], states[name]
        if isinstance(thing, nn.Module):
            state.update(part)
        elif isinstance(state, Mapping) and "param_groups" in state:
            for group, settings in zip(state["param_groups"], part, strict=True):
                group.update(settings)
        else:
            states[name] = part
    return states


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
