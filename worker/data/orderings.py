"""What index stands at a position of an epoch, for each kind of sampler. Picklable: loader processes hold a copy.

The order of torch's own samplers is replaced by one of ours with the same distribution, a function of the epoch's key.
Samplers of the user's are listed once per epoch in the training process, under the epoch's key.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from ..errors import NotResumable, WrongState
from ..keys import below, mix
from .order import Permutation
from .randomness import generators_in, key_everything, key_generator

Indices = Callable[[int, int], list[Any]]
"""The indices at positions [first, last) of an epoch."""

ENDLESS, PASSES = 1 << 24, 16
"""Indices, and passes over the dataset: an epoch of a sampler of the user's that has more of both has no end."""

_AT_ONCE = 4096


class Ordering:
    """Positions to indices. `listed`: whether the training process must call `list_epoch` before `indices`."""

    listed = False

    def length(self) -> int:
        """Positions in an epoch."""
        raise NotImplementedError

    def indices(self, key: int, first: int, last: int) -> list[Any]:
        """The indices at positions [first, last) of the epoch that has this key."""
        raise NotImplementedError

    def of_epoch(self, key: int) -> Indices:
        """`indices` of the epoch that has this key."""
        return functools.partial(self.indices, key)

    def list_epoch(self, epoch: int, key: int, anew: bool = False) -> None:
        """Reads the user's sampler for this epoch. anew: also where it was read for it before."""


class InOrder(Ordering):
    """`SequentialSampler`."""

    def __init__(self, n: int) -> None:
        self.n = n

    def length(self) -> int:
        return self.n

    def indices(self, key: int, first: int, last: int) -> list[Any]:
        return list(range(first, last))


class Shuffled(Ordering):
    """`RandomSampler` without replacement, over range(n) or over the given values; `count` positions an epoch: where
    there are more than n, another permutation follows."""

    def __init__(self, n: int, count: int | None = None, values: Sequence[Any] | None = None) -> None:
        self.n, self.values = n, values
        self.count = n if count is None else count
        self._now: tuple[tuple[int, int], Permutation] | None = None

    def length(self) -> int:
        return self.count

    def indices(self, key: int, first: int, last: int) -> list[Any]:
        found: list[int] = []
        while first < last:
            turn, offset = divmod(first, self.n)
            stop = min(self.n, offset + last - first)
            found += self._permutation(key, turn).indices(offset, stop)
            first += stop - offset
        return found if self.values is None else [self.values[index] for index in found]

    def of_epoch(self, key: int) -> Indices:
        if self.count <= self.n and self.values is None:
            return self._permutation(key, 0).indices
        return super().of_epoch(key)

    def _permutation(self, key: int, turn: int) -> Permutation:
        if self._now is None or self._now[0] != (key, turn):
            self._now = ((key, turn), Permutation(mix(key, turn), self.n))
        return self._now[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_now": None}


class WithReplacement(Ordering):
    """`RandomSampler(replacement=True)`: each position draws for itself."""

    def __init__(self, n: int, count: int) -> None:
        self.n, self.count = n, count

    def length(self) -> int:
        return self.count

    def indices(self, key: int, first: int, last: int) -> list[Any]:
        return [below(key, position, self.n) for position in range(first, last)]


class Weighted(Ordering):
    """`WeightedRandomSampler` with replacement: each position draws for itself, by search in the weights' sums."""

    def __init__(self, weights: Sequence[float], count: int) -> None:
        self.count = count
        self.sums = list(itertools.accumulate(float(weight) for weight in weights))

    def length(self) -> int:
        return self.count

    def indices(self, key: int, first: int, last: int) -> list[Any]:
        total = self.sums[-1]
        draws = ((mix(key, position) >> 11) * 2.0**-53 * total for position in range(first, last))
        return [min(bisect.bisect_right(self.sums, draw), len(self.sums) - 1) for draw in draws]


class WeightedOnce(Ordering):
    """`WeightedRandomSampler` without replacement: the order of exponential waiting times with the weights as rates."""

    def __init__(self, weights: Sequence[float], count: int) -> None:
        self.weights, self.count = [float(weight) for weight in weights], count
        self._key: int | None = None
        self._order: list[int] = []

    def length(self) -> int:
        return self.count

    def indices(self, key: int, first: int, last: int) -> list[Any]:
        if self._key != key:
            waits = [
                (-math.log(((mix(key, index) >> 11) + 1) * 2.0**-53) / weight, index)
                for index, weight in enumerate(self.weights)
                if weight > 0
            ]
            self._key, self._order = key, [index for _, index in sorted(waits)[: self.count]]
        return list(self._order[first:last])


class Listed(Ordering):
    """A sampler or batch sampler of the user's: listed as an epoch begins, and before where its length is asked for. It
    must give the same list under the same key, which is tried with the first epoch."""

    listed = True

    def __init__(self, sampler: Any, n: int = 0, may_repeat: bool = True) -> None:
        """n: samples of the dataset. may_repeat: whether an epoch may be many passes over few samples: loaders that
        keep one iterator for all epochs give torch's sampler again and again, which would take a minute to find out."""
        self.sampler, self._most = sampler, max(ENDLESS if may_repeat or not n else 0, PASSES * n)
        self._epoch: int | None = None
        self._list: list[Any] = []
        self._tried = False

    def length(self) -> int:
        return len(self._list)

    def list_epoch(self, epoch: int, key: int, anew: bool = False) -> None:
        if epoch == self._epoch and not anew:
            return
        first = self._once(epoch, key)
        if not self._tried and self._once(epoch, key) != first:
            raise NotResumable(
                f"{type(self.sampler).__name__} gives another order each time it is read, also with all random "
                "generators set to the same state: give it set_epoch(epoch) and let its order follow from that"
            )
        self._tried = True
        self._epoch, self._list = epoch, first

    def indices(self, key: int, first: int, last: int) -> list[Any]:
        return self._list[first:last]

    def _once(self, epoch: int, key: int) -> list[Any]:
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)
        key_everything(key)
        for number, generator in enumerate(generators_in(self.sampler)):
            key_generator(generator, mix(key, number))
        listed, count, items = list[Any](), 0, iter(self.sampler)
        while part := list(itertools.islice(items, _AT_ONCE)):
            listed += part
            count += sum(map(len, part)) if isinstance(part[0], (list, tuple)) else len(part)
            if count > self._most:
                raise NotResumable(
                    f"{type(self.sampler).__name__} gives more than {self._most} indices and seems to have no end, and "
                    "an epoch's order is read whole: let its iterator end behind one pass over the dataset, and loop "
                    "over run.batches(loader, steps=...), which begins the next epoch by itself"
                )
        return listed


def ordering_of(sampler: Any, n: int) -> Ordering:
    """The ordering that stands for a sampler, which is over a dataset of n samples if it does not say of how many."""
    kind = type(sampler)
    if kind in (SequentialSampler, RandomSampler, DistributedSampler):  # which may be over a part of the dataset
        n = len(sampler.dataset if kind is DistributedSampler else sampler.data_source)
    if kind is SequentialSampler:
        return InOrder(n)
    if kind is DistributedSampler:
        return Shuffled(n) if sampler.shuffle else InOrder(n)
    if kind is RandomSampler:
        count = sampler.num_samples
        return WithReplacement(n, count) if sampler.replacement else Shuffled(n, count)
    if kind is SubsetRandomSampler:
        return Shuffled(len(sampler.indices), values=list(sampler.indices))
    if kind is WeightedRandomSampler:
        weights = torch.as_tensor(sampler.weights).tolist()
        return (Weighted if sampler.replacement else WeightedOnce)(weights, sampler.num_samples)
    if isinstance(sampler, (Sampler, Sequence)) or hasattr(sampler, "__iter__"):
        return Listed(sampler, n)
    raise NotResumable(f"a sampler of type {kind.__name__} cannot be iterated; give the DataLoader another")


class Begun:
    """The epoch of a loader that a pass began in last, and how many positions that has: they stay, whatever becomes of
    the dataset."""

    epoch: int | None = None
    """None where no pass has begun in this start."""
    kept: list[int] | None = None
    """Epoch and positions, those of the checkpoint included."""

    def begin(self, loader: str, epoch: int, position: int, count: int) -> None:
        """A pass begins at this position of so many. Raises WrongState where the checkpoint is within an epoch of
        another number of them."""
        if self.epoch != epoch and position and self.kept not in (None, [epoch, count]) and self.kept[0] == epoch:
            raise WrongState(
                f"loader {loader!r}: the checkpoint is within epoch {epoch} of {self.kept[1]} samples or batches, "
                f"which has {count} now; let the dataset and the sampler be in that epoch what they were"
            )
        self.epoch, self.kept = epoch, [epoch, count]


def resized(ordering: Ordering, sampler: Any) -> Ordering | None:
    """The ordering that stands for a sampler whose dataset has another length than as `ordering` was made; None where
    it has the same, or where the sampler keeps to the length that it was made with, as `DistributedSampler` does."""
    if type(sampler) not in (SequentialSampler, RandomSampler):
        return None
    now: Any = ordering_of(sampler, 0)
    before: Any = ordering
    return None if (now.n, now.length()) == (before.n, before.length()) else now


def size_of(dataset: Any) -> int:
    """Its length. Raises NotResumable where it has none."""
    try:
        return len(dataset)
    except TypeError:
        raise NotResumable(
            f"{type(dataset).__name__} has no length, so its order cannot be entered in the middle: give it __len__"
        ) from None


def plain_batches(batch_sampler: Any) -> bool:
    """Whether the batch sampler only cuts the order of a sampler into batches of one size."""
    return type(batch_sampler) is BatchSampler
