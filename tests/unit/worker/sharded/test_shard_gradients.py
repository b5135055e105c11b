"""Level `bits` in one process: what is in `.grad` behind the loop, and which models are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from elastic_agent.worker import Run
from elastic_agent.worker.errors import Misused
from support.rigs.shard_loops import linear, loss_sum, points, run_in, trained


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


@pytest.mark.parametrize("to_none", [False, True], ids=["zeros", "none"])
def test_gradients_of_zeros_are_there_again_after_a_restart(tmp_path: Path, to_none: bool) -> None:
    """`zero_grad(set_to_none=False)` leaves zeros, so that momentum and decay go on where a step gives no gradient."""

    def life(path: Path, stop_at: int) -> str:
        torch.manual_seed(0)
        net = Branched()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
        run = run_in(path, model=net, optimizer=optimizer)
        loader = run.loader(DataLoader(points(16), batch_size=4), global_batch=4)
        for _ in run.epochs(3):
            for batch in loader:
                optimizer.zero_grad(set_to_none=to_none)
                for part in run.shards(batch):
                    loss_sum(net, part).backward()
                optimizer.step()
                run.step()
                if run.steps == stop_at:
                    run.stop()
        return run.digest()

    whole = life(tmp_path / "whole", 0)
    for stop_at in (4, 6):
        life(tmp_path / "parts", stop_at)
    assert life(tmp_path / "parts", 0) == whole
