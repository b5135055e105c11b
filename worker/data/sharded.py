"""A global batch in shards, whose number and sizes do not follow from the number of ranks: what loaders give at level
`bits`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import Misused
from .slicing import Slice, part_of


@dataclass(frozen=True)
class Division:
    """How global batches are cut into shards, and which of them are this rank's."""

    count: int
    """Shards of each global batch."""
    mine: range
    """The shards of this rank."""


class Group(NamedTuple):
    """This rank's part of a global batch: the slices of those of its shards that have samples."""

    slices: tuple[Slice, ...]


class ShardedBatch:
    """A global batch, of which this rank has its shards. `run.shards(batch)` gives them to the loop."""

    def __init__(self, key: int, counts: tuple[int, ...], mine: dict[int, Any]) -> None:
        """key: of its random numbers. counts: samples of each shard, over all ranks. mine: this rank's, collated."""
        self.key, self.counts, self.mine = key, counts, mine
        self.turns = 0
        """How often `run.shards` has been called with it."""

    def __len__(self) -> int:
        """Samples of the global batch, over all ranks."""
        return sum(self.counts)

    def __iter__(self) -> Iterator[Any]:
        raise Misused(
            "a batch of Run(..., shards=...) is in shards: write `for x, y in run.shards(batch)` in the loop's body"
        )


def slices_of(division: Division, epoch: int, first: int, last: int, whole: bool) -> tuple[Slice, ...]:
    """The slices of this rank's shards of the positions [first, last). whole: a position is a batch of a batch
    sampler's, so that a shard has one of them or none."""
    return tuple(
        Slice(epoch, low, high)
        for shard in division.mine
        for low, high in [_range(division, first, last, shard, whole)]
        if low < high
    )


def counts_of(division: Division, first: int, last: int, sizes: list[int] | None = None) -> tuple[int, ...]:
    """Samples of each shard. sizes: of the batches at the positions, where a position is a batch."""
    ranges = [_range(division, first, last, shard, sizes is not None) for shard in range(division.count)]
    if sizes is not None:
        return tuple(sizes[low - first] if low < high else 0 for low, high in ranges)
    return tuple(high - low for low, high in ranges)


def assemble(division: Division, key: int, counts: tuple[int, ...], parts: list[Any]) -> ShardedBatch:
    """parts: the collated shards of this rank that have samples, in order."""
    numbers = [shard for shard in division.mine if counts[shard]]
    return ShardedBatch(key, counts, dict(zip(numbers, parts, strict=True)))


def _range(division: Division, first: int, last: int, shard: int, whole: bool) -> tuple[int, int]:
    if whole:
        return (first + shard, min(first + shard + 1, last)) if first + shard < last else (last, last)
    return part_of(first, last, shard, division.count)
