"""Adds up what the shards computed, along the tree: on this rank as the shards come, then over the ranks.

A rank sends each other rank its part of the partial sums: one of W slices. It adds up the slice that is its own, and
all ranks gather the finished slices. With W and V powers of two a rank sends and receives as many bytes as in a ring
all_reduce. Slices are cut into pieces, so that one is added up while the next is on its way.

What a shard lacks counts as -0.0: x + -0.0 is x to the bit, for every x; x + 0.0 is not, for x = -0.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .exchange import Exchange
from .tree import Node, Tree

ABSENT = -0.0
_ALIGN = 16
"""Elements: slices and pieces begin at multiples, so that the processor reads whole lines."""
_PIECE_BYTES = 2 << 20
_MOST_PIECES = 8
_TAGS = 1 << 16
"""Tags of one fold: number of the partial sum times pieces, and the gathering."""


class Fold:
    """The sum over all shards of one flat vector. Its methods are called in this order, a step after the other:
    `begin`, `add` for each shard of this rank, `start`, `finish`; the last two are collective."""

    def __init__(
        self, length: int, dtype: torch.dtype, device: torch.device, tree: Tree, exchange: Exchange, number: int = 0
    ) -> None:
        """number: of this fold among those that are in flight together."""
        self.length = length
        self._slice = _aligned(length, exchange.ranks)
        self._piece = _aligned(self._slice, min(_MOST_PIECES, -(-self._slice * dtype.itemsize // _PIECE_BYTES)))
        self._dtype, self._device = dtype, device
        self._tree, self._exchange, self._first_tag = tree, exchange, number * _TAGS
        self._free: list[torch.Tensor] = []
        self._stack: list[tuple[Node, torch.Tensor]] = []
        self._inbox: dict[tuple[int, int], torch.Tensor] = {}
        self._staged: list[torch.Tensor] = []
        self._arriving: list[list[Any]] = []
        self._gathering: list[Any] = []
        self._leaving: list[Any] = []

    def begin(self) -> None:
        """Forgets what an earlier step left, its result included."""
        self._free += [flat for _, flat in self._stack]
        self._stack = []

    def add(self, shard: int, fill: Callable[[torch.Tensor, bool], None] | None) -> None:
        """One shard of this rank; they come in order. fill: writes the shard's vector into the given memory (False) or
        adds it to what is there (True); None: the shard has none."""
        leaf = Node(shard, shard + 1)
        into = self._stack[-1] if self._stack else None
        if into is not None and (parent := self._tree.parent(into[0], leaf)) is not None:
            # The left half is there already: the shard is added to it without a copy of its own.
            if fill is not None:
                fill(into[1], True)
            self._stack[-1] = (parent, into[1])
        else:
            flat = self._free.pop() if self._free else self._new(self._slice * self._exchange.ranks, self._device)
            if fill is None:
                flat.fill_(ABSENT)
            else:
                fill(flat, False)
            self._stack.append((leaf, flat))
        self._merge()

    def start(self) -> None:
        """All shards of this rank are added: their sums go to the other ranks."""
        exchange, flats = self._exchange, self._to_send()
        if exchange.ranks == 1:
            return
        others = [(exchange.rank + step) % exchange.ranks for step in range(1, exchange.ranks)]
        # Receives first, so that what arrives finds its place.
        for piece in self._pieces():
            arriving = [
                exchange.receive(self._box(other, number)[piece], other, self._tag(number, piece))
                for other in reversed(others)
                for number in range(len(self._tree.parts[other]))
            ]
            self._arriving.append(arriving)
        for piece in self._pieces():
            for other in others:
                for number, flat in enumerate(flats):
                    self._leaving.append(exchange.send(self._of(flat, other)[piece], other, self._tag(number, piece)))
            # A rank sends a finished piece when it has what this one sends of it: the memory is free by then.
            tag = self._tag(len(self._tree.root.shards()), piece)
            self._gathering += [exchange.receive(self._of(flats[0], other)[piece], other, tag) for other in others]

    def finish(self, divide_by: int) -> torch.Tensor:
        """The sum over all shards, divided. It stays until `begin`."""
        flat = self._stack[0][1]
        if self._exchange.ranks == 1:
            return flat.div_(divide_by)
        flats = self._staged or [flat for _, flat in self._stack]
        mine = self._of(flats[0], self._exchange.rank)
        values = self._values(flats)
        for piece, arriving in zip(self._pieces(), self._arriving, strict=True):
            _wait(arriving)
            total = _sum(self._tree.root, {node: value[piece] for node, value in values.items()})
            torch.div(total, divide_by, out=mine[piece])
            tag = self._tag(len(self._tree.root.shards()), piece)
            others = (other for other in range(self._exchange.ranks) if other != self._exchange.rank)
            self._leaving += [self._exchange.send(mine[piece], other, tag) for other in others]
        _wait(self._gathering)
        _wait(self._leaving)
        self._arriving = []
        if self._staged:
            flat.copy_(self._staged[0])
        return flat

    def _merge(self) -> None:
        while len(self._stack) > 1:
            (left, into), (right, flat) = self._stack[-2:]
            parent = self._tree.parent(left, right)
            if parent is None:
                return
            self._stack[-2:] = [(parent, into.add_(flat))]
            self._free.append(flat)

    def _values(self, flats: list[torch.Tensor]) -> dict[Node, torch.Tensor]:
        """What there is of this rank's slice: the partial sums of all ranks."""
        rank = self._exchange.rank
        return {
            node: self._of(flats[number], rank) if other == rank else self._box(other, number)
            for other, parts in enumerate(self._tree.parts)
            for number, node in enumerate(parts)
        }

    def _of(self, flat: torch.Tensor, rank: int) -> torch.Tensor:
        return flat[rank * self._slice : (rank + 1) * self._slice]

    def _pieces(self) -> list[slice]:
        return [slice(low, min(low + self._piece, self._slice)) for low in range(0, self._slice, self._piece)]

    def _tag(self, number: int, piece: slice) -> int:
        return self._first_tag + number * _MOST_PIECES + int(piece.start) // self._piece

    def _box(self, rank: int, number: int) -> torch.Tensor:
        if (rank, number) not in self._inbox:
            self._inbox[rank, number] = self._new(self._slice, torch.device("cpu"))
        return self._inbox[rank, number]

    def _to_send(self) -> list[torch.Tensor]:
        """This rank's partial sums in host memory."""
        flats = [flat for _, flat in self._stack]
        if self._device.type == "cpu" or self._exchange.ranks == 1:
            return flats
        self._staged = self._staged or [self._new(flat.numel(), torch.device("cpu")) for flat in flats]
        for staged, flat in zip(self._staged, flats, strict=True):
            staged.copy_(flat)
        return self._staged

    def _new(self, length: int, device: torch.device) -> torch.Tensor:
        return torch.zeros(length, dtype=self._dtype, device=device)


def _aligned(length: int, parts: int) -> int:
    """The length of each of so many parts, a multiple of the alignment."""
    return max(1, -(-length // (_ALIGN * parts))) * _ALIGN


def _wait(works: list[Any]) -> None:
    for work in works:
        work.wait()
    works.clear()


def _sum(node: Node, values: dict[Node, torch.Tensor]) -> torch.Tensor:
    """The sum of a node, in the memory of its leftmost part."""
    if node in values:
        return values[node]
    left, right = node.halves()
    return _sum(left, values).add_(_sum(right, values))
