"""A copy of a state in host memory, made fast enough to stand in a training step's way: buffers are kept and reused,
and large states are copied by more than one thread, as one core moves half of what the memory can."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from .pieces import identity, local_of, rebuild, tensors

_THREADS = 4
_ALONE = 8 << 20
"""Bytes of a state below which a further thread costs more than it saves."""
_PART = 4 << 20
"""Bytes that a thread copies at a time: few enough that none waits for another's last part for long, and as many that
what Python does for each part is a hundredth of the copy."""


class Staging:
    """Kept buffers, one for each tensor of a state. The second copy of the same state allocates nothing."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[Any, ...], torch.Tensor] = {}
        self._used: dict[tuple[Any, ...], torch.Tensor] = {}
        self._on_host: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Buffers that are yet to be filled, and of what."""

    def copy(self, state: Any) -> Any:
        """The state with every tensor copied. Tensors that share memory wholly share it in the copy, too.

        Tensors on an accelerator are copied into pinned buffers, all at once; the copy is complete on return.
        """
        self._used, self._on_host = {}, []
        shared: dict[tuple[Any, ...], torch.Tensor] = {}
        copied = rebuild(state, lambda path, tensor: self._copy(tensor, path, shared))
        pairs, self._on_host = self._on_host, []
        fill(pairs)
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
        if tensor.device.type == "cpu":
            self._on_host.append((buffer, tensor))
        else:
            buffer.copy_(tensor, non_blocking=tensor.is_cuda)
        self._used[path] = shared[same] = buffer
        return buffer


def fill(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copies each second tensor into the first one; all of it is there on return. Raises what a copy raises."""
    size = sum(buffer.numel() * buffer.element_size() for buffer, _ in pairs)
    helpers = min(_THREADS, len(os.sched_getaffinity(0))) - 1 if size >= _ALONE else 0
    if helpers <= 0:
        for buffer, tensor in pairs:
            buffer.copy_(tensor)
        return
    # A list's iterator gives each part to one thread.
    parts = iter([part for pair in pairs for part in _parts(*pair)])
    mode = torch.is_inference_mode_enabled()  # of this thread; buffers may be of it

    def work() -> None:
        with torch.inference_mode(mode):
            for buffer, tensor in parts:
                buffer.copy_(tensor)

    with ThreadPoolExecutor(helpers, "staging") as pool:
        others = [pool.submit(work) for _ in range(helpers)]
        work()
    for other in others:
        other.result()


def _parts(buffer: torch.Tensor, tensor: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The same copy in parts of rows, where these are large and lie one behind the other."""
    if buffer.numel() * buffer.element_size() <= _PART or type(tensor) is not torch.Tensor:
        return iter([(buffer, tensor)])
    if not (buffer.is_contiguous() and tensor.is_contiguous()):
        return iter([(buffer, tensor)])
    count = _PART // buffer.element_size()
    return zip(buffer.view(-1).split(count), tensor.view(-1).split(count), strict=True)


def size_of(state: Any) -> int:
    """Bytes of the tensors in a state that this rank holds."""
    return sum(
        local.numel() * local.element_size() for _, tensor in tensors(state) if not (local := local_of(tensor)).is_meta
    )
