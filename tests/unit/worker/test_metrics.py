"""Metrics in the middle of an epoch: kept by checkpoints, also over another number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from elastic_agent.worker import Every, Run
from elastic_agent.worker.errors import Misused, NotResumable
from elastic_agent.worker.frameworks.lightning_state import Additions
from elastic_agent.worker.loop.reductions import Reductions, restore_states

torchmetrics = pytest.importorskip("torchmetrics")
classification = pytest.importorskip("torchmetrics.classification")

DATA = TensorDataset(torch.linspace(0, 1, 60), (torch.arange(60) * 7 % 10 < 5).long())


class Ranks:
    """As `World`, for ranks that are played one after the other: what they gather is collected beforehand."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.gathered: list[bytes] = []

    def gather(self, message: Any) -> list[Any]:
        return [message] * self.size

    def gather_bytes(self, data: bytes) -> list[bytes]:
        self.gathered.append(data)
        return [data]


def kinds() -> dict[str, Any]:
    """One of each reduction: sum, cat, mean, max and min, a collection whose metrics share states, a wrapper."""
    return {
        "accuracy": classification.BinaryAccuracy(),
        "area": classification.BinaryAUROC(),
        "largest": torchmetrics.MaxMetric(),
        "least": torchmetrics.MinMetric(),
        "collection": torchmetrics.MetricCollection(
            [classification.BinaryPrecision(), classification.BinaryRecall(), torchmetrics.MeanSquaredError()]
        ),
        "wrapped": torchmetrics.MinMaxMetric(classification.BinaryAccuracy()),
    }


def update(metrics: dict[str, Any], x: torch.Tensor, y: torch.Tensor) -> None:
    for name, metric in metrics.items():
        if name in ("largest", "least"):
            metric.update(x)
        else:
            metric.update(x, y)


def plain(values: Any) -> Any:
    return {name: value.item() for name, value in values.items()} if isinstance(values, dict) else values.item()


def epoch(path: Path, stop_at: int | None) -> dict[str, Any]:
    run = Run(path, every=Every(seconds=None))
    loader = run.loader(DataLoader(DATA, batch_size=6, shuffle=True))
    metrics = {name: run.metric(name, metric) for name, metric in kinds().items()}
    for _ in run.epochs(1):
        for x, y in loader:
            run.step()
            update(metrics, x, y)
            if run.steps == stop_at:
                run.stop()
    return {name: plain(metric.compute()) for name, metric in metrics.items()}


def test_a_metric_goes_on_in_the_middle_of_the_epoch_and_is_the_same_at_its_end(tmp_path: Path) -> None:
    whole = epoch(tmp_path / "whole", None)
    part = epoch(tmp_path / "parts", 4)
    assert part != whole
    assert epoch(tmp_path / "parts", None) == whole


def parts_of(world: int) -> list[dict[str, Any]]:
    """What the metrics of `world` ranks hold after two thirds of the data."""
    x, y = DATA.tensors
    ranks = []
    for rank in range(world):
        metrics = kinds()
        for first in range(rank * 4, 40, world * 4):
            update(metrics, x[first : first + 4], y[first : first + 4])
        ranks.append(metrics)
    return ranks


def kept_of(ranks: list[dict[str, Any]]) -> dict[str, list[Any]]:
    kept: dict[str, list[Any]] = {name: [] for name in ranks[0]}
    for rank, metrics in enumerate(ranks):
        reductions = Reductions(Ranks(rank, len(ranks)))  # type: ignore[arg-type]
        for name, metric in metrics.items():
            reductions.metric(name, metric)
        for name, (state,) in reductions.metrics().items():
            kept[name].append(state)
    return kept


def computed(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """What the ranks compute together: the library's own merging, here one after the other."""
    first = ranks[0]
    for metrics in ranks[1:]:
        for name, metric in metrics.items():
            if name in ("collection", "wrapped"):
                continue
            if metric.update_called:
                first[name]._reduce_states(metric.metric_state)
    return {name: first[name].compute().item() for name in first if name not in ("collection", "wrapped")}


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 3), (3, 2), (2, 2), (4, 8)])
def test_the_states_of_ranks_survive_a_change_of_their_number(before: int, after: int) -> None:
    x, y = DATA.tensors
    kept = kept_of(parts_of(before))
    resumed = []
    for rank in range(after):
        reductions = Reductions(Ranks(rank, after))  # type: ignore[arg-type]
        reductions.load({}, kept)
        metrics = {name: reductions.metric(name, metric) for name, metric in kinds().items()}
        for first in range(40 + rank * 4, 60, after * 4):
            update(metrics, x[first : first + 4], y[first : first + 4])
        resumed.append(metrics)
    whole = parts_of(1)[0]
    update(whole, x[40:], y[40:])
    assert computed(resumed) == pytest.approx(computed([whole]), rel=1e-6)


def test_with_as_many_ranks_each_gets_its_own_states_back() -> None:
    ranks = parts_of(3)
    kept = kept_of(ranks)
    for rank, metrics in enumerate(ranks):
        reductions = Reductions(Ranks(rank, 3))  # type: ignore[arg-type]
        reductions.load({}, kept)
        for name, metric in kinds().items():
            again = reductions.metric(name, metric)
            if name not in ("collection", "wrapped"):
                assert torch.equal(again.compute(), metrics[name].compute()), name


class Mixed(torchmetrics.Metric):  # type: ignore[misc,name-defined]
    """Keeps a state that names no reduction, and one that is a mean."""

    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.add_state("mine", torch.tensor(0.0), dist_reduce_fx=None)
        self.add_state("average", torch.tensor(0.0), dist_reduce_fx="mean")

    def update(self, value: float) -> None:
        self.mine += value
        self.average += value

    def compute(self) -> torch.Tensor:
        return torch.as_tensor(self.mine)


def test_a_state_without_a_reduction_cannot_go_on_on_fewer_ranks() -> None:
    ranks = []
    for value in (1.0, 3.0):
        metric = Mixed()
        metric.update(value)
        ranks.append({"mixed": metric})
    kept = kept_of(ranks)
    more = []
    for rank in range(3):
        reductions = Reductions(Ranks(rank, 3))  # type: ignore[arg-type]
        reductions.load({}, kept)
        more.append(reductions.metric("mixed", Mixed()))
    assert [float(metric.mine) for metric in more] == [1.0, 3.0, 0.0]
    assert [float(metric.average) for metric in more] == [2.0, 2.0, 2.0]
    fewer = Reductions(Ranks(0, 1))  # type: ignore[arg-type]
    fewer.load({}, kept)
    with pytest.raises(NotResumable, match=r"Mixed names no reduction for its state 'mine'.*at least 2 ranks"):
        fewer.metric("mixed", Mixed())


def test_a_state_without_a_reduction_goes_on_where_it_has_not_begun() -> None:
    """As that of a validation does within the training. A refusal names the metric by its place in the module."""
    made = {"": {}, "mixed": {**vars_of(Mixed()), "_update_count": 0}}
    begun = {"": {}, "mixed": {**vars_of(Mixed()), "mine": torch.tensor(2.0), "_update_count": 1}}
    module = torch.nn.ModuleDict({"mixed": Mixed()})
    restore_states("", module, [made, made], Ranks(0, 1))  # type: ignore[arg-type]
    assert float(module["mixed"].mine) == 0.0  # type: ignore[arg-type]
    with pytest.raises(NotResumable, match="metric 'mixed': Mixed names no reduction for its state 'mine'"):
        restore_states("", module, [made, begun], Ranks(0, 1))  # type: ignore[arg-type]


class Listed(torchmetrics.Metric):  # type: ignore[misc,name-defined]
    """Lists what it has seen, put together or not, beside a number that names no reduction."""

    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.add_state("together", [], dist_reduce_fx="cat")
        self.add_state("apart", [], dist_reduce_fx=None)
        self.add_state("mine", torch.tensor(0.0), dist_reduce_fx=None)

    def update(self, values: list[float]) -> None:
        self.together.append(torch.tensor(values))
        self.apart.append(torch.tensor(values))

    def compute(self) -> torch.Tensor:
        return torch.cat(self.together)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_lists_go_on_on_any_number_of_ranks_which_wait_for_each_other_equally_often(ranks: int) -> None:
    """A rank waits for the others once for a list that is put together, else once for each piece of it."""
    metrics = [Listed(), Listed(), Listed()]
    for number, metric in enumerate(metrics[:2]):
        metric.update([number + 0.0, number + 0.5])
    made = []
    for rank in range(ranks):
        reductions = Reductions(Ranks(rank, ranks))  # type: ignore[arg-type]
        reductions.load({}, {"listed": [{"": {**vars_of(metric), "_update_count": 1}} for metric in metrics]})
        made.append(reductions.metric("listed", Listed()))
    for state in ("together", "apart"):
        assert torch.cat([piece for metric in made for piece in getattr(metric, state)]).tolist() == [
            0.0,
            0.5,
            1.0,
            1.5,
        ]
    assert len({bool(metric.together) for metric in made}) == len({len(metric.apart) for metric in made}) == 1


def vars_of(metric: Any) -> dict[str, Any]:
    return {state: getattr(metric, state) for state in metric._defaults}


def test_what_is_no_metric_is_refused_with_what_to_do(tmp_path: Path) -> None:
    run = Run(tmp_path / "c", every=Every(seconds=None))
    with pytest.raises(Misused, match=r"Linear keeps no states as torchmetrics.Metric does; give what has state_dict"):
        run.metric("m", torch.nn.Linear(1, 1))
    run.metric("m", torchmetrics.MaxMetric())
    with pytest.raises(Misused, match="two metrics are named 'm'"):
        run.metric("m", torchmetrics.MaxMetric())


def test_a_metric_of_another_kind_under_the_same_name_is_refused(tmp_path: Path) -> None:
    epoch(tmp_path / "c", 4)
    again = Run(tmp_path / "c", every=Every(seconds=None))
    with pytest.raises(NotResumable, match="metric 'accuracy': the checkpoint holds other states than MaxMetric has"):
        again.metric("accuracy", torchmetrics.MaxMetric())


def test_a_mean_that_the_script_has_not_asked_for_yet_is_kept_over_two_restarts(tmp_path: Path) -> None:
    """A validation that comes later names its mean later; checkpoints before that must not lose it."""
    for life in range(3):
        run = Run(tmp_path / "c", every=Every(seconds=None))
        loader = run.loader(DataLoader(DATA, batch_size=6))
        if life == 0:
            run.mean("held out").update(3.0, 2)
        for batch in loader:
            assert len(batch) == 2
            run.step()
            break
        if life == 2:
            assert run.mean("held out").compute() == 3.0
        run.close()


def test_the_least_and_the_largest_that_a_wrapper_has_seen_go_on(tmp_path: Path) -> None:
    """It keeps them beside its states, and each value that is computed may change them."""

    def life(stop_at: int | None) -> dict[str, Any]:
        run = Run(tmp_path / str(stop_at is None), every=Every(seconds=None))
        loader = run.loader(DataLoader(DATA, batch_size=6, shuffle=True))
        metric = run.metric("wrapped", torchmetrics.MinMaxMetric(classification.BinaryAccuracy()))
        for _ in run.epochs(1):
            for x, y in loader:
                run.step()
                metric.update(x, y)
                metric.compute()
                if run.steps == stop_at:
                    run.stop()
        return plain(metric.compute())  # type: ignore[no-any-return]

    whole = life(None)
    life(4)
    assert life(99) == whole


class Bare:
    """As Lightning's class, for what a checkpoint lacks of a module."""


LightningModule = type("LightningModule", (Bare,), {})


@pytest.mark.parametrize(
    ("held", "change", "counts"),
    [
        ([], lambda each: each.append(torch.ones(2)), True),
        ([[], []], lambda each: each[1].append(1), True),
        ({"sum": torch.zeros(3)}, lambda each: each["sum"].add_(1), True),
        (SimpleNamespace(), lambda each: setattr(each, "sum", 1), False),  # of Python's own classes
        (Bare(), lambda each: setattr(each, "sum", 1), True),
        ([float("nan")], lambda each: None, False),
    ],
)
def test_what_a_checkpoint_of_lightning_lacks_is_seen(held: Any, change: Callable[[Any], None], counts: bool) -> None:
    """A validation adds up in a list, a tensor or an object of the script's own."""
    module = LightningModule()
    module.held = held
    trainer = SimpleNamespace(lightning_module=module, callbacks=[])
    said: list[str] = []
    run = SimpleNamespace(world=Ranks(0, 2), rank=0, log=SimpleNamespace(warning_once=said.append))
    additions = Additions("a validation", "a start begins it anew")
    additions.begin(trainer)
    assert not additions.lacking(trainer, run)
    change(held)
    assert additions.lacking(trainer, run) is counts
    assert [text.split()[0] for text in said] == ["LightningModule.held"] * counts
