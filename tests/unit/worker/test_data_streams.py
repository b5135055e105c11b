"""Streams of data: exact over restarts and loader processes, also where they are read again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import (
    DataLoader,
)

from elastic_agent.worker import Every, Run
from elastic_agent.worker.data.streams import check_stream
from elastic_agent.worker.errors import NotResumable
from support.rigs.data_kinds import SAMPLES, Dividing, Sampled, Stateful, life

pytestmark = [
    pytest.mark.leaves_behind("torch handles SIGCHLD from the first loader process on"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


@pytest.mark.parametrize("processes", [0, 2])
def test_an_iterable_that_exposes_its_sampler_draws_the_same_in_every_epoch(tmp_path: Path, processes: int) -> None:
    """Also one without a length; its second epoch finds what the first one left in the dataset."""
    whole = life(tmp_path / "whole", Sampled(), 0, None)
    assert len({sample[0] for batch in whole for sample in batch}) == SAMPLES
    before = life(tmp_path / "killed", Sampled(), processes, 20)
    after = life(tmp_path / "killed", Sampled(), processes, None)
    assert before + after == whole


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("streams", [None, 2])
@pytest.mark.parametrize("at", ["the last batch of an epoch", "an earlier one"])
def test_a_stop_at_a_streams_last_batch_adds_no_epoch(tmp_path: Path, at: str, streams: int | None) -> None:
    """Without an agent: the loop that ends the epoch is over, and the run's epoch is not."""
    whole = life(tmp_path / "whole", Stateful(), 0, None, streams=streams)
    last = len(whole) // 2 if at == "the last batch of an epoch" else 3
    run, seen = Run(tmp_path / "c", every=Every(seconds=None)), list[Any]()
    loader = run.loader(DataLoader(Stateful(), batch_size=4, collate_fn=list), streams=streams)
    for _ in run.epochs(2):
        for batch in loader:
            seen.append(batch)
            run.step()
            if run.steps == last:
                run.stop()
    assert run.steps == last
    assert seen + life(tmp_path / "c", Stateful(), 0, None, streams=streams) == whole


@pytest.mark.parametrize("streams", [None, 2])
@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.parametrize("every", [1, 2])
def test_a_loop_that_breaks_off_and_goes_on_reads_each_sample_of_a_stream_once(
    tmp_path: Path, every: int, processes: int, streams: int | None
) -> None:
    """Whatever it does between, and without a save: the batch before the break is committed by its step."""
    whole = life(tmp_path / "whole", Stateful(), 0, None, streams=streams)
    run = Run(tmp_path / "c", every=Every(seconds=None))
    data = DataLoader(Stateful(), batch_size=4, collate_fn=list, num_workers=processes)
    loader = run.loader(data, name="loader0", streams=streams)
    seen: list[Any] = []
    while len(seen) < len(whole) // 2:
        for batch in loader:
            seen.append(batch)
            run.step()
            if run.steps % every == 0:
                break
    assert [sorted(sample[0] for sample in batch) for batch in seen] == [
        sorted(sample[0] for sample in batch) for batch in whole[: len(seen)]
    ]
    run.close()


class MakesLate:
    """Makes a generator with its first sample; stands before a dataset."""

    late: random.Random | None = None

    def __iter__(self) -> Iterator[Any]:
        for index, *_ in super().__iter__():  # type: ignore[misc]
            self.late = self.late or random.Random(3)
            yield index, self.late.random()


class Late(MakesLate, Dividing):
    pass


class LateStateful(MakesLate, Stateful):
    """It can say where it is."""


@pytest.mark.parametrize("streams", [None, 2])
@pytest.mark.parametrize("kind", [Late, LateStateful])
def test_a_generator_that_a_stream_makes_when_it_is_first_used_is_keyed(
    kind: Callable[[], Any], streams: int | None, tmp_path: Path
) -> None:
    def go(where: str, until: int | None) -> list[Any]:
        return life(tmp_path / where, kind(), 0, until, replay=kind is Late, streams=streams)

    whole = go("whole", None)
    assert len({draw for batch in whole for _, draw in batch}) == sum(map(len, whole))
    assert [*go("killed", 5), *go("killed", 20), *go("killed", None)] == whole


class Counting(Dividing):
    """Another order each time that it is read."""

    passes = 0

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        mine = self.mine()
        random.Random(self.passes).shuffle(mine)
        yield from mine


@pytest.mark.parametrize("streams", [None, 2])
def test_a_stream_that_gives_other_samples_as_it_is_read_again_is_named(
    streams: int | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def go(where: str, dataset: Any, until: int | None) -> list[Any]:
        return life(tmp_path / where, dataset, 0, until, replay=True, streams=streams)

    go("same", Dividing(), 18)
    go("same", Dividing(), None)
    assert "has other samples" not in caplog.text
    go("other", Counting(), 18)
    after = Counting()
    after.passes = 5
    go("other", after, None)
    said = "loader 'loader0': epoch 1 has other samples as it is read again"
    assert sum(said in message for message in caplog.messages) == 1
    # Of the copies that are made for each pass none is read twice.
    assert ("the dataset changes its passes as it is read" in caplog.text) == (streams is None)


def test_a_stream_that_hugging_faces_datasets_have_divided_among_the_ranks_is_refused() -> None:
    """Each rank kept its part of its part: half of the samples were never read, with two."""
    kind = type("IterableDataset", (Stateful,), {"__module__": "datasets.iterable_dataset"})
    divided = kind()
    divided._distributed = SimpleNamespace(rank=0, world_size=2)
    check_stream(divided, 0, 1, True, None)
    for ranks, replay in ((2, True), (2, False)):
        with pytest.raises(NotResumable, match=r"divided among the ranks by split_dataset_by_node\(\), and each rank"):
            check_stream(divided, 0, ranks, replay, None)
