"""Iterable datasets that divide themselves by `get_worker_info()`: read as a fixed number of streams.

How many loader processes there are would decide which samples come together. So the dataset is told that there are S
of them, whatever their number: it is copied S times, and each copy sees itself as one process of S. Turn k takes a
global batch of stream k mod S; a stream that has ended passes. Loader process w of n reads the turns w, w + n, ..., so
that a stream stays in one process where S is a multiple of n.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.data import IterableDataset
from torch.utils.data._utils import worker as torch_worker

from ..errors import NotResumable
from ..keys import key_of, mix
from .batching import Batching, can_say_where
from .streams import Read, compare, say_again


class Turn(NamedTuple):
    """What one stream gave in its turn."""

    stream: int
    batch: Any
    samples: int
    """Samples of the global batch; 0: the stream had ended before."""
    local: int
    read: int
    """Samples that the stream has given in this epoch so far."""
    state: Any
    """Of the dataset; of one that has none, what was seen before and behind the batch."""
    ended: bool
    """Whether no batch follows. What a dataset says of its place is that of the next epoch then."""


class DividedSource(IterableDataset[Any]):
    """A dataset that divides itself, as `streams` streams."""

    def __init__(self, dataset: Any, place: tuple[int, str], batching: Batching, streams: int) -> None:
        self.stands_for = self.dataset = dataset
        self._place, self.batching, self.streams = place, batching, streams
        self.stateful = can_say_where(dataset)
        self.begin(0, 0, None)

    def begin(self, epoch: int, position: int, state: Any) -> None:
        """Where the next pass begins; state: of the last `Read` before it."""
        self.epoch, self._position = epoch, position
        self.key = key_of(*self._place, "stream", epoch)
        self._turn = state["turn"] if state else 0
        self._kept: list[list[Any]] = state["streams"] if state else [[0, None, False] for _ in range(self.streams)]

    @property
    def reads_again(self) -> int:
        """Samples that are read and thrown away before the place that `begin` was given."""
        return 0 if self.stateful else sum(read for read, _, ended in self._kept if not ended)

    def __iter__(self) -> Iterator[Turn]:
        """In a loader process: its turns, without end."""
        info = torch.utils.data.get_worker_info()
        first, count = (info.id, info.num_workers) if info is not None else (0, 1)
        readers: dict[int, Iterator[Turn]] = {}
        for turn in itertools.count(self._turn + first, count):
            stream = turn % self.streams
            if stream not in readers:
                readers[stream] = _turns(self, stream, *self._kept[stream])
            yield next(readers[stream])

    def reads(self, turns: Iterable[Turn], loader: str, log: Any) -> Iterator[Read]:
        """In the training process: the batches, until all streams have ended. Where all had ended before, one turn is
        taken to see it."""
        first, taken = self._position, self._turn
        kept = [list(one) for one in self._kept]
        say_again(self, loader, log)
        for turn in turns:
            taken += 1
            if not self.stateful and turn.samples:
                compare(kept[turn.stream][1], turn.state, loader, self.epoch, log)
            kept[turn.stream] = [turn.read, turn.state, turn.ended]
            if turn.samples:
                state = {"turn": taken, "streams": [list(one) for one in kept]}
                yield Read(turn.batch, first, first + turn.samples, turn.local, state)
                first += turn.samples
            if all(ended for _, _, ended in kept):
                return


def _turns(source: DividedSource, stream: int, read: int, state: Any, ended: bool) -> Iterator[Turn]:
    """One stream: its batches, then that it has ended, for ever."""
    if not ended:
        dataset, batching = copy.deepcopy(source.dataset), source.batching
        seen_as = _ProcessOf(stream, source.streams, dataset)
        key = mix(source.key, stream)
        with seen_as:
            at = state if source.stateful else None
            draws, samples, seen = batching.open(dataset, key, source.epoch, at, read)
        while not ended:
            with seen_as:
                if not (batch := batching.take(samples)):
                    break
                ended = len(batch) < batching.size
                if source.stateful:
                    state = copy.deepcopy(dataset.state_dict()) if not ended else None
                else:
                    state = [seen, seen := batching.seen(seen, read, batch)]
                made, local = batching.part(batch, mix(key, read), draws)
            seen_as.check()
            read += len(batch)
            yield Turn(stream, made, len(batch), local, read, state, ended)
    while True:
        yield Turn(stream, None, 0, 0, read, None, True)


class _ProcessOf:
    """While it is entered, `get_worker_info()` says that this is loader process `number` of `count`."""

    def __init__(self, number: int, count: int, dataset: Any) -> None:
        self._info = _Info(id=number, num_workers=count, seed=number, dataset=dataset)
        self._name, self._count = type(dataset).__name__, count
        self._before: Any = None

    def __enter__(self) -> None:
        self._before, torch_worker._worker_info = torch_worker._worker_info, self._info

    def __exit__(self, *_: object) -> None:
        torch_worker._worker_info = self._before

    def check(self) -> None:
        """Raises NotResumable where the dataset has given samples without a look at the number of processes."""
        if self._count > 1 and not object.__getattribute__(self._info, "looked_at"):
            raise NotResumable(
                f"{self._name} does not look at get_worker_info(), so each of streams={self._count} would yield every "
                "sample: divide it by get_worker_info().id and .num_workers, or leave streams out"
            )


class _Info(torch_worker.WorkerInfo):
    looked_at = False

    def __getattribute__(self, name: str) -> Any:
        if name in ("id", "num_workers"):
            object.__setattr__(self, "looked_at", True)
        return object.__getattribute__(self, name)
