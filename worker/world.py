"""The ranks of a run, and the few words they exchange outside of training: on a gloo group of their own, as JSON."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from .errors import Misused


class World:
    """This rank among all. Collective where it says so: every rank calls it, in the same order."""

    def __init__(self) -> None:
        """Collective. Raises Misused where a launcher started several ranks and no process group exists yet."""
        self.rank, self.size = 0, 1
        self._group: Callable[[], Any] = lambda: None
        if dist.is_available() and dist.is_initialized():
            self.rank, self.size = dist.get_rank(), dist.get_world_size()
            # The training's own groups carry no message of ours, whatever its backend is. Weak: torch holds the group
            # until destroy_process_group; one that lives on to the end of the interpreter may abort the process there.
            if self.size > 1:
                self._group = weakref.ref(dist.new_group(backend="gloo"))
        elif (size := int(os.environ.get("WORLD_SIZE", "1"))) > 1:
            raise Misused(
                f"WORLD_SIZE is {size} and there is no process group: call torch.distributed.init_process_group() "
                "before Run(...)"
            )
        self.local_rank = int(os.environ.get("LOCAL_RANK", self.rank))

    def gather(self, message: Any) -> list[Any]:
        """Collective: each rank's message, by rank. A message is what JSON can hold."""
        if self.size == 1:
            return [message]
        return [json.loads(part.decode()) for part in self.gather_bytes(json.dumps(message).encode())]

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Collective: each rank's bytes, by rank."""
        if self.size == 1:
            return [data]
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(data)]), group=self._group())
        longest = max(int(length) for length in lengths)
        mine = torch.zeros(longest, dtype=torch.uint8)
        if data:
            mine[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        parts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(parts, mine, group=self._group())
        return [_bytes_of(part)[: int(length)] for part, length in zip(parts, lengths, strict=True)]

    def broadcast(self, message: Any, source: int = 0) -> Any:
        """Collective: the message of `source`."""
        if self.size == 1:
            return message
        data = json.dumps(message).encode() if self.rank == source else b""
        return json.loads(self.broadcast_bytes(data, source).decode())

    def broadcast_bytes(self, data: bytes, source: int) -> bytes:
        """Collective: the bytes of `source`."""
        if self.size == 1:
            return data
        length = torch.tensor([len(data)])
        dist.broadcast(length, source, group=self._group())
        buffer = torch.empty(int(length), dtype=torch.uint8)
        if self.rank == source:
            buffer.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else buffer)
        if len(buffer):
            dist.broadcast(buffer, source, group=self._group())
        return _bytes_of(buffer)

    def sum(self, numbers: list[float]) -> list[float]:
        """Collective: the sums over all ranks, in double precision."""
        if self.size == 1:
            return numbers
        totals = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(totals, group=self._group())
        return [float(total) for total in totals]

    def most(self, numbers: list[int]) -> list[int]:
        """Collective: the largest of each number over all ranks."""
        if self.size == 1:
            return numbers
        largest = torch.tensor(numbers, dtype=torch.int64)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=self._group())
        return [int(number) for number in largest]


def _bytes_of(buffer: torch.Tensor) -> bytes:
    import importlib.util

    return buffer.numpy().tobytes() if importlib.util.find_spec("numpy") is not None else bytes(buffer.tolist())
