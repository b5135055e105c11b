"""A copy of a state in host memory, made fast enough to stand in a training step's way: buffers are kept and reused."""

from __future__ import annotations

from typing import Any

import torch

from .pieces import identity, local_of, rebuild, tensors


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
        copied = rebuild(state, lambda path, tensor: self._copy(tensor, path, shared))
        if any(buffer.is_pinned() for buffer in self._used.values()) and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self._buffers = self._used
        return copied

    def _copy(
        self, tensor: torch.Tensor, path: tuple[Any, ...], shared: dict[tuple[Any, ...], torch.Tensor]
    ) -> torch.Tensor:
        if tensor.is_meta:
            return tensor  # a place that a piece was taken out of
        tensor = tensor.detach()
        same = identity(tensor)
        if tensor.numel() and same in shared:
            return shared[same]
        buffer = self._buffers.get(path)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda)
        buffer.copy_(tensor, non_blocking=tensor.is_cuda)
        self._used[path] = shared[same] = buffer
        return buffer


def size_of(state: Any) -> int:
    """Bytes of the tensors in a state that this rank holds."""
    return sum(
        local.numel() * local.element_size() for _, tensor in tensors(state) if not (local := local_of(tensor)).is_meta
    )
