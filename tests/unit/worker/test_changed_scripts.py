"""What the script of a later start does otherwise than that of the checkpoint: it is put right, or said with what to
write."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

from elastic_agent.worker import Every, Run
from elastic_agent.worker.errors import WrongState
from support.workers.ranks import play

pytestmark = pytest.mark.leaves_behind("torch.distributed keeps threads in the processes that tests fork from")


class Versioned(nn.Linear):
    """Notes in which version the state that it loads was written."""

    _version = 3
    loaded: Any = None

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *more: Any) -> None:
        self.loaded = local_metadata.get("version")
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *more)


def run_with(path: Path, net: Any) -> Run:
    return Run(path / "checkpoints", every=Every(seconds=None), net=net)


def keep(path: Path, net: Any) -> None:
    run = run_with(path, net)
    run.step()
    run.close()


def plain(net: nn.Module) -> Any:
    return net


def compiled(net: nn.Module) -> Any:
    return torch.compile(net, backend="eager")


def wrapped_twice(net: nn.Module) -> Any:
    return nn.DataParallel(compiled(net))


@pytest.mark.parametrize("wrap", [plain, nn.DataParallel, compiled, wrapped_twice])
@pytest.mark.parametrize("before", [plain, nn.DataParallel, compiled, wrapped_twice])
def test_a_model_is_loaded_whatever_wraps_it(
    tmp_path: Path, before: Callable[[Any], Any], wrap: Callable[[Any], Any]
) -> None:
    """DistributedDataParallel where there are several ranks, say, and none where there is one."""
    first, net = nn.Sequential(Versioned(2, 1)), nn.Sequential(Versioned(2, 1))
    keep(tmp_path, before(first))
    assert run_with(tmp_path, wrap(net)).steps == 1
    assert torch.equal(net[0].get_parameter("weight"), first[0].get_parameter("weight"))
    assert net[0].loaded == 3


def test_a_prefix_that_was_put_right_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    keep(tmp_path, nn.Linear(1, 1))
    run_with(tmp_path, nn.DataParallel(nn.Linear(1, 1)))
    (said,) = [text for text in caplog.messages if "before it is wrapped" in text]
    assert "step 1 has the state 'net' with no prefix" in said
    assert "given has 'module.' before each name" in said


def test_a_prefix_within_the_names_is_refused_with_who_put_it_there(tmp_path: Path) -> None:
    keep(tmp_path, AveragedModel(nn.Linear(1, 1)))
    with pytest.raises(WrongState, match=r"'module\.' of DistributedDataParallel or DataParallel only; give Run the"):
        run_with(tmp_path, AveragedModel(nn.DataParallel(nn.Linear(1, 1))))


def test_the_cause_that_a_launcher_shows_of_a_state_that_does_not_fit_is_ours(tmp_path: Path) -> None:
    keep(tmp_path, nn.Linear(1, 1))
    with pytest.raises(WrongState, match=r"give it what it was made with.*size mismatch for weight") as refused:
        run_with(tmp_path, nn.Linear(2, 1))
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__


def batches_in(path: Path, batch_size: int, **more: Any) -> Any:
    run = Run(path / "checkpoints", every=Every(steps=1, seconds=None))
    loader = run.loader(DataLoader(TensorDataset(torch.arange(24)), batch_size=batch_size), **more)
    for _ in run.batches(loader, run.steps + 1):
        run.step()
    return loader.global_batch


@pytest.mark.parametrize(("before", "now"), [(4, 8), (8, 4)])
def test_another_batch_size_that_does_not_count_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, before: int, now: int
) -> None:
    caplog.set_level(logging.INFO)
    batches_in(tmp_path, before)
    assert batches_in(tmp_path, now) == before
    assert (
        f"loader 'loader0' goes on with the global batch of {before} that it had; the script's batch_size gives "
        f"{now}: say run.loader(..., global_batch={now}) to change it"
    ) in caplog.messages
    assert batches_in(tmp_path, now, global_batch=now) == now


def test_another_number_of_ranks_is_no_other_batch_size(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert play(lambda rank: batches_in(tmp_path, 4), 2, tmp_path) == [8, 8]
    assert batches_in(tmp_path, 4) == 8
    assert not [text for text in caplog.messages if "goes on with the global batch" in text]


def test_a_start_says_how_many_ranks_the_checkpoint_had(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    play(lambda rank: batches_in(tmp_path, 4), 2, tmp_path)
    batches_in(tmp_path, 4)
    assert "resumed at step 1, epoch 0, loader0 at 8, with 1 ranks (2 before), level batches" in caplog.messages


def test_parameters_are_frozen_as_the_checkpoint_has_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The script lets a layer train from its second epoch on, and says so in that epoch only."""
    caplog.set_level(logging.INFO)

    def made() -> nn.Module:
        net = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1))
        return net.requires_grad_(False)

    net = made()
    run = run_with(tmp_path, net)
    net[1].requires_grad_(True)  # type: ignore[index]
    run.step()
    run.close()
    net = made()
    run_with(tmp_path, compiled(net))
    assert [each.requires_grad for each in net.parameters()] == [False, False, True, True]
    assert (
        "the checkpoint of step 1 has 2 of the 4 parameters of 'net' frozen, and the script 4: they are as the "
        "checkpoint has them; what is to be otherwise from here on, set behind Run(...)"
    ) in caplog.messages


def test_a_second_training_in_the_directory_of_one_of_this_process_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As folds that all call `Run()` under --exact-resume: the second one would train nothing, without a word."""
    for _ in range(2):
        keep(tmp_path, nn.Linear(1, 1))
    said = (
        f"this process has trained in {tmp_path / 'checkpoints'} before, up to step 1, and Run(...) goes on behind "
        "that: give another training, as of another fold, a directory of its own"
    )
    assert caplog.messages.count(said) == 1
