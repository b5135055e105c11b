"""A copy of a state in host memory, made fast enough to stand in a training step's way: buffers are kept and reused,
and large states are copied by more than one thread, as one core moves half of what the memory can.

Whose threads they are matters. Those of torch's operators spin for some milliseconds behind the last one, such as that
of the optimizer; on a host with as many processors others would wait for them, and take half as long again.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import functools
import mmap
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..threads import MOST, share
from .pieces import has_memory, identity, local_of, rebuild, tensors

_ALONE = 8 << 20
"""Bytes of a state below which a further thread costs more than it saves."""
_HUGE = 2 << 20
"""Bytes of a huge page, on the processors that torch has wheels for."""
_PART = 1 << 20
"""Bytes that a thread copies at a time: few enough that none waits for another's last part for long, and as many that
what Python does for each part is a hundredth of the copy."""


PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})
"""Types of values that nothing can change, and that every checkpoint can hold."""


class Staging:
    """Kept buffers, one for each tensor of a state. The second copy of the same state allocates nothing."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[Any, ...], torch.Tensor] = {}
        self._used: dict[tuple[Any, ...], torch.Tensor] = {}
        self._on_host: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Buffers that are yet to be filled, and of what."""
        self._devices: set[torch.device] = set()
        """Accelerators whose copies are under way."""

    def copy(self, state: Any) -> Any:
        """The state with everything copied. Tensors that share memory wholly share it in the copy, too. Numbers of
        numpy become those of Python that equal them, as a checkpoint runs no code of numpy's when it is read.

        Tensors on an accelerator are copied into pinned buffers, all at once; the copy is complete on return.
        """
        self._used, self._on_host, self._devices = {}, [], set()
        shared: dict[tuple[Any, ...], torch.Tensor] = {}
        # An evaluation may ask for a copy in inference mode, and a buffer that is made there takes none outside of it.
        with torch.inference_mode(False), torch.no_grad():
            copied = rebuild(state, lambda path, tensor: self._copy(tensor, path, shared), other=_copied)
            pairs, self._on_host = self._on_host, []
            fill(pairs)
            for device in self._devices:
                torch.cuda.synchronize(device)
        self._buffers = self._used
        return copied

    def _copy(
        self, tensor: torch.Tensor, path: tuple[Any, ...], shared: dict[tuple[Any, ...], torch.Tensor]
    ) -> torch.Tensor:
        if tensor.is_meta:
            return tensor  # a place that a piece was taken out of
        same, tensor = identity(tensor), tensor.detach()
        if tensor.numel() and same in shared:
            return shared[same]
        if not has_memory(tensor):
            shared[same] = tensor.clone() if tensor.device.type == "cpu" else tensor.to("cpu", copy=True)
            return shared[same]
        place = (path, tensor.shape, tensor.stride(), tensor.dtype)
        buffer = self._buffers.get(place)
        if buffer is None:
            buffer = _made_like(tensor)
        if tensor.device.type == "cpu":
            self._on_host.append((buffer, tensor))
        else:
            buffer.copy_(tensor, non_blocking=tensor.is_cuda)
            if tensor.is_cuda:
                self._devices.add(tensor.device)
        self._used[place] = shared[same] = buffer
        return buffer


def _made_like(tensor: torch.Tensor) -> torch.Tensor:
    """Memory for a copy of this tensor, strides and all: an optimizer may pair the numbers of a state with those of its
    parameter as they lie. Large ones are on huge pages where the host has them: the first copy takes a third of the
    time, as there are 512 times fewer pages to make, and each further one a tenth less."""
    size = tensor.numel() * tensor.element_size()
    if size < _HUGE or not _is_memory(tensor):
        return torch.empty_like(tensor.as_subclass(torch.Tensor), device="cpu", pin_memory=tensor.is_cuda)
    memory = mmap.mmap(-1, size + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    begin = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % _HUGE
    # Its storage is what the tensor takes: torch.save writes all of it.
    flat = torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=begin)
    return flat.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())


def fill(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copies each second tensor into the first one; all of it is there on return. Raises what a copy raises."""
    size = sum(buffer.numel() * buffer.element_size() for buffer, _ in pairs)
    if size < _ALONE or torch.get_num_threads() > 1:
        for buffer, tensor in pairs:
            buffer.copy_(tensor)
        return
    # A list's iterator gives each part to one thread.
    parts = iter([part for pair in pairs for part in _parts(*pair)])

    def work() -> None:
        for part in parts:
            part()

    share(work, MOST, "staging")


def _parts(buffer: torch.Tensor, tensor: torch.Tensor) -> Iterator[Callable[[], object]]:
    """The same copy in parts, where both are plain memory: the C library's memmove passes the caches by, which takes a
    third less time than torch's own copy."""
    alike = buffer.shape == tensor.shape and buffer.dtype == tensor.dtype and buffer.stride() == tensor.stride()
    if not (alike and _is_memory(buffer) and _is_memory(tensor)):
        yield functools.partial(buffer.copy_, tensor)
        return
    to, of, size = buffer.data_ptr(), tensor.data_ptr(), tensor.numel() * tensor.element_size()
    for at in range(0, size, _PART):
        yield functools.partial(ctypes.memmove, to + at, of + at, min(_PART, size - at))


_DENSE = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Orders in which the numbers of images lie without gaps, too, by the number of dimensions."""


def _is_memory(tensor: torch.Tensor) -> bool:
    """Whether the elements lie in host memory one behind the other, as they are."""
    plain = type(tensor) is torch.Tensor and tensor.device.type == "cpu" and tensor.layout is torch.strided
    if not plain or tensor.is_quantized or tensor.is_neg() or tensor.is_conj():
        return False
    dense = _DENSE.get(tensor.dim())
    return tensor.is_contiguous() or (dense is not None and tensor.is_contiguous(memory_format=dense))


def size_of(state: Any) -> int:
    """Bytes of the tensors in a state that this rank holds."""
    return sum(_bytes_of(local) for _, tensor in tensors(state) if not (local := local_of(tensor)).is_meta)


def _bytes_of(tensor: torch.Tensor) -> int:
    """Of a sparse one about: with a value go two indices."""
    if not tensor.is_sparse and tensor.layout not in _COMPRESSED:
        return tensor.numel() * tensor.element_size()
    values = tensor._values() if tensor.is_sparse else tensor.values()
    return values.numel() * (values.element_size() + 2 * 8)


_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def _copied(value: Any) -> Any:
    """A leaf of a state that is no tensor, or a key: training may go on to change it while it is written."""
    if type(value) in PLAIN:
        return value
    if type(value) in (set, frozenset, tuple):
        return type(value)(map(_copied, value))
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic) and value.dtype.kind in "biufcSU":
        equal = value.item()
        # Python computes with doubles: what is computed with another number of numpy's would be another after a resume.
        return equal if value.dtype.kind not in "fc" or type(value) in (numpy.float64, numpy.complex128) else value
    return copy.deepcopy(value)
