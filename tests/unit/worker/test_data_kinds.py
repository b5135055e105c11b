"""Kinds of data beyond a plain map-style dataset: read together, or refused with what to add."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    TensorDataset,
)

from elastic_agent.worker import Every, Run
from elastic_agent.worker.data import orderings
from elastic_agent.worker.errors import NotResumable
from support.rigs.data_kinds import NEVER, Stateful

pytestmark = [
    pytest.mark.leaves_behind("torch handles SIGCHLD from the first loader process on"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


class Everything(IterableDataset[int]):
    """Does not divide itself."""

    def __iter__(self) -> Iterator[int]:
        yield from range(10)


class Together(Dataset[Any]):
    """Reads samples together only."""

    def __len__(self) -> int:
        return 8

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [(index, float(torch.rand(()))) for index in indices]


class Either(Together):
    """Reads samples together, or one alone."""

    def __getitem__(self, index: int) -> Any:
        return index, float(torch.rand(()))


REFUSED: dict[str, tuple[Callable[[], DataLoader[Any]], dict[str, Any], str]] = {
    "plain iterable": (
        lambda: DataLoader(Everything(), batch_size=2),
        {},
        r"Everything cannot say where it is.*give it state_dict\(\) and load_state_dict\(\).*`sampler`.*replay=True",
    ),
    "two loader processes": (
        lambda: DataLoader(Stateful(), batch_size=2, num_workers=2),
        {},
        r"Stateful is read by 2 loader processes.*use num_workers=1.*`sampler`.*run.loader\(..., streams=2\)",
    ),
    "streams that do not divide": (
        lambda: DataLoader(Stateful(), batch_size=2, num_workers=4),
        {"streams": 6},
        r"streams=6 of Stateful with num_workers=4.*give a multiple of num_workers",
    ),
    "streams of a map-style dataset": (
        lambda: DataLoader(Either(), batch_size=2),
        {"streams": 2},
        r"streams=2: Either is a map-style dataset.*leave streams out",
    ),
    "drawing together": (
        lambda: DataLoader(Together(), batch_size=2),
        {"random": "always"},
        r'Together has __getitems__ and no __getitem__.*give it __getitem__, or say random="auto"',
    ),
    "batch_size=None": (
        lambda: DataLoader(Either(), batch_size=None),
        {},
        r"batch_size=None leaves batches to the dataset.*give it a batch_size, or a batch_sampler",
    ),
    "out of order": (
        lambda: DataLoader(Either(), batch_size=2, num_workers=1, in_order=False),
        {},
        r"in_order=False, so what was trained on is no prefix: use in_order=True",
    ),
    "unknown choice": (
        lambda: DataLoader(Either(), batch_size=2),
        {"random": "maybe"},
        r"random='maybe'.*auto, always, never",
    ),
    "empty global batch": (
        lambda: DataLoader(Either(), batch_size=2),
        {"global_batch": 0},
        r"global_batch=0.*at least 1",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_exact_is_refused_with_what_to_add(case: str, tmp_path: Path) -> None:
    make, options, sentence = REFUSED[case]
    run = Run(tmp_path / "c", every=NEVER)
    with pytest.raises(NotResumable, match=sentence):
        run.loader(make(), **options)


class Endless(Sampler[Any]):
    """As for loops that count steps."""

    def __init__(self, index: Any) -> None:
        self.index = index

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield self.index


@pytest.mark.parametrize("batches", [False, True])
def test_a_sampler_without_an_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: bool) -> None:
    """It was read until the memory was full."""
    monkeypatch.setattr(orderings, "ENDLESS", 10_000)
    run, data = Run(tmp_path / "c", every=NEVER), TensorDataset(torch.arange(800))
    given: dict[str, Any] = {"batch_sampler": Endless([0, 1])} if batches else {"sampler": Endless(0)}
    loader = run.loader(DataLoader(data, **given))
    with pytest.raises(
        NotResumable, match=r"Endless gives more than 12800 indices.*loop over run\.batches\(loader, st"
    ):
        next(iter(loader))


def test_streams_of_a_dataset_that_does_not_divide_itself_are_refused(tmp_path: Path) -> None:
    run = Run(tmp_path / "c", every=NEVER)
    loader = run.loader(DataLoader(Everything(), batch_size=2), streams=3, replay=True)
    with pytest.raises(NotResumable, match=r"Everything does not look at get_worker_info\(\).*or leave streams out"):
        next(iter(loader))


def test_a_dataset_that_reads_samples_together_and_draws_is_keyed_by_sample(tmp_path: Path) -> None:
    """So its random numbers are the same for every way to cut the order, that is, for every number of ranks."""

    def drawn(batch: int, choice: str) -> list[Any]:
        run = Run(tmp_path / f"{batch}{choice}", every=NEVER)
        loader = run.loader(DataLoader(Either(), batch_size=batch, collate_fn=list), random=choice)
        return [sample for batch in loader for sample in batch]

    assert drawn(2, "auto") == drawn(8, "auto") == drawn(3, "always")


def test_a_dataset_that_does_not_draw_is_still_read_together(tmp_path: Path) -> None:
    class Counting(Either):
        calls = 0

        def __getitems__(self, indices: list[int]) -> list[Any]:
            Counting.calls += 1
            return [(index, 0.0) for index in indices]

    list(Run(tmp_path / "c", every=NEVER).loader(DataLoader(Counting(), batch_size=4)))
    assert Counting.calls == 2


def test_a_sampler_over_a_part_of_the_dataset_reads_that_part(tmp_path: Path) -> None:
    run, part = Run(tmp_path, every=Every(seconds=None)), TensorDataset(torch.arange(4))
    samplers: list[Sampler[int]] = [RandomSampler(part), SequentialSampler(part), DistributedSampler(part, 1, 0)]
    for sampler in samplers:
        loader = run.loader(DataLoader(TensorDataset(torch.arange(10)), batch_size=2, sampler=sampler))
        assert sorted(index for (batch,) in loader for index in batch.tolist()) == [0, 1, 2, 3]


def test_a_rest_that_larger_batches_leave_out_ends_its_epoch(tmp_path: Path) -> None:
    """Nine of ten samples are trained on; with batches of six and drop_last there is none for the tenth."""

    def life(batch: int, ends: bool) -> Iterator[int]:
        run = Run(tmp_path, every=Every(steps=1))
        loader = run.loader(
            DataLoader(TensorDataset(torch.arange(10)), batch_size=3, drop_last=True), global_batch=batch
        )
        for _ in run.epochs(2):
            for (given,) in loader:
                yield len(given)
                run.step()
                if ends and run.steps == 3:
                    run.save()
            if ends:
                run._persistence.wait()
                return

    assert list(life(3, ends=True)) == [3, 3, 3]
    assert list(life(6, ends=False)) == [6]


class Repeated(DataLoader[Any]):
    """Keeps one iterator for all epochs, over a batch sampler without an end, as some trainers do."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        object.__setattr__(self, "batch_sampler", itertools.cycle([[0, 1], [2, 3]]))

    def __iter__(self) -> Any:
        return itertools.islice(super().__iter__(), 2)


def test_what_a_loaders_class_does_with_batches_is_said_not_to_be_done(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its sampler without an end is refused at once: to read 2 ** 24 indices of it would take a minute."""
    run = Run(tmp_path / "checkpoints", every=NEVER)
    loader = run.loader(Repeated(TensorDataset(torch.arange(4)), batch_size=2), name="theirs")
    assert (
        "loader 'theirs': the __iter__ of Repeated is not called, as this library makes the batches by itself: what it "
        "does with them belongs into the collate_fn, or into the loop"
    ) in caplog.messages
    with pytest.raises(NotResumable, match="gives more than 64 indices and seems to have no end"):
        list(loader)
    caplog.clear()
    run.loader(DataLoader(TensorDataset(torch.arange(4)), batch_size=2))
    assert not [text for text in caplog.messages if "__iter__" in text]
