"""A small part of the campaign of failing disks and flipped bits; `make resume` plays all of it."""

from __future__ import annotations

import shutil

import pytest

from campaigns.resume import io_faults
from elastic_agent.worker.checkpoints.fence import Claim
from elastic_agent.worker.checkpoints.folder import Folder
from elastic_agent.worker.checkpoints.writer import Order, write

pytestmark = pytest.mark.leaves_behind("torch.distributed keeps threads in the process that the faults are forked from")


@pytest.mark.parametrize("fault", io_faults.FAULTS)
@pytest.mark.parametrize("act", io_faults.ACTS)
def test_a_fault_at_any_call_loses_no_checkpoint(act: str, fault: str) -> None:
    """Some calls of each form; the campaign takes every one."""
    for form, every in (("whole", 31), ("pieces", 79), ("safetensors", 31)):
        faults = io_faults.play(form, act, fault, every)
        assert faults.wrong == []
        assert faults.points >= 1


def test_every_flipped_bit_is_found() -> None:
    assert io_faults.flip(100, seed=5) == []


def test_a_commit_that_is_no_commit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The campaign can fail: here a save removes the checkpoint before it, before it has made its own."""

    def careless(folder: Folder, claim: Claim, order: Order) -> object:
        for kept in folder.kept():
            shutil.rmtree(kept.path)
        return write(folder, claim, order)

    with io_faults._made("whole", "save") as made:
        monkeypatch.setattr(io_faults, "write", careless)
        monkeypatch.setattr(io_faults, "_made", lambda form, act: _still(made))
        assert io_faults.play("whole", "save", "ENOSPC", 13).wrong


def _still(made: object) -> object:
    from contextlib import nullcontext

    return nullcontext(made)
