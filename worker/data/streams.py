"""Iterable datasets: what stands in their place in the DataLoader.

Three kinds can be resumed exactly. A dataset that draws its indices from its attribute `sampler` gets a sampler of
ours. A dataset with `state_dict` and `load_state_dict` is put back where it was. Any other is read again from the start
of the epoch, if the caller allows it. The last two are read whole by every rank, which keeps its part of each batch.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data import IterableDataset

from ..errors import NotResumable
from ..keys import key_of, mix
from .batching import Batching, can_say_where
from .randomness import Draws, generators_in
from .sharded import Group
from .slicing import Slice
from .source import COLLATE, MapSource, plain_in


class SampledSource(IterableDataset[Any]):
    """A dataset whose iterator draws indices from its attribute `sampler`; yields whole batches.

    Loader process w of n computes the batches w, w + n, ...: the DataLoader takes one from each in turn.
    """

    def __init__(self, source: MapSource, slices: Sequence[Slice | Group]) -> None:
        self.stands_for = self.dataset = source.dataset
        self._source, self._slices = source, slices

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        mine = list(itertools.islice(self._slices, info.id if info else 0, None, info.num_workers if info else 1))
        held = generators_in([self.dataset, self._source.collate])
        draws = None if self._source.choice == "never" else Draws(True, held, self._source.on_sample)
        pieces = [part for piece in mine for part in (piece.slices if isinstance(piece, Group) else (piece,))]
        self.dataset.sampler = _Turns(self._source, pieces, draws)
        samples = iter(self.dataset)
        for piece in mine:
            if isinstance(piece, Group):
                yield [self._collated(samples, part, draws) for part in piece.slices]
            else:
                yield self._collated(samples, piece, None)

    def _collated(self, samples: Iterator[Any], piece: Slice, draws: Draws | None) -> Any:
        """draws: keys the collation by the piece; None: it goes on with the numbers of the last sample."""
        batch = list(itertools.islice(samples, piece.last - piece.first))
        if len(batch) != piece.last - piece.first:
            raise NotResumable(
                f"{type(self.dataset).__name__} gave {len(batch)} samples for {piece.last - piece.first} indices: "
                "a dataset with an attribute `sampler` yields one sample for each index of it"
            )
        if draws is not None:
            draws.key_sample(mix(mix(self._source.enter(piece.epoch)[2], piece.first), COLLATE))
        return self._source.collate(batch)


class _Turns:
    """The sampler that is put into the dataset: the indices of the batches of one loader process, each with its key."""

    def __init__(self, source: MapSource, pieces: list[Slice], draws: Draws | None) -> None:
        self._source, self._pieces, self._draws = source, pieces, draws

    def __iter__(self) -> Iterator[Any]:
        for piece in self._pieces:
            _, indices_at, sample_key = self._source.enter(piece.epoch)
            indices = piece.indices or indices_at(piece.first, piece.last)
            for position, index in enumerate(indices, piece.first):
                if self._draws is not None:
                    self._draws.key_sample(mix(sample_key, position))
                yield index

    def __len__(self) -> int:
        return sum(piece.last - piece.first for piece in self._pieces)


class Read(NamedTuple):
    """One batch of a stream, with its place."""

    batch: Any
    first: int
    last: int
    local: int
    """Samples of it that are this rank's; 0: the batch is there for its shape only."""
    state: Any
    """The dataset's state after this batch; of one that has none, what was seen before and behind it."""


class StreamSource(IterableDataset[Any]):
    """A dataset that is read from one end to the other, by one process of each rank."""

    def __init__(self, dataset: Any, place: tuple[int, str], batching: Batching) -> None:
        self.stands_for = self.dataset = dataset
        self.place, self._batching = place, batching
        self.stateful = can_say_where(dataset)
        self.begin(0, 0, None)

    def begin(self, epoch: int, position: int, state: Any) -> None:
        """Where the next pass begins; state: of the last `Read` before it."""
        self.epoch, self.position, self.state = epoch, position, state

    @property
    def reads_again(self) -> int:
        """Samples that are read and thrown away before the place that `begin` was given."""
        return self.position if self.state is None or "dataset" not in self.state else 0

    def reads(self, batches: Iterable[Read], loader: str, log: Any) -> Iterator[Read]:
        """In the training process: what the loader process yields, as it is."""
        seen = (self.state or {}).get("seen") if say_again(self, loader, log) else None
        before = plain_in(self.dataset)
        for read in batches:
            if not self.stateful:
                compare(seen, read.state["seen"], loader, self.epoch, log)
                seen = read.state["seen"]
            yield read
        now = zip(before, plain_in(self.dataset), strict=False)
        if not self.stateful and (names := {name for was, held in now for name in held.items() - was.items()}):
            log.warning_once(
                f"loader {loader!r}: the dataset changes its {', '.join(sorted(name for name, _ in names))} as it is "
                "read, and a start begins with what the script makes of that: let what it gives follow from "
                "set_epoch(epoch) instead"
            )

    def __iter__(self) -> Iterator[Read]:
        if self.state is not None and self.state.get("ended"):
            return
        key = key_of(*self.place, "stream", self.epoch)
        state = self.state.get("dataset") if self.state is not None else None
        draws, samples, seen = self._batching.open(self.dataset, key, self.epoch, state, self.position)
        first = self.position
        while batch := self._batching.take(samples):
            # Of a dataset that has come to its end, the state may be that of its next pass.
            ended = len(batch) < self._batching.size
            if self.stateful:
                state = {"dataset": copy.deepcopy(self.dataset.state_dict()), "ended": ended}
            else:
                state = {"seen": [seen, seen := self._batching.seen(seen, first, batch)]}
            part, local = self._batching.part(batch, mix(key, first), draws)
            yield Read(part, first, first + len(batch), local, state)
            first += len(batch)


def say_again(source: Any, loader: str, log: Any) -> int:
    """How many samples are read again, which the log says."""
    if again := int(source.reads_again):
        log.info("loader %r reads %d samples of epoch %d again", loader, again, source.epoch)
    return again


def compare(kept: list[str] | None, now: list[str], loader: str, epoch: int, log: Any) -> None:
    """Warns where the samples before this place are others than they were the first time. kept, now: what was seen
    before and behind a batch; now of the one that follows."""
    # With another size of batches, other samples were looked at.
    if kept is not None and kept[1] != now[0] and kept[1].partition(":")[0] == now[0].partition(":")[0]:
        log.warning_once(
            f"loader {loader!r}: epoch {epoch} has other samples as it is read again, so that what follows is not what "
            "would have followed: let the dataset's order follow from set_epoch(epoch) and from generators that it "
            "holds, and not from how often it was read, the time, or the process"
        )


def _check_known(dataset: Any) -> None:
    """Refuses datasets of two libraries whose state_dict() is there and does not say all."""
    library = type(dataset).__module__.partition(".")[0]
    if library == "streaming" and hasattr(dataset, "__getitem__"):
        raise NotResumable(
            f"{type(dataset).__name__} of MosaicML Streaming cuts its samples by ranks and loader processes itself: "
            "give the DataLoader a torch Dataset whose __len__ and __getitem__ ask it, so that it is read by index"
        )
    if library == "datasets" and (shuffled := _shuffle_buffer(dataset)):
        raise NotResumable(
            f"{type(dataset).__name__}.shuffle() keeps samples in a buffer ({shuffled}) that its state_dict() leaves "
            "out: shuffle before to_iterable_dataset(), or allow run.loader(..., replay=True), which reads again from "
            "the start of the epoch up to the place"
        )


def _shuffle_buffer(dataset: Any) -> str:
    """The part of a dataset of Hugging Face's that shuffles in a buffer, by its class; empty if none does."""
    waiting = [getattr(dataset, "_ex_iterable", None)]
    while waiting:
        part = waiting.pop()
        if "BufferShuffled" in type(part).__name__:
            return type(part).__name__
        inner = getattr(part, "ex_iterable", None)
        waiting += [each for each in (inner, *(getattr(part, "ex_iterables", None) or ())) if each is not None]
    return ""


def check_stream(dataset: Any, num_workers: int, world_size: int, replay: bool, streams: int | None) -> None:
    """Raises NotResumable where an iterable dataset without a sampler cannot be read exactly."""
    name = type(dataset).__name__
    theirs = getattr(dataset, "_distributed", None) if type(dataset).__module__.startswith("datasets.") else None
    if world_size > 1 and getattr(theirs, "world_size", 1) > 1:
        raise NotResumable(
            f"{name} is divided among the ranks by split_dataset_by_node(), and each rank is given its part of what it "
            "reads, so that the rest would never be read: give every rank the whole dataset"
        )
    if not replay:
        _check_known(dataset)
    if not can_say_where(dataset) and not replay:
        raise NotResumable(
            f"{name} cannot say where it is, so it cannot be resumed in the middle of an epoch: give it state_dict() "
            "and load_state_dict(), or an attribute `sampler` that its iterator draws its indices from, or allow "
            "run.loader(..., replay=True), which reads again from the start of the epoch up to the place"
        )
    if streams is not None:
        if streams < 1 or streams % max(1, num_workers):
            raise NotResumable(
                f"streams={streams} of {name} with num_workers={num_workers}: a stream stays in one loader process, so "
                "give a multiple of num_workers, at least 1"
            )
        return
    if num_workers > 1:
        raise NotResumable(
            f"{name} is read by {num_workers} loader processes, each of which would read all of it or a part that "
            "depends on their number: use num_workers=1, or give it an attribute `sampler`, or, if it divides itself "
            f"by get_worker_info(), say run.loader(..., streams={num_workers}) and keep that number"
        )
    if world_size > 1 and not replay:
        raise NotResumable(
            f"{name} is read by {world_size} ranks: if each rank's iterator yields every sample, say "
            "run.loader(..., replay=True), and each rank keeps its part of a batch; or give it an attribute `sampler`"
        )
