"""FullyShardedDataParallel (FSDP1): whole states of a model and its optimizer, over any number of ranks."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

# Imported before the ranks are forked from here: each would take seconds for them.
import torch._dynamo
import torch.distributed.checkpoint.state_dict
import torch.distributed.fsdp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel

from elastic_agent.worker import Every, Run
from elastic_agent.worker.errors import Misused
from support.workers.ranks import Ranks, play

NEVER = Every(seconds=None)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.leaves_behind("torch.distributed keeps threads in the processes that tests fork from"),
    pytest.mark.filterwarnings("ignore"),
]


def model(seed: int, wrapped: bool, original: bool) -> Any:
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3))
    if not wrapped:
        return net
    return FullyShardedDataParallel(net, device_id=torch.device("cpu"), use_orig_params=original)


def step(net: Any, optimizer: Any) -> None:
    optimizer.zero_grad()
    net(torch.ones(4, 5)).square().sum().backward()
    optimizer.step()


def outputs(net: Any, optimizer: Any) -> list[list[float]]:
    """What the model says now, and after two more steps: the second depends on all of the optimizer's state."""
    told = [net(torch.ones(1, 5)).flatten().tolist()]
    for _ in range(2):
        step(net, optimizer)
    return [*told, net(torch.ones(1, 5)).flatten().tolist()]


def train(directory: Path, steps: int, original: bool, die: bool = False) -> Any:
    net = model(steps, True, original)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    run = Run(directory, every=NEVER, model=net, optimizer=optimizer)
    for _ in range(steps):
        step(net, optimizer)
        run.step()
        run._commits += 1  # there is no loader here
    run.close()
    if die:
        os.kill(os.getpid(), signal.SIGKILL)
    return [run.steps, outputs(net, optimizer)]


@pytest.mark.parametrize("original", [True, False], ids=["parameters as they are", "flat parameters"])
@pytest.mark.parametrize("after", [2, 3])
def test_a_model_and_its_optimizer_go_on_over_any_number_of_ranks(tmp_path: Path, original: bool, after: int) -> None:
    """Killed after three steps on two ranks; what follows is what a model without FSDP1 does."""
    plain = model(3, False, original)
    optimizer = torch.optim.Adam(plain.parameters(), lr=0.05)
    for _ in range(3):
        step(plain, optimizer)
    expected = outputs(plain, optimizer)

    killed = Ranks(lambda _: train(tmp_path / "checkpoints", 3, original, die=True), 2, tmp_path).statuses()
    assert killed == [-signal.SIGKILL] * 2
    for steps, told in play(lambda _: train(tmp_path / "checkpoints", 0, original), after, tmp_path):
        assert steps == 3
        for one, other in zip(told, expected, strict=True):
            assert one == pytest.approx(other, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("original", [True, False], ids=["parameters as they are", "flat parameters"])
def test_an_optimizer_without_its_model_is_refused(tmp_path: Path, original: bool) -> None:
    def act(_: int) -> str:
        net = model(0, True, original)
        with pytest.raises(Misused) as told:
            Run(tmp_path / "checkpoints", every=NEVER, optimizer=torch.optim.Adam(net.parameters()))
        return str(told.value)

    assert "belong to a FullyShardedDataParallel model that Run was not given" in play(act, 2, tmp_path)[0]


@pytest.mark.parametrize("wrapper", ["FullyShardedDataParallel", "fully_shard"])
def test_what_sums_gradients_itself_is_refused_at_level_bits(tmp_path: Path, wrapper: str) -> None:
    def act(_: int) -> str:
        net = model(0, wrapper == "FullyShardedDataParallel", True)
        if wrapper == "fully_shard":
            torch.distributed.fsdp.fully_shard(net, mesh=init_device_mesh("cpu", (2,)))
        with pytest.raises(Misused) as told:
            Run(tmp_path / "checkpoints", every=NEVER, model=net, shards=2)
        return str(told.value)

    assert f"give it the module without {wrapper}, and train with that" in play(act, 2, tmp_path)[0]
