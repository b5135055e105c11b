"""How large global batches are, and how the samples of an iterable dataset become this rank's parts of them."""

from __future__ import annotations

import copy
import ctypes
import itertools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from ..errors import NotResumable, WrongState
from ..keys import mix
from .context import Context
from .randomness import Draws, generators_in
from .sharded import Division, slices_of
from .slicing import part_of
from .source import COLLATE


def iterates_itself(loader: DataLoader[Any]) -> bool:
    """Whether the loader's class has an `__iter__` of its own, which this library does not call."""
    kind = type(loader)
    theirs = kind.__module__.startswith(("accelerate.", "torchdata."))  # which give batches as they are
    return kind.__iter__ is not DataLoader.__iter__ and not theirs


def warn_of_iteration(loader: DataLoader[Any], name: str, log: Any) -> None:
    """Says where batches come without what the loader's class does with them."""
    if iterates_itself(loader):
        log.warning(
            "loader %r: the __iter__ of %s is not called, as this library makes the batches by itself: what it does "
            "with them belongs into the collate_fn, or into the loop",
            *(name, type(loader).__name__),
        )


def batches_are_sliced(loader: DataLoader[Any]) -> bool:
    """Whether this library cuts the batches, so that a global batch can be asked for."""
    return isinstance(loader.dataset, IterableDataset) or type(loader.batch_sampler) is BatchSampler


def chosen_batch(loader: DataLoader[Any], name: str, asked: int | None, parts: int, of_batches: bool) -> int:
    """Positions of a global batch of so many parts. asked: samples; None: the DataLoader's batch size, which in shards
    is that of a shard, in each part. of_batches: whether a position is a batch of the loader's own batch sampler.

    Raises NotResumable."""
    if of_batches:
        if asked is not None:
            raise NotResumable(
                f"global_batch={asked} of loader {name!r}: its batch sampler decides how large batches are; leave "
                "global_batch out"
            )
        return parts
    if asked is not None:
        if asked < 1:
            raise NotResumable(f"global_batch={asked} of loader {name!r}: at least 1 sample")
        return int(asked)
    return int(getattr(loader.batch_sampler, "batch_size", loader.batch_size) or 1) * parts


def kept_batch(context: Context, name: str, kept: int, script: int) -> int:
    """The global batch of a checkpoint, which a loader goes on with; `script`: what the DataLoader's batch size gives
    here. The log says where they differ and no change of the number of ranks can be why. Raises NotResumable."""
    division, ranks = context.division, context.world_size
    if division is None and kept % ranks:
        raise NotResumable(
            f"loader {name!r} had a global batch of {kept}, which does not divide by {ranks} ranks: say "
            f"run.loader(..., global_batch={kept}) and multiply the loss by loader.weight"
        )
    # Shards are as many as before. Of ranks, the checkpoint says how many there were at its start, not at the first;
    # without one it is a loader of this start that is made anew.
    same = division is not None or context.ranks_before in (None, ranks)
    if kept != script and (same or kept % (script // ranks)):
        context.log.info(
            "loader %r goes on with the global batch of %d that it had; the script's batch_size gives %d: say "
            "run.loader(..., global_batch=%d) to change it",
            *(name, kept, script, script),
        )
    return kept


def check_same(name: str, kept: dict[str, Any], now: dict[str, Any]) -> None:
    """Raises WrongState where what a checkpoint has of a loader's data is of other data, or in another order."""
    for what in ("kind", "length", "order"):
        if kept.get(what) != now[what]:
            raise WrongState(
                f"loader {name!r}: the checkpoint is of {what} {kept.get(what)!r}, and it is {now[what]!r} now; give "
                "the loader the dataset and sampler it had, or another name to begin anew"
            )


def can_say_where(dataset: Any) -> bool:
    """Whether the dataset speaks the protocol of `torchdata`'s StatefulDataLoader."""
    return callable(getattr(dataset, "state_dict", None)) and callable(getattr(dataset, "load_state_dict", None))


@dataclass(frozen=True)
class Batching:
    """What is the same for all batches of a stream."""

    collate: Callable[[Any], Any]
    size: int
    """Samples of a global batch."""
    world: tuple[int, int]
    """This rank and the number of ranks."""
    drop_last: bool
    on_sample: Callable[[int], None] | None
    division: Division | None
    """At level `bits`: the shards of a batch."""

    def open(self, dataset: Any, key: int, epoch: int, state: Any, read: int) -> tuple[Draws, Iterator[Any], str]:
        """The dataset's samples behind the `read` first of the epoch, each under the key of its number; what keys them;
        and what has been seen of these first ones, as `seen` gives it. state: the dataset's own, of that place; None:
        it is read there from its start."""
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(epoch)
        kept = state if state is not None or not can_say_where(dataset) else dataset.state_dict()
        kept, number = copy.deepcopy(kept), 0 if state is None else read
        draws, samples = self._begun(dataset, key, state, number)
        held, head = draws.held, list(itertools.islice(samples, 1))
        made = generators_in([dataset, self.collate])
        # Generators that are made when first used: the first sample is read again, with these keyed.
        if len(made) > len(held) and iter(dataset) is not dataset:
            draws, samples = self._begun(dataset, key, kept, number)
            head = list(itertools.islice(samples, 1))
        samples, seen = itertools.chain(head, samples), f"{self.size}:"
        for place, sample in enumerate(itertools.islice(samples, read if state is None else 0)):
            seen = self.seen(seen, place, [sample])
        return draws, samples, seen

    def seen(self, before: str, first: int, samples: list[Any]) -> str:
        """A digest of one sample of each global batch, by which a dataset that is read again is known. before: that of
        the samples before the one with the number `first`."""
        turn = -first % self.size
        if turn >= len(samples):
            return before
        return f"{self.size}:{zlib.crc32(repr([before, _plain(samples[turn])]).encode()):08x}"

    def _begun(self, dataset: Any, key: int, state: Any, number: int) -> tuple[Draws, Iterator[Any]]:
        """Iterates the dataset from a state of its own, or as it is; its first sample has this number."""
        if state is not None:
            dataset.load_state_dict(copy.deepcopy(state))
        draws = Draws(True, generators_in([dataset, self.collate]), self.on_sample)
        draws.key_sample(mix(key, -1))
        return draws, _keyed(iter(dataset), draws, key, number)

    def take(self, samples: Iterator[Any]) -> list[Any]:
        """The next global batch; empty at the end, which a batch that is dropped is, too."""
        batch = list(itertools.islice(samples, self.size))
        return [] if self.drop_last and len(batch) < self.size else batch

    def part(self, batch: list[Any], key: int, draws: Draws) -> tuple[Any, int]:
        """This rank's part of a global batch, collated, and its samples; with shards, each under a key of its own."""
        if self.division is None:
            low, high = part_of(0, len(batch), *self.world)
            return self.collate(batch[low:high] or batch[:1]), high - low
        parts = []
        for piece in slices_of(self.division, 0, 0, len(batch), whole=False):
            draws.key_sample(mix(mix(key, piece.first), COLLATE))
            parts.append(self.collate(batch[piece.first : piece.last]))
        return parts, 0


def _plain(value: Any) -> Any:
    """What of a sample is the same in each process that makes it: numbers, texts, and the checksums of tensors and
    arrays; of anything else the class."""
    if isinstance(value, dict):
        return {str(name): _plain(held) for name, held in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(held) for held in value]
    if type(value) is torch.Tensor and value.layout == torch.strided and not value.is_meta:
        held = value.detach().cpu().contiguous()
        return zlib.crc32(ctypes.string_at(held.data_ptr(), held.nbytes))
    if isinstance(value, (bool, int, float, str, bytes, type(None))):
        return value
    return zlib.crc32(value.tobytes()) if type(value).__module__ == "numpy" else type(value).__qualname__


def _keyed(samples: Iterator[Any], draws: Draws, key: int, position: int) -> Iterator[Any]:
    """The samples, each read under the key of its number; the first one's is `position`."""
    for number in itertools.count(position):
        draws.key_sample(mix(key, number))
        try:
            sample = next(samples)
        except StopIteration:
            return
        yield sample
