"""What stands in the DataLoader in the place of the user's dataset, in the training process or in a loader process.

The DataLoader's sampler yields slices of the order; indices are made from them here, where the samples are read, so
that nothing large is sent to loader processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from ..errors import NotResumable
from ..keys import key_of, mix, mixed
from .orderings import Indices, Ordering
from .packing import packed
from .randomness import Draws, generators_in
from .sharded import Group
from .slicing import Slice

COLLATE = -2
"""The number that is mixed into a batch's key for the randomness of its collation."""
_KEYS_AT_ONCE = 512
_PLAIN, _DATASETS_DEEP = (bool, int, float, str, type(None)), 4


class MapSource(Dataset[Any]):
    """A map-style dataset whose items are whole batches, by `Slice`."""

    def __init__(
        self,
        dataset: Any,
        ordering: Ordering,
        collate: Callable[[Any], Any],
        place: tuple[int, str],
        draws: str = "auto",
        on_sample: Callable[[int], None] | None = None,
        of_batches: bool = False,
    ) -> None:
        """place: the run's seed and the loader's name. draws: "auto", "always" or "never". of_batches: whether a
        position of the ordering is a batch (a list of indices) and not a sample."""
        self.stands_for = self.dataset = dataset
        self.ordering, self.collate, self.place = ordering, collate, place
        self.choice, self.on_sample, self._of_batches = draws, on_sample, of_batches
        self._reads_many = hasattr(dataset, "__getitems__")
        self._one_by_one = not self._reads_many and not of_batches
        self._draws: Draws | None = None
        self.left_keyed = False
        """Whether the last batch that was read in this process left the global generators as it found them."""
        self._epoch: tuple[int, Indices, int] | None = None
        self._sample_keys: tuple[int, int, list[int]] = (0, -1, [])

    def __getitem__(self, piece: Slice | Group) -> Any:
        if isinstance(piece, Group):
            return [self[part] for part in piece.slices]
        return self.read(*piece)

    def read(self, epoch: int, first: int, last: int, indices: list[Any] | None = None) -> Any:
        """The batch of a slice, by its parts."""
        if (entered := self._epoch) is None or entered[0] != epoch:
            entered = self.enter(epoch)
        if indices is None:
            indices = entered[1](first, last)
        if self.choice == "never":
            return self.collate(self._fetch(indices))
        if (draws := self._draws) is None:
            return self._read_first(epoch, first, last, indices)
        undrawn = draws.undrawn
        if not (kept := undrawn()):
            draws.park()
        if self._one_by_one and not draws.keyed:
            dataset = self.dataset
            batch = self.collate([dataset[index] for index in indices])
        else:
            batch = self._compute(indices, first, entered[2], draws)
        if undrawn():
            self.left_keyed = kept and not draws.keyed
            return batch
        self.left_keyed = False
        while draws.found_more():
            draws.park()
            batch = self._compute(indices, first, entered[2], draws)
        return batch

    def _read_first(self, *piece: Any) -> Any:
        """The first batch of this process: the dataset or the collation may make its generators as it is read, such as
        Hugging Face's collators with a seed; it is read again then, with these keyed."""
        held = generators_in([self.dataset, self.collate])
        self._draws = Draws(self.choice == "always", held, self.on_sample)
        batch = self.read(*piece)
        made = generators_in([self.dataset, self.collate])
        if any(all(each is not other for other in held) for each in made):
            self._draws = Draws(self.choice == "always", made, self.on_sample)
            batch = self.read(*piece)
        return batch

    def enter(self, epoch: int) -> tuple[int, Indices, int]:
        """An epoch, the indices at positions of it, and the key of what its samples draw."""
        if self._epoch is None or self._epoch[0] != epoch:
            indices = self.ordering.of_epoch(key_of(*self.place, "order", epoch))
            self._epoch = (epoch, indices, key_of(*self.place, "samples", epoch))
        return self._epoch

    def _compute(self, indices: list[Any], first: int, key: int, draws: Draws) -> Any:
        """A batch, keyed where its dataset draws: by sample, or whole where one position is one batch, or where the
        dataset can read samples only together."""
        if not draws.keyed:
            return self.collate(self._fetch(indices))
        if self._of_batches or _only_together(self.dataset):
            draws.key_sample(mix(key, first))
            return self.collate(self._fetch(indices))
        dataset, key_sample = self.dataset, draws.key_sample
        # `zip` takes an index, then keys its sample: a loop of statements takes a tenth longer.
        keyed = zip(indices, map(key_sample, self._keys_from(key, first, len(indices))), strict=True)
        samples = [dataset[index] for index, _ in keyed]
        if self.collate is not default_collate:  # which draws nothing
            key_sample(mix(mix(key, first), COLLATE))
        return self.collate(samples)

    def _keys_from(self, key: int, first: int, count: int) -> list[int]:
        """The keys of `count` samples from position `first` on, out of a chunk that is computed at once; the larger the
        longer positions have followed each other."""
        kept_key, begins, keys = self._sample_keys
        if key != kept_key or not begins <= first <= first + count <= begins + len(keys):
            follows = key == kept_key and begins < first <= begins + len(keys)
            size = min(4 * len(keys), _KEYS_AT_ONCE) if follows else count
            begins, keys = first, mixed(key, first, max(count, size))
            self._sample_keys = (key, begins, keys)
        return keys[first - begins : first - begins + count]

    def _fetch(self, indices: list[Any]) -> Any:
        """The samples, together where the dataset can read them so."""
        if self._of_batches:
            (indices,) = indices
        dataset = self.dataset
        if self._reads_many:
            return dataset.__getitems__(list(indices))
        return [dataset[index] for index in indices]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_draws": None, "_epoch": None}


def _only_together(dataset: Any) -> bool:
    """Whether the dataset has `__getitems__` and no `__getitem__` but that of its base class, which raises."""
    one = getattr(type(dataset), "__getitem__", None)
    return hasattr(dataset, "__getitems__") and (one is None or one is Dataset.__getitem__)


def check_samples(dataset: Any, draws: str, streams: int | None) -> None:
    """Raises NotResumable where what was asked for cannot be had from a map-style dataset."""
    name = type(dataset).__name__
    if streams is not None:
        raise NotResumable(
            f"streams={streams}: {name} is a map-style dataset, whose samples are divided by index; leave streams out"
        )
    if draws == "always" and _only_together(dataset):
        raise NotResumable(
            f"{name} has __getitems__ and no __getitem__, so its random numbers cannot follow from a sample's place: "
            'give it __getitem__, or say random="auto", with which they stay the same while the ranks\' parts do'
        )


def plain_in(dataset: Any) -> list[dict[str, Any]]:
    """The plain attributes of a dataset, and of those that it is a part of, by which a script tells it the epoch or how
    hard to be. Loader processes that stay over the epochs hold a copy, which does not see them change."""
    found = list[dict[str, Any]]()
    while dataset is not None and len(found) < _DATASETS_DEEP:
        held = getattr(dataset, "__dict__", {})
        found.append({name: value for name, value in held.items() if isinstance(value, _PLAIN)})
        dataset = held.get("dataset")
    return found


def same(batch: Any) -> Any:
    """The DataLoader's own collation: the source has done it, under the batch's key."""
    return batch


class LoaderProcess:
    """What a loader process runs first: the user's `worker_init_fn`, which still finds the user's dataset in
    `get_worker_info()`, as it would without this library."""

    def __init__(self, worker_init_fn: Callable[[int], None] | None) -> None:
        self._user = worker_init_fn

    def __call__(self, number: int) -> None:
        info = torch.utils.data.get_worker_info()
        if info is not None and hasattr(info.dataset, "stands_for"):
            # WorkerInfo refuses assignments; the loop of the loader process keeps its own reference to the source.
            object.__setattr__(info, "dataset", info.dataset.stands_for)
        if self._user is not None:
            self._user(number)


class Slices:
    """The sampler of the DataLoader underneath: begins anew at each `for`, where `make` says."""

    def __init__(self, make: Callable[[], Iterator[Slice | Group]]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[Slice | Group]:
        return self.make()


def dataloader(theirs: DataLoader[Any], source: Any, key: int, slices: Slices | None) -> Iterable[Any]:
    """The DataLoader underneath, over what stands in the place of the dataset of the user's. key: of what its loader
    processes are seeded with. slices: its sampler; None: `source` is iterable."""
    if not theirs.num_workers and not theirs.pin_memory and slices is None:
        return cast("Iterable[Any]", source)
    # Its own generator: making an iterator draws a number, which would shift the training process's own.
    own: dict[str, Any] = {"generator": torch.Generator().manual_seed(key)}
    if theirs.num_workers:
        own["prefetch_factor"] = theirs.prefetch_factor
        own["persistent_workers"] = theirs.persistent_workers and slices is not None
        own["multiprocessing_context"] = theirs.multiprocessing_context
        own["worker_init_fn"] = LoaderProcess(theirs.worker_init_fn)
    return DataLoader(
        source,
        batch_size=None,
        sampler=slices,
        collate_fn=packed if theirs.num_workers else same,
        num_workers=theirs.num_workers,
        pin_memory=theirs.pin_memory,
        timeout=theirs.timeout,
        **own,
    )


def collation_of(loader: DataLoader[Any]) -> Callable[[Any], Any]:
    """What makes a batch of samples. Raises NotResumable where the dataset makes batches."""
    if loader.batch_size is None and loader.batch_sampler is None:
        raise NotResumable(
            "a DataLoader with batch_size=None leaves batches to the dataset, so samples cannot be counted: give it a "
            "batch_size, or a batch_sampler"
        )
    return cast("Callable[[Any], Any]", loader.collate_fn)
