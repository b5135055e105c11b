"""Kinds of data beyond a plain map-style dataset: exact over restarts and loader processes, or refused."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
    get_worker_info,
)

from elastic_agent.worker import Every, Run
from elastic_agent.worker.data import randomness
from elastic_agent.worker.data.randomness import Draws, generators_in
from elastic_agent.worker.errors import NotResumable

NEVER = Every(seconds=None)
SAMPLES = 61

pytestmark = [
    pytest.mark.leaves_behind("torch handles SIGCHLD from the first loader process on"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


class Dividing(IterableDataset[Any]):
    """Divides itself by `get_worker_info()`, unevenly, and draws a random number for each sample."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng()
        self.given = 0

    def mine(self) -> list[int]:
        info = get_worker_info()
        number, count = (info.id, info.num_workers) if info is not None else (0, 1)
        bounds = [SAMPLES * turn * turn // (count * count) for turn in range(count + 1)]
        return list(range(bounds[number], bounds[number + 1]))

    def __iter__(self) -> Iterator[Any]:
        for index in self.mine():
            yield index, float(torch.rand(())), random.random(), float(self.generator.random())


class Sampled(IterableDataset[Any]):
    """Exposes its sampler, has no length, and draws from the global generators."""

    def __init__(self) -> None:
        self.sampler: Any = RandomSampler(range(SAMPLES))

    def __iter__(self) -> Iterator[Any]:
        for index in self.sampler:
            yield index, float(torch.rand(())), random.random(), float(np.random.random_sample())


class Stateful(Dividing):
    """The same, and can say where it is."""

    reads = 0

    def __iter__(self) -> Iterator[Any]:
        while self.given < len(self.mine()):
            self.given += 1
            Stateful.reads += 1
            yield self.mine()[self.given - 1], float(torch.rand(())), random.random(), float(self.generator.random())
        self.given = 0

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given = state["given"]


def life(path: Path, dataset: Any, processes: int, until: int | None, **more: Any) -> list[Any]:
    """One start of a script that reads two epochs; killed after `until` steps."""
    run = Run(path, every=Every(steps=1, seconds=None))
    given: dict[str, Any] = {"num_workers": processes, "batch_size": 4, "collate_fn": list}
    loader = run.loader(DataLoader(dataset, **given), **more)
    seen: list[Any] = []
    for _ in run.epochs(2):
        for batch in loader:
            seen.append(batch)
            run.step()
            if len(seen) == until:
                # The step belongs to a checkpoint once the loop has asked again; so it does not here.
                run.account.between_steps()
                run._between(force=True)
                run._persistence.wait()
                return seen
    return seen


@pytest.mark.parametrize("processes", [0, 2])
def test_an_iterable_that_exposes_its_sampler_draws_the_same_in_every_epoch(tmp_path: Path, processes: int) -> None:
    """Also one without a length; its second epoch finds what the first one left in the dataset."""
    whole = life(tmp_path / "whole", Sampled(), 0, None)
    assert len({sample[0] for batch in whole for sample in batch}) == SAMPLES
    before = life(tmp_path / "killed", Sampled(), processes, 20)
    after = life(tmp_path / "killed", Sampled(), processes, None)
    assert before + after == whole


@pytest.mark.parametrize(("kind", "replay"), [(Dividing, True), (Stateful, False)])
def test_a_dataset_that_divides_itself_is_the_same_over_restarts_and_loader_processes(
    tmp_path: Path, kind: Callable[[], Any], replay: bool
) -> None:
    def go(where: str, processes: int, until: int | None = None) -> list[Any]:
        return life(tmp_path / where, kind(), processes, until, streams=6, replay=replay)

    whole = go("whole", 0)
    assert sorted(sample[0] for batch in whole[: len(whole) // 2] for sample in batch) == list(range(SAMPLES))
    for number, processes in enumerate([(2, 3, 0), (0, 1, 2)]):
        lives = [go(f"parts{number}", count, until) for count, until in zip(processes, (5, 14, None), strict=True)]
        assert list(chain(*lives)) == whole


def test_streams_that_can_say_where_they_are_are_not_read_again(tmp_path: Path) -> None:
    life(tmp_path / "c", Stateful(), 0, 10, streams=4)
    Stateful.reads = 0
    rest = life(tmp_path / "c", Stateful(), 0, None, streams=4)
    assert Stateful.reads == sum(len(batch) for batch in rest)


def test_what_is_read_again_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    life(tmp_path / "c", Dividing(), 0, 3, streams=2, replay=True)
    life(tmp_path / "c", Dividing(), 0, 1, streams=2, replay=True)
    assert "loader 'loader0' reads 12 samples of epoch 0 again" in caplog.messages


@pytest.mark.parametrize("streams", [None, 2])
def test_a_stream_that_was_read_to_its_end_is_not_read_again_in_the_same_epoch(
    tmp_path: Path, streams: int | None
) -> None:
    """The dataset's own state after its last sample is that of the next pass; a checkpoint may be taken there."""
    whole = life(tmp_path / "whole", Stateful(), 0, None, streams=streams)
    last = len(whole) // 2
    first = life(tmp_path / "parts", Stateful(), 0, last, streams=streams)
    assert first + life(tmp_path / "parts", Stateful(), 0, None, streams=streams) == whole


@pytest.mark.parametrize("streams", [None, 2])
def test_the_end_of_a_streams_epoch_is_saved_and_proved(tmp_path: Path, streams: int | None) -> None:
    """No step follows the end, which has no sample: it is committed by itself, the last epoch's too."""
    run = Run(tmp_path / "c", every=Every(seconds=None))
    loader = run.loader(DataLoader(Stateful(), batch_size=4, collate_fn=list), streams=streams)
    saved = []
    for _ in run.epochs(2):
        run._persistence.wait()
        saved += [path.name for path in (tmp_path / "c").glob("step-*")]
        for _ in loader:
            run.step()
    assert saved == [f"step-{run.steps // 2:06}"]
    assert run.account.places()["loader0"][:2] == [2, 0]
    assert not run.ledger.faults()
    assert run.ledger.finished("loader0") == {0: SAMPLES, 1: SAMPLES}


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


class Transformed(Dataset[Any]):
    """Holds its generators where users put them."""

    def __init__(self, transform: Callable[[int], Any]) -> None:
        self.transforms = {"train": [transform]}

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return self.transforms["train"][0](index)


class Jitter:
    """A transform with a generator of its own."""

    def __init__(self) -> None:
        self.generator = torch.Generator()
        self.generator.seed()

    def __call__(self, index: int) -> float:
        return float(torch.rand((), generator=self.generator))

    def shift(self, index: int) -> float:
        return float(torch.rand((), generator=self.generator))


def noise(generator: random.Random, index: int) -> float:
    return generator.random()


@pytest.mark.parametrize(
    "transform",
    [Jitter, lambda: functools.partial(noise, random.Random()), lambda: Jitter().shift],
    ids=["transform in a list in a dict", "partial", "bound method"],
)
def test_generators_that_the_dataset_holds_follow_from_the_samples_place(
    tmp_path: Path, transform: Callable[[], Any]
) -> None:
    def drawn(batch: int) -> list[Any]:
        run = Run(tmp_path / f"{batch}", every=NEVER)
        data = Subset(Transformed(transform()), range(8))
        loader = run.loader(DataLoader(data, batch_size=batch, collate_fn=list, shuffle=True))
        return [sample for batch in loader for sample in batch]

    assert drawn(2) == drawn(8)
    assert len(set(drawn(4))) == 8


def test_a_long_list_of_samples_is_not_searched_for_generators() -> None:
    assert generators_in([[torch.Generator()] * 65, {number: torch.Generator() for number in range(65)}]) == []
    assert len(generators_in({"a": [torch.Generator()]})) == 1


class Mixing:
    """A collation that draws, as mixup does."""

    def __call__(self, samples: list[Any]) -> Any:
        return [int(sample[0]) for sample in samples], float(np.random.beta(0.4, 0.4)), float(torch.rand(()))


@pytest.mark.parametrize("processes", [0, 2])
def test_a_collation_that_draws_draws_the_same_after_a_restart(tmp_path: Path, processes: int) -> None:
    def epoch(where: str, count: int, until: int) -> list[Any]:
        run = Run(tmp_path / where, every=Every(steps=1, seconds=None))
        data = TensorDataset(torch.arange(24))
        loader = run.loader(DataLoader(data, batch_size=4, shuffle=True, num_workers=count, collate_fn=Mixing()))
        seen, batches = [], iter(loader)
        for _ in range(until):
            seen.append(next(batches))
            run.step()
        run.close()
        return seen

    whole = epoch("whole", 0, 6)
    assert epoch(f"parts{processes}", processes, 2) + epoch(f"parts{processes}", 0, 4) == whole
    assert len({drawn for _, drawn, _ in whole}) == 6


class OneDevice:
    """Stands for CUDA with one device: its generator is one for the CPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.generator = torch.Generator()
        monkeypatch.setattr(randomness, "LIBRARIES", (*randomness.LIBRARIES[:3], randomness.Cuda()))
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "default_generators", (self.generator,))
        monkeypatch.setattr(torch.cuda, "manual_seed_all", self.generator.manual_seed)


def test_draws_on_a_cuda_device_are_found_and_keyed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The logic without a device; not run on one."""
    device = OneDevice(monkeypatch)
    monkeypatch.setattr(randomness, "LIBRARIES", (randomness.Cuda(),))
    draws = Draws(always=False, held=(), on_sample=None)
    draws.park()
    assert not draws.found_more()
    draws.park()
    torch.rand((), generator=device.generator)
    assert draws.found_more()
    draws.key_sample(7)
    first = float(torch.rand((), generator=device.generator))
    draws.key_sample(7)
    assert float(torch.rand((), generator=device.generator)) == first
    assert draws.keyed


def test_the_training_process_draws_the_same_on_a_cuda_device_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = OneDevice(monkeypatch)

    def main_draws(where: str) -> list[float]:
        run = Run(tmp_path / where, every=NEVER)
        loader = run.loader(DataLoader(TensorDataset(torch.arange(8)), batch_size=4))
        return [float(torch.rand((), generator=device.generator)) for _ in loader]

    first = main_draws("one")
    torch.rand(5, generator=device.generator)
    assert main_draws("two") == first
    assert len(set(first)) == 2
