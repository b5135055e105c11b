"""Batches of small tensors on their way out of a loader process: by value, in one message.

torch sends of each tensor a descriptor of shared memory, which the training process fetches over a connection of its
own, maps, and unmaps later: the same price for a tensor of any size. What is small is cheaper to copy.
"""

from __future__ import annotations

import ctypes
import io
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

SMALL_BYTES = 64 << 10
"""Of a tensor's memory: larger ones go as torch sends them. A pipe takes as many at once."""


class Packed:
    """A batch that is sent so. What receives it has the batch: unpickling gives no `Packed`."""

    __slots__ = ("_batch",)

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __reduce__(self) -> tuple[Any, ...]:
        message = io.BytesIO()
        _Pickler(message, pickle.HIGHEST_PROTOCOL).dump(self._batch)
        return pickle.loads, (message.getvalue(),)


class _Pickler(ForkingPickler):
    """As torch sends what it sends between processes, but for the memory of small tensors."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._sent: dict[tuple[int, int], _Memory] = {}
        """By address and length: tensors made of slices of one array begin at one address and end elsewhere."""

    def reducer_override(self, thing: Any) -> Any:
        """Called by pickle: how one object is packed."""
        if type(thing) is not torch.Tensor or not _is_plain(thing):
            return NotImplemented
        memory = thing.untyped_storage()
        # Tensors of one batch that share memory share it on the other side: pickle writes each object once.
        place = memory.data_ptr(), memory.nbytes()
        sent = self._sent.setdefault(place, _Memory(*place))
        return _view, (sent, thing.dtype, thing.storage_offset(), tuple(thing.shape), thing.stride())


class _Memory:
    """Bytes that tensors lie in, which keep them alive."""

    __slots__ = ("_address", "_length")

    def __init__(self, address: int, length: int) -> None:
        self._address, self._length = address, length

    def __reduce__(self) -> tuple[Any, ...]:
        return _memory, (ctypes.string_at(self._address, self._length),)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether its memory is small, and all that there is to it."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.requires_grad:
        return False
    if tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor.__dict__:
        return False
    return 0 < tensor.untyped_storage().nbytes() <= SMALL_BYTES


def _memory(data: bytes) -> torch.UntypedStorage:
    # Of torch's own allocator, whose alignment some operations' rounding follows.
    made = torch.UntypedStorage(len(data))
    ctypes.memmove(made.data_ptr(), data, len(data))
    return made


def _view(
    memory: torch.UntypedStorage, dtype: torch.dtype, offset: int, shape: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    return torch.empty(0, dtype=dtype, device="cpu").set_(memory, offset, shape, stride)


def packed(batch: Any) -> Packed:
    """The collation of the DataLoader in a loader process: the source has done it, under the batch's key."""
    return Packed(batch)
