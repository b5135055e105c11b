"""How the positions of an epoch are cut into global batches, and these into the parts of the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple


class Slice(NamedTuple):
    """One rank's part of a global batch: positions [first, last) of an epoch."""

    epoch: int
    first: int
    last: int
    indices: list[Any] | None = None
    """Already looked up, where only the training process can do so."""


def part_of(first: int, last: int, rank: int, size: int) -> tuple[int, int]:
    """The part [low, high) of [first, last) that is `rank`'s among `size`: parts differ by one at most."""
    count = last - first
    return first + count * rank // size, first + count * (rank + 1) // size


@dataclass(frozen=True)
class Cut:
    """How an epoch of `length` positions is cut, for one rank."""

    length: int
    batch: int
    """Positions of a global batch."""
    rank: int
    size: int
    drop_last: bool

    @property
    def end(self) -> int:
        """The first position that no batch holds."""
        return self.length - self.length % self.batch if self.drop_last else self.length

    @property
    def steps(self) -> int:
        """Global batches in a whole epoch."""
        return -(-self.end // self.batch)

    def batches(self, position: int) -> Iterator[tuple[int, int]]:
        """The global batches from `position` on."""
        end, batch = self.end, self.batch
        while position < end:
            last = position + batch
            if last > end:
                last = end
            yield position, last
            position = last

    def slices(self, epoch: int, position: int) -> Iterator[Slice]:
        """This rank's parts of the global batches from `position` on."""
        alone = self.size == 1
        for first, last in self.batches(position):
            yield Slice(epoch, first, last) if alone else self.slice(epoch, first, last)

    def slice(self, epoch: int, first: int, last: int) -> Slice:
        """This rank's part of a global batch; a rank with none gets the batch's first position, for its shape."""
        low, high = part_of(first, last, self.rank, self.size)
        return Slice(epoch, low, high) if low < high else Slice(epoch, first, first + 1)

    def weight(self, first: int, last: int) -> float:
        """What the rank's mean loss must be multiplied by, so that the mean over the ranks is that over the samples."""
        if self.size == 1:
            return 1.0
        low, high = part_of(first, last, self.rank, self.size)
        return (high - low) * self.size / (last - first)
