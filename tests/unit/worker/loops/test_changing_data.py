"""Data that changes from one epoch to the next: samplers that the script tells something, datasets that grow, loaders
that are made anew."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler, Subset

from elastic_agent.worker import Every, Run
from elastic_agent.worker.errors import Misused, WrongState
from elastic_agent.worker.names import Names
from elastic_agent.worker.verify import verify

pytestmark = pytest.mark.leaves_behind("torch.distributed keeps threads in the processes that tests fork from")


class Growing(Dataset[int]):
    """As many samples as it is told."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        if index >= self.size:
            raise IndexError(index)
        return index


class Curriculum(Sampler[Any]):
    """Batches of two of the first samples: at each level of two more."""

    level = 0

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(2 * self.level + 4).tolist()
        return iter([order[first : first + 2] for first in range(0, len(order), 2)])


def played(life: Callable[[Run], Iterator[Any]], path: Path, kill: int | None = None) -> list[Any]:
    """What a life gives, each with the steps before it; kill: the steps behind which it ends without a word."""
    run, seen = Run(path / "checkpoints", every=Every(steps=1)), list[Any]()
    steps = life(run)
    for each in steps:
        run._persistence.wait()
        if run.steps == kill:
            break
        seen.append((run.steps, each))
    return seen


def curriculum(asks: bool) -> Callable[[Run], Iterator[Any]]:
    def life(run: Run) -> Iterator[Any]:
        sampler = Curriculum()
        loader = run.loader(DataLoader(Growing(12), batch_sampler=sampler))
        if asks:
            len(loader)
        for epoch in run.epochs(3):
            sampler.level = epoch
            for number, batch in enumerate(loader, loader.batches_done):
                yield epoch, batch.tolist()
                run.step()
                if asks:
                    assert (number + 1 == len(loader)) == (number == epoch + 1)

    return life


@pytest.mark.parametrize("kill", [1, 2, 3, 5, 6, 8])
def test_a_samplers_order_is_read_behind_what_the_script_tells_it_for_the_epoch(tmp_path: Path, kill: int) -> None:
    """Its length may have been asked for before, in this epoch or at the last batch of the one before."""
    whole = played(curriculum(asks=False), tmp_path / "whole")
    assert [len([epoch for _, (epoch, _) in whole if epoch == which]) for which in range(3)] == [2, 3, 4]
    assert played(curriculum(asks=True), tmp_path / "asked") == whole
    before = played(curriculum(asks=True), tmp_path / "killed", kill)
    after = played(curriculum(asks=True), tmp_path / "killed")
    assert before + after[kill - after[0][0] :] == whole
    assert after[0][0] <= kill


def growing(processes: int, grows: bool = True) -> Callable[[Run], Iterator[Any]]:
    def life(run: Run) -> Iterator[Any]:
        data = Growing(6)
        kept = bool(processes)
        loader = run.loader(
            DataLoader(data, batch_size=2, shuffle=True, num_workers=processes, persistent_workers=kept), name="grows"
        )
        for epoch in run.epochs(3):
            data.size = 6 + 4 * epoch if grows else 6
            for batch in loader:
                yield epoch, batch.tolist()
                run.step()

    return life


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.leaves_behind("torch handles SIGCHLD from the first loader process on")
@pytest.mark.parametrize("processes", [0, 1])
def test_an_epoch_has_the_samples_that_the_dataset_has_as_it_begins(tmp_path: Path, processes: int) -> None:
    whole = played(growing(processes), tmp_path / "whole")
    for epoch in range(3):
        samples = [index for _, (which, batch) in whole if which == epoch for index in batch]
        assert sorted(samples) == list(range(6 + 4 * epoch))
    before = played(growing(processes), tmp_path / "killed", 6)
    after = played(growing(processes), tmp_path / "killed")
    assert before + after[6 - after[0][0] :] == whole


def test_a_dataset_that_has_not_grown_again_is_refused_within_the_epoch(tmp_path: Path) -> None:
    played(growing(0), tmp_path, 6)
    with pytest.raises(WrongState, match=r"'grows'.*within epoch 1 of 10 samples or batches, which has 6 now"):
        played(growing(0, grows=False), tmp_path)


def test_a_dataset_that_grows_within_an_epoch_keeps_its_order_and_length(tmp_path: Path) -> None:
    run, data = Run(tmp_path / "checkpoints"), Growing(6)
    loader = run.loader(DataLoader(data, batch_size=1, sampler=RandomSampler(data)))
    seen = list[int]()
    for _ in run.epochs(1):
        for batch in loader:
            seen += batch.tolist()
            run.step()
            data.size = 8
            if len(seen) == 3:
                break
        assert len(loader) == 6
        for batch in loader:
            seen += batch.tolist()
            run.step()
    assert sorted(seen) == list(range(6))


def anew(name: str | None = None, sizes: tuple[int, ...] = (8, 8, 8)) -> Callable[[Run], Iterator[Any]]:
    """Loaders are made in the loop's body, and one behind it."""

    def life(run: Run) -> Iterator[Any]:
        outside = run.loader(DataLoader(Growing(3)), train=False)
        for epoch in run.epochs(3):
            train = run.loader(DataLoader(Growing(sizes[epoch]), batch_size=2, shuffle=True), name=name)
            held_out = run.loader(DataLoader(Growing(4), batch_size=2, shuffle=True), train=False)
            for batch in train:
                yield epoch, batch.tolist()
                run.step()
            for batch in held_out:
                yield epoch, "held out", batch.tolist()
        for batch in chain(outside, run.loader(DataLoader(Growing(2), shuffle=True), train=False)):
            yield "behind", batch.tolist()

    return life


@pytest.mark.parametrize("kill", [1, 5, 8, 9, 12])
@pytest.mark.parametrize("name", [None, "train"])
@pytest.mark.parametrize("sizes", [(8, 8, 8), (4, 8, 12)])
def test_a_loader_that_is_made_anew_in_each_epoch_takes_the_place_of_the_one_before(
    tmp_path: Path, name: str | None, sizes: tuple[int, ...], kill: int
) -> None:
    whole = played(anew(name, sizes), tmp_path / "whole")
    orders = [[batch for _, (which, *more, batch) in whole if which == epoch and not more] for epoch in range(3)]
    assert [sorted(chain(*order)) for order in orders] == [list(range(size)) for size in sizes]
    assert orders[0] != orders[1][: len(orders[0])]
    played(anew(name, sizes), tmp_path / "killed", kill)
    after = played(anew(name, sizes), tmp_path / "killed")
    assert after == whole[-len(after) :]
    assert kill <= after[0][0] + 1
    assert verify(tmp_path / "killed" / "checkpoints").proved


def test_two_loaders_of_one_epoch_or_of_the_loops_outside_have_names_of_their_own(tmp_path: Path) -> None:
    run = Run(tmp_path / "checkpoints")
    run.loader(DataLoader(Growing(4)), name="outside")
    for _ in run.epochs(1):
        run.loader(DataLoader(Growing(4)), name="here")
        for name in ("outside", "here"):
            with pytest.raises(Misused, match=f"two loaders are named '{name}'"):
                run.loader(DataLoader(Growing(4)), name=name)
    with pytest.raises(Misused, match="two loaders are named 'outside'"):
        run.loader(DataLoader(Growing(4)), name="outside")


def test_another_dataset_within_an_epoch_is_refused_also_where_loaders_are_made_anew(tmp_path: Path) -> None:
    played(anew(), tmp_path, 5)
    with pytest.raises(WrongState, match=r"the checkpoint is of length 8, and it is 6 now"):
        played(anew(sizes=(8, 6, 8)), tmp_path)


def test_statistics_that_are_reset_behind_the_loop_are_of_the_whole_data(tmp_path: Path) -> None:
    """As `update_bn` does it: a start within begins it anew, and so does one behind it."""

    def life(name: str, kill: int | None) -> list[float]:
        net = torch.nn.BatchNorm1d(1, momentum=None)
        run = Run(tmp_path / name, every=Every(seconds=0.0), net=net)
        loader = run.loader(DataLoader(Growing(12), batch_size=3, shuffle=True))
        for _ in run.epochs(1):
            for _ in loader:
                run.step()
        net.reset_running_stats()
        with torch.no_grad():
            for number, batch in enumerate(loader):
                run._persistence.wait()
                if number == kill:
                    return []
                net(batch[:, None].float())
        run.close()
        return [float(net.get_buffer(each)) for each in ("running_mean", "num_batches_tracked")]

    assert life("whole", None) == [pytest.approx(5.5), 4.0]
    assert life("killed", 2) == []
    assert life("killed", None) == [pytest.approx(5.5), 4.0]
    assert life("killed", None) == [pytest.approx(5.5), 4.0]


def test_a_name_that_is_freed_may_be_given_again() -> None:
    """As where a framework makes a loader anew, outside of the run's loop and in it."""
    names = Names()
    assert names.of("train") == "train"
    names.free("train")
    assert names.of("train") == "train"
    with names.epochs():
        names.epoch_begins()
        assert names.of(None) == "loader0 of the epoch"
        names.free("loader0 of the epoch")
        assert names.of(None) == "loader0 of the epoch"


class Harder(Growing):
    """Gives larger numbers at each level."""

    level = 0

    def __getitem__(self, index: int) -> int:
        return 100 * self.level + index


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.leaves_behind("torch handles SIGCHLD from the first loader process on")
@pytest.mark.parametrize("wrap", [lambda data: data, lambda data: Subset(data, range(4))])
def test_loader_processes_that_stay_see_what_the_script_tells_the_dataset(
    tmp_path: Path, wrap: Callable[[Any], Any]
) -> None:
    """A start has new ones, which would see it where those of the start before did not."""
    run, data = Run(tmp_path / "checkpoints"), Harder(4)
    loader = run.loader(DataLoader(wrap(data), batch_size=2, num_workers=1, persistent_workers=True))
    children = list[list[Any]]()
    for epoch in run.epochs(3):
        data.level = epoch // 2
        seen = list[int]()
        for batch in loader:
            seen += batch.tolist()
            run.step()
        assert seen == [100 * data.level + index for index in range(4)]
        children.append(multiprocessing.active_children())
    assert children[0] == children[1] != children[2]


def test_the_batch_of_a_loader_that_is_made_anew_stays_unless_it_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As over a restart, where the number of ranks may have changed."""
    caplog.set_level(logging.INFO)
    run, sizes = Run(tmp_path / "checkpoints"), list[set[int]]()
    for epoch in run.epochs(3):
        sizes.append(set())
        batch_size = 4 - epoch % 2 * 2
        made = run.loader(DataLoader(Growing(8), batch_size=batch_size), global_batch=2 if epoch == 2 else None)
        for batch in made:
            sizes[-1].add(len(batch))
            run.step()
    assert sizes == [{4}, {4}, {2}]
    said = [text for text in caplog.messages if "goes on with the global batch" in text]
    assert len(said) == 1
    assert "batch of 4 that it had; the script's batch_size gives 2: say run.loader(..., global_batch=2)" in said[0]
