"""What a run holds at level `bits`: its shards, and the way from their gradients to one that all ranks have."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..data.randomness import key_everything
from ..data.sharded import Division, ShardedBatch
from ..errors import Misused
from ..keys import mix
from ..loop.log import RunLog
from ..world import World
from .buffers import Buffers
from .conditions import same_everywhere
from .exchange import Exchange
from .fold import Fold
from .gradients import Layout, give_zeros, layouts_of, parameters_of, those_with_gradients
from .tree import Tree

MOST_SHARDS = 1 << 16


class Sharding:
    """The shards of a run. All ranks have the same parameters, gradients and random numbers outside of shards."""

    def __init__(self, count: int, world: World, states: dict[str, Any], log: logging.Logger | RunLog) -> None:
        """Collective. Raises Misused, WrongState."""
        if type(count) is not int or not 1 <= count <= MOST_SHARDS:
            raise Misused(f"Run(..., shards={count!r}): shards is a whole number from 1 to {MOST_SHARDS}")
        if not 1 <= world.size <= count:
            raise Misused(
                f"Run(..., shards={count}) runs on 1 to {count} ranks, and there are {world.size}: start fewer ranks, "
                "or begin in another directory with more shards"
            )
        self.tree = Tree(count, world.size)
        self.division = Division(count, self.tree.shards[world.rank].shards())
        self._states, self._log = states, log
        self._exchange = Exchange(world.rank, world.size, lambda: world.group)
        self._buffers = Buffers(states)
        self._folds: list[tuple[Layout, Fold]] = []
        self._laid_out: list[tuple[str, int]] = []
        self._before: list[list[Tensor | None]] = []
        self._open: int | None = None
        self._unsummed = False
        parameters_of(states)
        same_everywhere(world)
        log.info("level bits: %d shards over %d ranks", count, world.size)

    def begin(self, kept: dict[str, Any] | None) -> None:
        """Collective, once all states are loaded: goes on as `kept` was; None, for a run that begins anew: with the
        modules of rank 0 on all ranks."""
        if kept is None:
            self._spread()
        elif "gradients" in kept:  # a checkpoint of an older version has none
            give_zeros(self._states, kept["gradients"])

    def _spread(self) -> None:
        if self._exchange.ranks == 1:
            return
        for _, thing in sorted(self._states.items()):
            for tensor in _tensors_of(thing):
                memory = tensor.detach().cpu().contiguous()
                # As bytes: gloo knows no 16-bit integers and no numbers of 8 bits with a fraction.
                self._exchange.broadcast(memory.reshape(-1).view(torch.uint8), 0).wait()
                with torch.no_grad():
                    tensor.copy_(memory)

    def kept(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"shards": self.division.count, "gradients": those_with_gradients(self._states)}

    @property
    def turn(self) -> int:
        """Whose random numbers are drawn: 0 outside of shards, so that all ranks draw the same."""
        return 0 if self._open is None else 1 + self._open

    def check_closed(self) -> None:
        """Before a step is committed. Raises Misused where a loop over shards was left."""
        if self._unsummed:
            raise Misused(
                "run.step() before the loop over run.shards(batch) was over: its gradients are not summed; let the "
                "loop end, without break, and step behind it"
            )

    def over(self, batch: Any) -> Iterator[Any]:
        """See `Run.shards`."""
        if not isinstance(batch, ShardedBatch):
            raise Misused(
                f"run.shards() was given a {type(batch).__name__}: give it what a loop over run.loader(...) gives"
            )
        key = mix(batch.key, batch.turns)
        batch.turns += 1
        trains = torch.is_grad_enabled()
        given = self._begin_sums() if trains else []
        # An evaluation changes no buffers, unless a module is left in training mode.
        settles = trains or any(thing.training for thing in self._states.values() if isinstance(thing, nn.Module))
        first = next(shard for shard, count in enumerate(batch.counts) if count)
        self._buffers.begin(settles)
        for shard in self.division.mine:
            if shard in batch.mine:
                self._buffers.rewind()
                key_everything(mix(key, shard))
                self._open = shard
                try:
                    yield batch.mine[shard]
                finally:
                    self._open = None
                if shard == first:
                    self._buffers.keep()
            if trains:
                self._add(shard, shard in batch.mine, given)
        for _, fold in self._folds if trains else ():
            fold.start()
        self._buffers.settle(self._exchange, self.tree.owner(first))
        if trains:
            self._end_sums(len(batch), given)
        # Outside of shards every rank draws the same numbers.
        key_everything(mix(key, self.division.count))

    def _add(self, shard: int, has_samples: bool, given: list[bool]) -> None:
        for number, (layout, fold) in enumerate(self._folds):
            fold.add(shard, layout.reader(shard) if has_samples else None)
            if has_samples:
                given[number] = given[number] or layout.complete
                layout.clear()

    def _begin_sums(self) -> list[bool]:
        """The gradients that there are already are put aside: the mean is added to them, as `backward` would.

        Returns for each fold that no shard of this rank has given all gradients yet.
        """
        parameters = {name: held for name, held in parameters_of(self._states).items() if held.requires_grad}
        if self._laid_out != (now := [(name, id(held)) for name, held in parameters.items()]):
            self._laid_out = now
            self._folds = [
                (layout, Fold(layout.length, layout.dtype, layout.device, self.tree, self._exchange, number))
                for number, layout in enumerate(layouts_of(parameters))
            ]
            self._warn()
        self._unsummed, self._before = True, []
        for layout, fold in self._folds:
            kept = (held.grad for held in layout.parameters)
            self._before.append([None if grad is None else grad.detach().clone() for grad in kept])
            layout.clear()
            fold.begin()
        return [False] * len(self._folds)

    def _end_sums(self, samples: int, given: list[bool]) -> None:
        for (layout, fold), kept, all_given in zip(self._folds, self._before, given, strict=True):
            layout.put_back(fold.finish(samples), all_given, kept)
        self._before = []
        self._unsummed = False

    def _warn(self) -> None:
        devices = {layout.device.type for layout, _ in self._folds}
        if devices - {"cpu"} and not torch.are_deterministic_algorithms_enabled():
            self._log.warning(
                "level bits on %s: some operations of torch add up in any order there; say "
                "torch.use_deterministic_algorithms(True) before training",
                ", ".join(sorted(devices)),
            )


def _tensors_of(thing: Any) -> list[Tensor]:
    if not isinstance(thing, nn.Module):
        return []
    return [*thing.parameters(), *thing.buffers()]
