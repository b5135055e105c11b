"""Small batches leave a loader process by value, and arrive as they were."""

from __future__ import annotations

import pickle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from elastic_agent.worker import Every, Run
from elastic_agent.worker.data import packing
from elastic_agent.worker.data.packing import SMALL_BYTES, Packed

pytestmark = pytest.mark.leaves_behind("torch handles SIGCHLD from the first loader process on")


def sent(batch: Any) -> Any:
    """What comes out on the other side."""
    return pickle.loads(ForkingPickler.dumps(Packed(batch)))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12).reshape(3, 4).t(),
        torch.arange(10, dtype=torch.uint8)[3:],
        torch.tensor(2.5, dtype=torch.bfloat16),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j]),
        torch.zeros(0, 3),
        torch.ones(1).expand(5),
    ],
    ids=["transposed", "a part", "bfloat16", "truth", "complex", "empty", "expanded"],
)
def test_a_tensor_arrives_with_its_values_shape_and_strides(tensor: torch.Tensor) -> None:
    there = sent({"x": [tensor, "label"]})["x"][0]
    assert torch.equal(there, tensor)
    assert (there.dtype, there.shape, there.stride()) == (tensor.dtype, tensor.shape, tensor.stride())


def test_tensors_that_share_memory_share_it_on_the_other_side() -> None:
    whole = torch.zeros(4)
    first, second = sent((whole, whole[2:]))
    first[3] = 7.0
    assert second[1] == 7.0


def test_tensors_made_of_slices_of_one_array_arrive_whole() -> None:
    """They begin at one address, and each has memory of its own length."""
    array = np.arange(10)
    short, long = sent((torch.from_numpy(array[:-1]), torch.from_numpy(array)))
    assert (short.tolist(), long.tolist()) == (list(range(9)), list(range(10)))


def test_a_view_of_much_memory_is_sent_as_torch_sends_it() -> None:
    """Only the memory's size counts: all of it would be copied."""
    assert packing._is_plain(torch.zeros(SMALL_BYTES // 4))
    assert not packing._is_plain(torch.zeros(SMALL_BYTES // 4 + 1)[:1])
    assert not packing._is_plain(torch.zeros(1, requires_grad=True))
    assert not packing._is_plain(torch.zeros(1, device="meta"))


class Rows(Dataset[Any]):
    """Small tensors, and every fourth batch a large one."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8 * 1024 if index < 16 else 4,), float(index))


@pytest.mark.parametrize("processes", [1, 2])
def test_batches_of_any_size_come_through_loader_processes(tmp_path: Path, processes: int) -> None:
    """Four samples of 32 KiB are more than is sent by value, four of 16 bytes are not."""

    def epoch(where: str, count: int) -> list[torch.Tensor]:
        run = Run(tmp_path / where, every=Every(seconds=None))
        return [batch.clone() for batch in run.loader(DataLoader(Rows(), batch_size=4, num_workers=count))]

    found, expected = epoch("with", processes), epoch("without", 0)
    assert len(found) == 8
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_small_batches_take_no_shared_memory_in_the_training_process(tmp_path: Path) -> None:
    """So that each costs no connection to the loader process: large ones do."""
    run = Run(tmp_path, every=Every(seconds=None))
    shared = [batch.is_shared() for batch in run.loader(DataLoader(Rows(), batch_size=4, num_workers=1))]
    assert shared == [True] * 4 + [False] * 4
