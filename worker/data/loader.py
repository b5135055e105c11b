"""A DataLoader that begins where the run is, with the same order and the same random numbers as without a restart."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from ..errors import NotResumable, WrongState
from ..keys import key_of, mix, mixed
from .batching import Batching, check_same, chosen_batch, iterates_itself, kept_batch, warn_of_iteration
from .context import Context, iteration
from .cursors import Account, Cursor, Pass, Span, span_of
from .divided import DividedSource
from .orderings import Begun, InOrder, Listed, Ordering, ordering_of, plain_batches, resized, size_of
from .sharded import Group, assemble, counts_of, slices_of
from .slicing import Cut, Slice
from .source import MapSource, Slices, check_samples, collation_of, dataloader, plain_in
from .streams import SampledSource, StreamSource, check_stream

_KEYS_AHEAD = 64
"""Keys of batches that are computed at once."""


class Loader:
    """Stands for a DataLoader in a run. Iterate it once per epoch, as the DataLoader; `for` again after a `break` goes
    on after the last committed batch. Made by `Run.loader`."""

    weight: float
    """What the loss of the batch in hand must be multiplied by, so that the mean over the ranks is the mean over the
    samples of the global batch: 1.0 where all ranks have as many, 0.0 on a rank that has none."""

    def __init__(
        self,
        context: Context,
        loader: DataLoader[Any],
        name: str,
        global_batch: int | None = None,
        train: bool | None = None,
        random: str = "auto",
        on_sample: Callable[[int], None] | None = None,
        replay: bool = False,
        streams: int | None = None,
    ) -> None:
        if not getattr(loader, "in_order", True):
            raise NotResumable(
                f"loader {name!r} has in_order=False, so what was trained on is no prefix: use in_order=True"
            )
        if random not in ("auto", "always", "never"):
            raise NotResumable(f"random={random!r} of loader {name!r}: it is one of auto, always, never")
        warn_of_iteration(loader, name, context.log)
        self.name, self.wrapped, self.dataset = name, loader, loader.dataset
        self.weight = 1.0
        self._context, self._train, self._replay, self._streams = context, train, replay, streams
        self._random, self._on_sample = random, on_sample
        self._main_key = key_of(context.seed, name, "main")
        self._epoch_key = (-1, 0)
        self._of_batches = False
        self._length: int | None = None
        self._sampler: Any = None
        self._begun = Begun()
        self.is_stream = False
        """Whether the dataset is iterable and has no sampler."""
        self._ordering = self._choose_ordering(loader)
        self._drop_last = bool(getattr(loader.batch_sampler, "drop_last", loader.drop_last))
        self._asked_batch = global_batch
        self.global_batch = chosen_batch(loader, name, global_batch, self._parts, self._of_batches)
        self.stream_state: Any = None
        """Of a stateful stream, the state at the committed place."""
        self._states: dict[tuple[int, int], Any] = {}
        self._kept: tuple[Iterable[Any], Slices, Any] | None = None
        self._source, self._stream_source = self._make_sources()
        context.account.cursors[name].evaluates = train is False

    def _choose_ordering(self, loader: DataLoader[Any]) -> Ordering:
        """The ordering of the samples, or of the batches; of nothing for a stream."""
        if isinstance(loader.dataset, IterableDataset):
            if hasattr(loader.dataset, "sampler"):
                # The dataset's own length need not be there, and may follow from the sampler, which is replaced.
                self._length = size_of(loader.dataset.sampler)
                return ordering_of(loader.dataset.sampler, self._length)
            check_stream(loader.dataset, loader.num_workers, self._context.world_size, self._replay, self._streams)
            self.is_stream = True
            return InOrder(0)
        check_samples(self.dataset, self._random, self._streams)
        if loader.batch_sampler is not None and not plain_batches(loader.batch_sampler):
            self._of_batches = True
            count = len(loader.dataset) if hasattr(loader.dataset, "__len__") else 0
            return Listed(loader.batch_sampler, count, may_repeat=not iterates_itself(loader))
        # A BatchSampler that the user made holds the sampler that counts; the DataLoader's own is a stand-in then.
        sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
        self._length, self._sampler = len(loader.dataset), sampler  # type: ignore[arg-type]
        return ordering_of(sampler, self._length)

    def adopt(self, state: dict[str, Any], stream_state: Any, anew: bool = False) -> None:
        """Goes to the place of a checkpoint, or of the loader that this one takes the place of. anew: whether each
        epoch may have another dataset and order. Raises WrongState if it is within an epoch of another one."""
        if not anew or self._context.account.place(self.name)[1]:
            check_same(self.name, state, self.identity())
        if self._asked_batch is None and not self._of_batches:
            self.global_batch = kept_batch(self._context, self.name, int(state["batch"]), self.global_batch)
        self.stream_state = stream_state
        self._begun.kept = state.get("begun")
        self._source, self._stream_source = self._make_sources()

    def state_dict(self) -> dict[str, Any]:
        """The committed place, as torchdata's StatefulDataLoader says its own: for code that asks loaders for it. The
        checkpoints of a run have it without being asked."""
        self._context.account.begin_loop()
        cursor = self._context.account.cursors[self.name]
        return {
            "epoch": cursor.epoch,
            "position": cursor.position,
            "loader": self.identity(),
            "stream": self.stream_state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to a place, before the loop begins. Raises WrongState for the state of another loader."""
        if "position" not in state or "loader" not in state:
            raise WrongState(
                f"loader {self.name!r}: this state is of another library's loader; begin the epoch anew, and save this "
                "one's from now on"
            )
        self.adopt(state["loader"], state["stream"])
        self._context.account.begin_loop()
        cursor = self._context.account.cursors[self.name]
        cursor.held.clear()
        cursor.epoch, cursor.position = int(state["epoch"]), int(state["position"])

    def identity(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the two integers of the place, to know the loader again."""
        dataset: Any = self.dataset
        return {
            "kind": f"{type(dataset).__module__}.{type(dataset).__qualname__}",
            "length": self._length,
            "order": self._order_name(),
            "batch": self.global_batch,
            "begun": self._begun.kept,
        }

    def _order_name(self) -> str:
        if self.is_stream:
            return "Stream" if self._streams is None else f"{self._streams} streams"
        return type(self._ordering).__name__

    @property
    def fixed_batch(self) -> bool:
        """Whether the global batch stays the same when the number of ranks changes."""
        return not self._of_batches or self._context.division is not None

    def __len__(self) -> int:
        """Steps of a whole epoch."""
        return self._cut(self._in_use()).steps

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, from 0."""
        return self._context.account.place(self.name)[0]

    @property
    def position(self) -> int:
        """Samples (batches, with a batch sampler of one's own) of the epoch that are committed."""
        account = self._context.account
        return account.place(self.name)[1] if account.rehearses else account.cursors[self.name].position

    @property
    def batches_done(self) -> int:
        """Batches of the epoch that are committed: where `enumerate(loader, loader.batches_done)` begins in a start."""
        return -(-self.position // self.global_batch)

    @property
    def total(self) -> int | None:
        """Positions of a whole epoch; None for a stream, whose length is not known."""
        return None if self.is_stream else self._cut(self._in_use()).end

    def _in_use(self) -> int:
        """The epoch of the pass that is going on, also behind its last batch; else the next one's."""
        begun = self._begun.epoch
        return self.epoch if begun is None or not self._context.account.goes_over(self.name) else begun

    @property
    def batch_size(self) -> int:
        """The most samples that a rank, or a shard, gets at once."""
        return -(-self.global_batch // self._parts)

    @property
    def _parts(self) -> int:
        """Into how many parts a global batch is cut."""
        return self._context.world_size if self._context.division is None else self._context.division.count

    def __iter__(self) -> Iterator[Any]:
        account, between = self._context.account, self._context.between
        if account.rehearses and self.name not in (account.rehearsed or ()):
            account.begin_loop()
        going = account.begin(self.name)
        going.undecided = self._train is None
        if going.follows and between is not None and between.changes():
            account.settled = False
            going.skipped = going.skipped and not account.behind  # what it is for begins anew, too
        if going.skipped:
            batches: Iterator[Any] = iter(())
        else:
            batches = self._ordered(going) if self._stream_source is None else self._stream(going, self._stream_source)
        return iteration(self._context, going, batches)

    def _before_next(self, going: Pass, account: Account, cursor: Cursor) -> None:
        if self._train is None:
            # A loop under no_grad evaluates: nothing is trained on, so no step will commit its batches.
            cursor.evaluates = not torch.is_grad_enabled()
        if account.ask(going):
            self._context.asked()

    def _hand(self, span: Span, weight: float, batch: Any) -> Any:
        """What the loop gets."""
        context = self._context
        context.account.hand_out(span)
        division, key = context.division, mix(self._key_of(span.epoch), span.first)
        context.key(key)
        context.keyed = True
        if context.watched:
            context.got()
        if division is None:
            self.weight = weight
            return batch
        sizes = self._sizes(span.first, span.last) if self._of_batches else None
        return assemble(division, key, counts_of(division, span.first, span.last, sizes), batch)

    def _key_of(self, epoch: int) -> int:
        """Of the training process, for the batches of an epoch."""
        if self._epoch_key[0] != epoch:
            key, context = mix(self._main_key, epoch), self._context
            self._epoch_key = (epoch, key if context.division is not None else mix(key, context.rank))
        return self._epoch_key[1]

    def _ordered(self, going: Pass) -> Iterator[Any]:
        """What is called at every batch is written out here: each call costs a training whose caches are full of other
        things half a percent of a step of 200 us. Where a batch draws nothing, the generators are keyed for what
        follows the next one before that is read: they need to be in a known state then, and stay in it."""
        context, name, account = self._context, self.name, self._context.account
        cursor, of_shards = account.cursors[name], context.division is not None
        (epoch, last), held = cursor.ahead(), cursor.held
        cut, key, key_main, watched = self._cut(epoch, last), self._key_of(epoch), context.key, context.watched
        source = self._source
        context.alike.begins(name, epoch, self.dataset, self._ordering, cut.batch)
        read, end, size = self._reader(epoch, last, cut), cut.end, cut.batch
        whole, keys = cut.size == 1 and not self._of_batches, list[int]()
        while (first := last) < end:
            if (last := first + size) > end:
                last = end
            if account.alone is going and cursor.stepped and keys and monotonic() < context.quiet_until_s:
                cursor.stepped = False  # as `Account.ask`; nothing is due
            else:
                self._before_next(going, account, cursor)
                if context.stopping:
                    return
            keys = keys or mixed(key, first, min(_KEYS_AHEAD, -(-(end - first) // size)), size)[::-1]
            if keyed := source.left_keyed and not of_shards:
                key_main(keys[-1])
            batch = read(first, last)
            weight = 1.0 if whole else self._weight(cut, first, last)
            span = span_of((name, epoch, first, last, last == end))
            if of_shards:
                yield self._hand(span, weight, batch)
            else:  # as `_hand`
                if account.alone is going and not cursor.evaluates:
                    held.append(span)
                else:
                    account.hand_out(span)
                following = keys.pop()
                if not keyed or not source.left_keyed:
                    key_main(following)
                context.keyed = True
                if watched:
                    context.got()
                self.weight = weight
                yield batch
        self._before_next(going, account, cursor)
        if cursor.position >= end and not cursor.held:  # of batches that were smaller; the rest of the epoch is dropped
            account.hand_out(Span(name, epoch, last, last, True))

    def _stream(self, going: Pass, source: StreamSource | DividedSource) -> Iterator[Any]:
        cursor = self._context.account.cursors[self.name]
        self.committed()  # what the loop committed before it broke off
        epoch, position = cursor.ahead()
        last = position
        source.begin(epoch, position, self.stream_state if position else None)
        for read in source.reads(self._dataloader(source, None), self.name, self._context.log):
            self._before_next(going, self._context.account, cursor)
            if self._context.stopping:
                return
            self._states[epoch, read.last] = read.state
            last = read.last
            weight = read.local * self._context.world_size / (read.last - read.first)
            yield self._hand(Span(self.name, epoch, read.first, read.last, False), weight, read.batch)
        self._before_next(going, self._context.account, cursor)
        if not self._context.stopping:  # else the next start comes to this end, in the same epoch of the run
            self._context.account.hand_out(Span(self.name, epoch, last, last, True))

    def committed(self) -> None:
        """Keeps the state of a stream at the place that was committed last."""
        cursor = self._context.account.cursors[self.name]
        epoch, position = cursor.epoch, cursor.position
        self.stream_state = self._states.pop((epoch, position), self.stream_state if position else None)
        for place in [place for place in self._states if place <= (epoch, position)]:
            del self._states[place]

    def _cut(self, epoch: int, begins_at: int | None = None) -> Cut:
        if self.is_stream:
            raise TypeError(f"loader {self.name!r} reads a stream, whose length is not known")
        if self._begun.epoch != epoch:
            self._look(epoch, anew=begins_at is not None)
        if begins_at is not None:
            self._begun.begin(self.name, epoch, begins_at, self._ordering.length())
        context = self._context
        drop_last = self._drop_last and not self._of_batches
        return Cut(self._ordering.length(), self.global_batch, context.rank, context.world_size, drop_last)

    def _look(self, epoch: int, anew: bool) -> None:
        """Until a pass over it begins, an epoch is what the dataset and the sampler have now."""
        if isinstance(self._ordering, Listed):
            self._ordering.list_epoch(epoch, key_of(self._context.seed, self.name, "order", epoch), anew)
        elif (other := resized(self._ordering, self._sampler)) is not None:
            self._ordering, self._kept = other, None
            self._source, self._stream_source = self._make_sources()

    def _weight(self, cut: Cut, first: int, last: int) -> float:
        if not self._of_batches:
            return cut.weight(first, last)
        sizes = self._sizes(first, last)
        mine = sizes[cut.rank] if cut.rank < len(sizes) else 0
        return mine * cut.size / sum(sizes)

    def _sizes(self, first: int, last: int) -> list[int]:
        """Of the batches of a batch sampler of the user's."""
        return [len(batch) for batch in self._ordering.indices(0, first, last)]

    def _slice(self, cut: Cut, epoch: int, first: int, last: int) -> Slice | Group:
        if (division := self._context.division) is not None:
            parts = slices_of(division, epoch, first, last, self._of_batches)
            return Group(tuple(self._looked_up(part) for part in parts))
        if self._of_batches:
            turn = first + cut.rank if first + cut.rank < last else first
            return self._looked_up(Slice(epoch, turn, turn + 1))
        return self._looked_up(cut.slice(epoch, first, last))

    def _looked_up(self, piece: Slice) -> Slice:
        if isinstance(self._ordering, Listed):
            return piece._replace(indices=self._ordering.indices(0, piece.first, piece.last))
        return piece

    def _reader(self, epoch: int, position: int, cut: Cut) -> Callable[[int, int], Any]:
        """What reads this rank's part of the global batch [first, last), called for one after the other."""
        theirs, source = self.wrapped, self._source
        if theirs.num_workers or theirs.pin_memory or isinstance(self.dataset, IterableDataset):
            batches = iter(self._start(epoch, position, cut))
            return lambda first, last: next(batches)
        # Without loader processes a DataLoader adds nothing but its price, 10 us a batch.
        if cut.size == 1 and self._context.division is None and not isinstance(self._ordering, Listed):
            return functools.partial(source.read, epoch)
        return lambda first, last: source[self._slice(cut, epoch, first, last)]

    def _start(self, epoch: int, position: int, cut: Cut) -> Iterable[Any]:
        if self._context.division is None and not isinstance(self._ordering, Listed):
            slices = Slices(lambda: cut.slices(epoch, position))
        else:
            slices = Slices(lambda: (self._slice(cut, epoch, *batch) for batch in cut.batches(position)))
        if isinstance(self.dataset, IterableDataset):
            return self._dataloader(SampledSource(self._source, list(slices)), None)
        if not self.wrapped.persistent_workers:
            return self._dataloader(self._source, slices)
        if self._kept is None or self._kept[2] != plain_in(self.dataset):
            self._kept = (self._dataloader(self._source, slices), slices, plain_in(self.dataset))
        loader, kept, _ = self._kept
        kept.make = slices.make
        return loader

    def _make_sources(self) -> tuple[MapSource, StreamSource | DividedSource | None]:
        """What stands in the dataset's place; the second one for a stream, whose ordering is empty."""
        loader, place, collate = self.wrapped, (self._context.seed, self.name), collation_of(self.wrapped)
        source = MapSource(
            self.dataset, self._ordering, collate, place, self._random, self._on_sample, self._of_batches
        )
        if not self.is_stream:
            return source, None
        world = (self._context.rank, self._context.world_size)
        division = self._context.division
        batching = Batching(collate, self.global_batch, world, self._drop_last, self._on_sample, division)
        if self._streams is not None:
            return source, DividedSource(loader.dataset, place, batching, self._streams)
        return source, StreamSource(loader.dataset, place, batching)

    def _dataloader(self, source: Any, slices: Slices | None) -> Iterable[Any]:
        return dataloader(self.wrapped, source, key_of(self._context.seed, self.name, "base"), slices)
