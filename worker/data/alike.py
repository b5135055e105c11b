"""Whether all ranks read one order of the same samples. Each rank is given its part of it, so that an order which a
script has divided among the ranks already is divided twice, and most of the samples are never read.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import Any

from torch.utils.data import Subset

from ..errors import NotResumable
from ..world import Party
from .orderings import Listed, Ordering, Shuffled


class Alike:
    """What this rank reads, until all ranks have compared it. A loader that one rank reads alone is compared with
    nothing."""

    def __init__(self, world: Party) -> None:
        self._world = world
        self._known: set[str] = set()
        self._fresh: dict[str, str] = {}

    def begins(self, loader: str, epoch: int, dataset: Any, ordering: Ordering, batch: int) -> None:
        """A pass over a loader begins. batch: positions of a global batch."""
        key = f"{loader}, epoch {epoch}" if isinstance(ordering, Listed) else loader
        if self._world.size > 1 and key not in self._known:
            self._known.add(key)
            self._fresh[key] = _read(dataset, ordering, batch)

    def most(self, numbers: list[int]) -> list[int]:
        """Collective: the largest of each number over all ranks. What was begun since the last time is compared. Raises
        NotResumable, on all ranks, where two of them read other things."""
        *largest, fresh = self._world.most([*numbers, len(self._fresh)])
        if fresh:
            self._compare()
        return largest

    def _compare(self) -> None:
        mine, self._fresh = self._fresh, {}
        first: dict[str, tuple[int, str]] = {}
        for rank, told in enumerate(self._world.gather(mine)):
            for key, text in sorted(told.items()):
                other, same = first.setdefault(key, (rank, text))
                if text != same:
                    raise NotResumable(
                        f"loader {key}: rank {rank} reads {text}, and rank {other} {same}: each rank is given its part "
                        "of one order, so that what is divided among the ranks before is not read whole; give every "
                        "rank the same dataset and a sampler over all of it, as num_replicas=1, rank=0 make it"
                    )


def _read(dataset: Any, ordering: Ordering, batch: int) -> str:
    """What is read and how, in words that are other ones where it is something else."""
    parts = [array("q", [batch]).tobytes()]
    if isinstance(ordering, Listed):
        parts.append(_bytes(ordering.indices(0, 0, ordering.length())))
    elif isinstance(ordering, Shuffled) and ordering.values is not None:
        parts.append(_bytes(ordering.values))
    while isinstance(dataset, Subset):
        parts.append(_bytes(dataset.indices))
        dataset = dataset.dataset
    digest = hashlib.blake2b(digest_size=4)
    for part in parts:
        digest.update(part)
    return f"{ordering.length()} in batches of {batch} ({digest.hexdigest()})"


def _bytes(indices: Sequence[Any]) -> bytes:
    try:
        return array("q", indices).tobytes()
    except (TypeError, OverflowError):  # batches of a batch sampler, or keys of the dataset's own
        return repr(list(indices)).encode()
