"""Level `bits` in one process: statistics, draws, collations and evaluations by shard."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from elastic_agent.worker import Run
from elastic_agent.worker.errors import Misused
from support.rigs.shard_loops import linear, loss_sum, points, run_in, trained


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


def test_an_evaluation_in_inference_mode_may_come_before_the_first_step(tmp_path: Path) -> None:
    norm = nn.BatchNorm1d(3)
    net = nn.Sequential(norm, nn.Linear(3, 1))
    run = run_in(tmp_path, model=net)
    with torch.inference_mode():
        for batch in run.loader(DataLoader(points(16), batch_size=4), train=False):
            for part in run.shards(batch):
                loss_sum(net, part)
    for batch in run.loader(DataLoader(points(16), batch_size=4)):
        for part in run.shards(batch):
            loss_sum(net, part).backward()
        run.step()
    assert int(norm.num_batches_tracked or 0) == 2
