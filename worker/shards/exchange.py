"""How partial sums go from rank to rank: messages between two ranks, from and into host memory that is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


class Exchange:
    """Messages in both directions at once, without a copy on the way. Their memory is contiguous, and not to be touched
    until the returned work is over (`wait()`). Messages between two ranks are told apart by tags."""

    def __init__(self, rank: int, ranks: int, group: Callable[[], Any]) -> None:
        """group: what carries host memory, asked for at each use."""
        self.rank, self.ranks = rank, ranks
        self._group = group

    def send(self, memory: torch.Tensor, to: int, tag: int) -> Any:
        return dist.isend(memory, dst=to, group=self._group(), tag=tag)

    def receive(self, memory: torch.Tensor, source: int, tag: int) -> Any:
        return dist.irecv(memory, src=source, group=self._group(), tag=tag)

    def broadcast(self, memory: torch.Tensor, source: int) -> Any:
        """Collective: what `source` has, into the same memory of all others."""
        return dist.broadcast(memory, src=source, group=self._group(), async_op=True)
