"""Level `bits` in one process: what the loop gets, what `.grad` is behind it, and with which sentence it is refused."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from elastic_agent.worker import Every, Run
from elastic_agent.worker.checkpoints import manifest as manifest_module
from elastic_agent.worker.errors import Misused, WrongState
from elastic_agent.worker.shards import conditions

NEVER = Every(seconds=None)


def points(count: int) -> TensorDataset:
    made = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(count, 3, generator=made), torch.randn(count, 1, generator=made))


def run_in(path: Path, shards: int | None = 4, **more: Any) -> Run:
    return Run(path / "checkpoints", every=NEVER, shards=shards, **more)


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 1)


def loss_sum(net: nn.Module, part: Any) -> torch.Tensor:
    x, y = part
    return nn.functional.mse_loss(net(x), y, reduction="sum")


def trained(path: Path, net: nn.Module, body: Callable[[Run, Any], None], count: int = 16, batch: int = 16) -> Run:
    """One epoch, each batch handed to `body`, with a step after it."""
    run = run_in(path, model=net)
    loader = run.loader(DataLoader(points(count), batch_size=4), global_batch=batch)
    for part in loader:
        body(run, part)
        run.step()
    return run


# -- gradients ---------------------------------------------------------------------------------------------------------


def test_grad_is_the_mean_over_the_samples_of_the_global_batch(tmp_path: Path) -> None:
    """The loss of a shard is the sum over its samples; sizes of shards that differ make no difference."""
    net, whole = linear(), linear()
    x, y = points(10).tensors
    nn.functional.mse_loss(whole(x), y).backward()

    def body(run: Run, batch: Any) -> None:
        for part in run.shards(batch):
            loss_sum(net, part).backward()
        assert [len(part[0]) for part in batch.mine.values()] == [2, 3, 2, 3]
        assert net.weight.grad is not None
        assert whole.weight.grad is not None
        torch.testing.assert_close(net.weight.grad, whole.weight.grad)

    trained(tmp_path, net, body, count=10, batch=10)


def test_a_last_batch_with_fewer_samples_than_shards_is_exact(tmp_path: Path) -> None:
    net, whole = linear(), linear()
    x, y = points(10).tensors
    nn.functional.mse_loss(whole(x[8:]), y[8:]).backward()
    seen = []

    def body(run: Run, batch: Any) -> None:
        net.zero_grad()
        for part in run.shards(batch):
            loss_sum(net, part).backward()
        seen.append((len(batch), batch.counts))

    trained(tmp_path, net, body, count=10, batch=8)
    assert seen == [(8, (2, 2, 2, 2)), (2, (0, 1, 0, 1))]
    assert net.weight.grad is not None
    assert whole.weight.grad is not None
    torch.testing.assert_close(net.weight.grad, whole.weight.grad)


def test_without_global_batch_the_batch_size_is_that_of_a_shard(tmp_path: Path) -> None:
    run = run_in(tmp_path, shards=4)
    loader = run.loader(DataLoader(points(40), batch_size=5))
    assert loader.global_batch == 20
    assert loader.batch_size == 5
    assert next(iter(loader)).counts == (5, 5, 5, 5)


def test_gradients_that_there_are_already_are_added_to(tmp_path: Path) -> None:
    """As `backward` does: two global batches may make a step."""
    once, twice = linear(), linear()

    def body(run: Run, batch: Any) -> None:
        for net, turns in ((once, 1), (twice, 2)):
            for _ in range(turns):
                for part in run.shards(batch):
                    loss_sum(net, part).backward()

    run = run_in(tmp_path, one=once, two=twice)
    body(run, next(iter(run.loader(DataLoader(points(16), batch_size=4)))))
    assert once.weight.grad is not None
    assert twice.weight.grad is not None
    torch.testing.assert_close(twice.weight.grad, 2 * once.weight.grad)


class Branched(nn.Module):
    """Has a layer that no sample passes, and one that only the sample with the largest first number passes."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.never, self.seldom = nn.Linear(3, 1), nn.Linear(3, 1), nn.Linear(3, 1)
        self.limit = float(points(16).tensors[0][:, 0].max())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.always(x)
        return torch.as_tensor(y + self.seldom(x) if float(x[:, 0].max()) >= self.limit else y)


def test_a_parameter_that_no_shard_gave_a_gradient_has_none(tmp_path: Path) -> None:
    """An optimizer leaves it alone then; one with zeros would decay its weights. One that a single shard gave has."""
    torch.manual_seed(0)
    net = Branched()

    def body(run: Run, batch: Any) -> None:
        for part in run.shards(batch):
            loss_sum(net, part).backward()

    trained(tmp_path, net, body)
    assert net.never.weight.grad is None
    assert net.seldom.weight.grad is not None
    assert float(net.seldom.weight.grad.abs().sum()) > 0


def test_half_precision_is_summed_in_single(tmp_path: Path) -> None:
    """256 + 1 is 256 in bfloat16: four shards of 1 are not lost when they are summed before they are rounded."""
    weight = nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    values = iter([1020.0, 2.0, 2.0, 0.0])
    net = nn.ParameterList([weight])

    def body(run: Run, batch: Any) -> None:
        for _ in run.shards(batch):
            (weight * next(values)).sum().backward()

    trained(tmp_path, net, body, count=4, batch=4)
    assert weight.grad is not None
    assert weight.grad.dtype == torch.bfloat16
    assert float(weight.grad) == 256.0


def test_gradients_with_a_graph_are_summed_without_it(tmp_path: Path) -> None:
    net = linear()

    def body(run: Run, batch: Any) -> None:
        for part in run.shards(batch):
            loss_sum(net, part).backward(create_graph=True)

    with pytest.warns(UserWarning, match="create_graph=True"):
        trained(tmp_path, net, body)
    assert net.weight.grad is not None
    assert not net.weight.grad.requires_grad


def test_a_sparse_gradient_is_refused_by_name(tmp_path: Path) -> None:
    net = nn.Embedding(5, 2, sparse=True)

    def body(run: Run, batch: Any) -> None:
        for _ in run.shards(batch):
            net(torch.tensor([1, 2])).sum().backward()

    with pytest.raises(Misused, match=r"gradient of model\.weight in shard 0 is torch\.sparse_coo.*say sparse=False"):
        trained(tmp_path, net, body)


def test_distributed_data_parallel_is_refused(tmp_path: Path) -> None:
    net = DistributedDataParallel.__new__(DistributedDataParallel)
    nn.Module.__init__(net)
    with pytest.raises(Misused, match=r"Run\(model=DistributedDataParallel.*without DistributedDataParallel"):
        Run(tmp_path, shards=2, model=net)


def test_complex_parameters_are_refused_by_name(tmp_path: Path) -> None:
    net = nn.ParameterList([nn.Parameter(torch.zeros(2, dtype=torch.complex64))])
    with pytest.raises(Misused, match=r"model\.0 is torch\.complex64 on cpu.*leave out shards"):
        trained(tmp_path, net, lambda run, batch: [*run.shards(batch)].clear())


# -- buffers and random numbers ----------------------------------------------------------------------------------------


def test_running_statistics_are_those_of_the_first_shard(tmp_path: Path) -> None:
    net, alone = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    alone(points(16).tensors[0][:4])

    def body(run: Run, batch: Any) -> None:
        for x, _ in run.shards(batch):
            net(x).sum().backward()

    trained(tmp_path, net, body)
    assert net.running_mean is not None
    assert alone.running_mean is not None
    assert torch.equal(net.running_mean, alone.running_mean)
    assert int(net.num_batches_tracked or 0) == 1


class Growing(nn.Module):
    """Has a buffer that gets another shape in each forward pass."""

    cache: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(1))
        self.layer = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache = torch.cat([self.cache, torch.zeros(1)])
        return torch.as_tensor(self.layer(x))


def test_a_buffer_that_changes_its_shape_is_refused_by_name(tmp_path: Path) -> None:
    net = Growing()
    with pytest.raises(Misused, match=r"model\.\.cache has shape \[1\] before a shard and \[2\] after it.*persistent"):
        trained(tmp_path, net, lambda run, batch: [net(x) for x, _ in run.shards(batch)].clear())


def draws() -> tuple[float, float, float]:
    return float(torch.rand(())), random.random(), float(np.random.random_sample())


def test_each_shard_draws_numbers_of_its_own_whatever_was_drawn_before(tmp_path: Path) -> None:
    """So they do not depend on which shards a rank computes."""
    seen: list[list[Any]] = []
    for wasted in (0, 5):
        run = run_in(tmp_path / str(wasted), model=linear())
        loader = run.loader(DataLoader(points(16), batch_size=4))
        found: list[Any] = []
        for _ in run.shards(next(iter(loader))):
            found += [draws(), float(torch.rand((), generator=run.rng("mine")))]
            torch.rand(wasted)
        seen.append([*found, draws()])
    assert seen[0] == seen[1]
    assert len({str(drawn) for drawn in seen[0]}) == 9


def test_a_second_pass_over_a_batch_draws_other_numbers(tmp_path: Path) -> None:
    run = run_in(tmp_path, model=linear())
    batch = next(iter(run.loader(DataLoader(points(16), batch_size=4))))
    first, second = ([draws() for _ in run.shards(batch)] for _ in range(2))
    assert first != second


def noisy(samples: list[Any]) -> Any:
    return len(samples), float(torch.rand(()))


@pytest.mark.leaves_behind("torch handles SIGCHLD from the first loader process on")
@pytest.mark.parametrize("kind", ["map", "sampled", "replayed"])
def test_collation_draws_by_shard(tmp_path: Path, kind: str) -> None:
    """With or without loader processes; each shard draws numbers of its own."""
    data: Any = {"map": points(16), "sampled": Sampled(), "replayed": Replayed()}[kind]
    found = []
    for processes in (0, 1):
        run = run_in(tmp_path / str(processes), model=linear())
        loader = run.loader(
            DataLoader(data, batch_size=4, collate_fn=noisy, num_workers=processes), replay=kind == "replayed"
        )
        found.append([list(run.shards(batch)) for batch in loader])
    assert found[0] == found[1]
    assert [count for count, _ in found[0][0]] == [4, 4, 4, 4]
    assert len({drawn for _, drawn in found[0][0]}) == 4


class Sampled(IterableDataset[Any]):
    sampler: Any = range(16)

    def __len__(self) -> int:
        return 16

    def __iter__(self) -> Iterator[int]:
        yield from self.sampler


class Replayed(IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        yield from range(16)


def test_a_batch_sampler_gives_each_shard_a_batch(tmp_path: Path) -> None:
    run = run_in(tmp_path, shards=2, model=linear())
    loader = run.loader(DataLoader(points(9), batch_sampler=[[0, 1, 2], [3, 4], [5]]))
    counts = []
    for batch in loader:
        counts.append((batch.counts, [len(x) for x, _ in run.shards(batch)]))
        run.step()
    assert counts == [((3, 2), [3, 2]), ((1, 0), [1])]
    assert run.level == "bits"


def test_an_evaluation_has_shards_and_leaves_gradients_and_statistics_alone(tmp_path: Path) -> None:
    net = nn.BatchNorm1d(3).eval()
    run = run_in(tmp_path, model=net)
    net.weight.grad = torch.ones(3)
    with torch.no_grad():
        for batch in run.loader(DataLoader(points(16), batch_size=4)):
            assert [len(net(x)) for x, _ in run.shards(batch)] == [4, 4, 4, 4]
    assert torch.equal(net.weight.grad, torch.ones(3))
    assert int(net.num_batches_tracked or 0) == 0


# -- misuse ------------------------------------------------------------------------------------------------------------


def test_shards_need_a_number(tmp_path: Path) -> None:
    with pytest.raises(Misused, match=r"run\.shards\(\) without Run\(\.\.\., shards=N\)"):
        run_in(tmp_path, shards=None).shards([1])


def test_a_batch_that_is_used_whole_is_refused(tmp_path: Path) -> None:
    run = run_in(tmp_path, model=linear())
    with pytest.raises(Misused, match=r"write `for x, y in run\.shards\(batch\)`"):
        for _x, _y in run.loader(DataLoader(points(16), batch_size=4)):
            pass


def test_something_else_than_a_batch_is_refused(tmp_path: Path) -> None:
    run = run_in(tmp_path, model=linear())
    with pytest.raises(Misused, match=r"was given a list: give it what a loop over run\.loader"):
        list(run.shards([1, 2]))


def test_a_step_after_a_loop_that_was_left_is_refused(tmp_path: Path) -> None:
    net = linear()

    def body(run: Run, batch: Any) -> None:
        for part in run.shards(batch):
            loss_sum(net, part).backward()
            break

    with pytest.raises(Misused, match=r"before the loop over run\.shards\(batch\) was over"):
        trained(tmp_path, net, body)


def test_shards_below_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Misused, match=r"Run\(\.\.\., shards=0\) runs on 1 to 0 ranks, and there are 1: start fewer"):
        run_in(tmp_path, shards=0)


# -- levels and conditions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shards", "level"), [(4, "bits"), (None, "batches")])
def test_the_level_is_in_the_log_and_in_the_checkpoint(
    tmp_path: Path, shards: int | None, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    run = saved(tmp_path, shards)
    assert run.level == level
    (kept,) = (tmp_path / "checkpoints").glob("step-*/manifest.json")
    assert json.loads(kept.read_text())["run"]["level"] == level
    assert f"checkpoint of step 1, level {level}" in caplog.text
    caplog.clear()
    run_in(tmp_path, shards, model=linear())
    assert f"level {level}" in caplog.text


def saved(path: Path, shards: int | None) -> Run:
    """A run with a checkpoint of its first step."""
    run = run_in(path, shards, model=linear())
    for _ in run.loader(DataLoader(points(16), batch_size=4), global_batch=16):
        run.step()
    run.close()
    return run


NOW = manifest_module.surroundings()
CHANGES = {
    "threads": (NOW["threads"], 97, rf"torch\.set_num_threads\({NOW['threads']}\) before Run.*OMP_NUM_THREADS"),
    "torch": (NOW["torch"], "3.0", "install torch "),
    "cpu": (NOW["cpu"], "ELSE", f"train on CPUs with {NOW['cpu']}"),
    "device": (NOW["device"], "H300", f"train on {NOW['device']}"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_at_bits_a_changed_condition_is_refused(tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, 4)
    before, now, advice = CHANGES[what]
    monkeypatch.setattr(conditions, "surroundings", lambda: {**NOW, what: now})
    with pytest.raises(
        WrongState, match=f"was made with {what} {before}, and here {what} is {now}: .*{advice}".replace("+", r"\+")
    ):
        run_in(tmp_path, 4, model=linear())


@pytest.mark.parametrize("what", CHANGES)
def test_at_other_levels_a_changed_condition_is_said(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path, None)
    before, now, _ = CHANGES[what]
    monkeypatch.setattr(conditions, "surroundings", lambda: {**NOW, what: now})
    run_in(tmp_path, None, model=linear())
    assert f"was made with {what} {before}, and here {what} is {now}: bits may differ" in caplog.text


def test_threads_that_really_change_are_refused(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    saved(tmp_path, 4)
    torch.set_num_threads(before + 1)
    try:
        with pytest.raises(WrongState, match=f"made with threads {before}, and here threads is {before + 1}"):
            run_in(tmp_path, 4, model=linear())
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("before", "now", "made"), [(4, 8, "with shards=4"), (None, 8, "without shards")])
def test_other_shards_than_before_are_refused(tmp_path: Path, before: int | None, now: int, made: str) -> None:
    saved(tmp_path, before)
    with pytest.raises(WrongState, match=rf"was made {made}, and Run\(\.\.\., shards={now}\) computes other bits"):
        run_in(tmp_path, now, model=linear())


def test_leaving_the_level_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved(tmp_path, 4)
    run_in(tmp_path, None, model=linear())
    assert "was made with shards=4: without them the level is no longer bits" in caplog.text


def test_ranks_that_would_compute_other_bits_are_refused() -> None:
    class TwoRanks:
        def gather(self, message: Any) -> list[Any]:
            return [message, {**message, "threads": message["threads"] + 1}]

    threads = NOW["threads"]
    with pytest.raises(
        WrongState, match=f"threads is {threads} on rank 0 and {threads + 1} on rank 1: on all ranks, say"
    ):
        conditions.same_everywhere(TwoRanks())  # type: ignore[arg-type]


def test_a_mean_that_a_start_has_not_used_yet_stays_in_its_checkpoints(tmp_path: Path) -> None:
    for turn in range(3):
        run = run_in(tmp_path, 4, model=linear())
        if turn == 0:
            run.mean("loss").update(2.0, 3)
        for _ in run.loader(DataLoader(points(16), batch_size=4), global_batch=16):
            run.step()
        run.close()
    assert run_in(tmp_path, 4, model=linear()).mean("loss").compute() == 2.0


# -- digests -----------------------------------------------------------------------------------------------------------


def test_the_digest_sees_parameters_optimizer_generators_and_place(tmp_path: Path) -> None:
    net = linear()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    run = run_in(tmp_path, model=net, optimizer=optimizer)
    found = [run.digest()]
    assert run.digest() == found[0]
    with torch.no_grad():
        net.weight[0, 0] += 1e-6
    found.append(run.digest())
    optimizer.param_groups[0]["lr"] = 0.2
    found.append(run.digest())
    torch.rand(())
    found.append(run.digest())
    random.random()
    found.append(run.digest())
    run.steps += 1
    found.append(run.digest())
    assert len(set(found)) == 6
    assert all(len(each) == 64 for each in found)
