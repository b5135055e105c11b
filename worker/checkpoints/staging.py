"""A copy of a state in host memory, made fast enough to stand in a training step's way: buffers are kept and reused."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch


class Staging:
    """Kept buffers, one for each tensor of a state. The second copy of the same state allocates nothing."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[Any, ...], torch.Tensor] = {}
        self._used: dict[tuple[Any, ...], torch.Tensor] = {}

    def copy(self, state: Any) -> Any:
        """The state with every tensor copied. Tensors that share memory wholly share it in the copy, too.

        Tensors on an accelerator are copied into pinned buffers, all at once; the copy is complete on return.
        """
        self._used = {}
        shared: dict[tuple[Any, ...], torch.Tensor] = {}
        copied = self._copy(state, (), shared)
        if any(buffer.is_pinned() for buffer in self._used.values()) and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self._buffers = self._used
        return copied

    def _copy(self, value: Any, path: tuple[Any, ...], shared: dict[tuple[Any, ...], torch.Tensor]) -> Any:
        if isinstance(value, torch.Tensor):
            return self._copy_tensor(value, path, shared)
        if isinstance(value, Mapping):
            copied = ((key, self._copy(held, (*path, key), shared)) for key, held in value.items())
            return OrderedDict(copied) if isinstance(value, OrderedDict) else dict(copied)
        if type(value) in (list, tuple):
            return type(value)(self._copy(held, (*path, number), shared) for number, held in enumerate(value))
        return value

    def _copy_tensor(
        self, tensor: torch.Tensor, path: tuple[Any, ...], shared: dict[tuple[Any, ...], torch.Tensor]
    ) -> torch.Tensor:
        tensor = tensor.detach()
        identity = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        if tensor.numel() and identity in shared:
            return shared[identity]
        buffer = self._buffers.get(path)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda)
        buffer.copy_(tensor, non_blocking=tensor.is_cuda)
        self._used[path] = shared[identity] = buffer
        return buffer


def size_of(state: Any) -> int:
    """Bytes of the tensors in a state."""
    if isinstance(state, torch.Tensor):
        return state.numel() * state.element_size()
    if isinstance(state, Mapping):
        return sum(size_of(held) for held in state.values())
    if isinstance(state, (list, tuple)):
        return sum(size_of(held) for held in state)
    return 0
