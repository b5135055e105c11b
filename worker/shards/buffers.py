"""What a forward pass changes in a model beside its gradients, such as the running statistics of a BatchNorm.

Each shard begins with the buffers as they were before the step, and those of the first shard that has samples stay:
what DistributedDataParallel does with rank 0's. So they do not depend on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import Misused
from .exchange import Exchange


class Buffers:
    """The buffers of the modules of a run that are part of their `state_dict`."""

    def __init__(self, states: Mapping[str, Any]) -> None:
        self._states = states
        self._changing = False
        self._before: dict[str, Tensor] = {}
        self._first: dict[str, Tensor] = {}
        self._bytes = torch.empty(0, dtype=torch.uint8, device="cpu")

    def begin(self, changing: bool) -> None:
        """A step begins. changing: False where nothing is to be put back."""
        self._changing = changing and bool(self._now())
        if self._changing:
            self._before = _copied(self._now(), self._before)

    def rewind(self) -> None:
        """A shard begins: as before the step."""
        if self._changing:
            self._write(self._before)

    def keep(self) -> None:
        """The first shard of the global batch is done, on this rank."""
        if self._changing:
            self._first = _copied(self._now(), self._first)

    def settle(self, exchange: Exchange, source: int) -> None:
        """Collective: the buffers of the first shard, which the rank `source` has computed, on all ranks."""
        if not self._changing:
            return
        if exchange.ranks > 1:
            self._first = self._first or {name: held.clone() for name, held in self._before.items()}
            _broadcast(list(self._first.values()), exchange, source, self)
        self._write(self._first)

    def room(self, length: int) -> Tensor:
        """Kept host memory."""
        if self._bytes.numel() != length:
            with torch.inference_mode(False):
                self._bytes = torch.empty(length, dtype=torch.uint8, device="cpu")
        return self._bytes

    def _now(self) -> dict[str, Tensor]:
        """By name; a module may have put another tensor in a buffer's place."""
        return {
            f"{name}.{path}.{own}": buffer
            for name, thing in self._states.items()
            if isinstance(thing, nn.Module)
            for path, module in thing.named_modules()
            for own, buffer in module._buffers.items()
            if buffer is not None and own not in module._non_persistent_buffers_set
        }

    def _write(self, kept: dict[str, Tensor]) -> None:
        now = self._now()
        for name in sorted(now.keys() | kept.keys()):
            new, old = now.get(name), kept.get(name)
            if new is None or old is None or new.shape != old.shape:
                raise Misused(
                    f"the buffer {name} has shape {_shape(old)} before a shard and {_shape(new)} after it: "
                    "run.shards() puts buffers back before each shard; give it one shape, or register it with "
                    "persistent=False"
                )
        with torch.no_grad():
            for name, buffer in now.items():
                buffer.copy_(kept[name])


def _shape(buffer: Tensor | None) -> str:
    return "none" if buffer is None else str(list(buffer.shape))


def _copied(now: dict[str, Tensor], into: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies of the tensors, in the memory of an earlier copy where they fit. The first may be made by an evaluation
    in inference mode, and a tensor that is made there could not be written to by a training step."""
    with torch.inference_mode(False), torch.no_grad():
        for name, buffer in now.items():
            kept = into.get(name)
            if kept is None or kept.shape != buffer.shape or kept.dtype != buffer.dtype:
                into[name] = buffer.detach().clone(memory_format=torch.contiguous_format)
            else:
                kept.copy_(buffer)
    return into


def _broadcast(tensors: list[Tensor], exchange: Exchange, source: int, buffers: Buffers) -> None:
    """All of them in one message."""
    flat = buffers.room(sum(tensor.numel() * tensor.element_size() for tensor in tensors))
    at, parts = 0, []
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        parts.append(flat[at : at + size])
        at += size
        if exchange.rank == source:
            parts[-1].copy_(tensor.reshape(-1).view(torch.uint8))
    exchange.broadcast(flat, source).wait()
    if exchange.rank != source:
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.view(-1).view(torch.uint8).copy_(part)
