"""In which order the gradients of the shards are added: a binary tree over the shards: their number alone decides it.

A sum of floating-point numbers depends on the order of its additions, so the order must not depend on the ranks. A node
is a range of shards; its sum is the sum of its left half plus that of its right half. Pure.
"""

from __future__ import annotations

from typing import NamedTuple

from ..data.slicing import part_of


class Node(NamedTuple):
    """The shards [low, high)."""

    low: int
    high: int

    def shards(self) -> range:
        return range(*self)

    def halves(self) -> tuple[Node, Node]:
        """The left half has the largest power of two of shards that leaves the right one some."""
        middle = self.low + (1 << (self.high - self.low - 1).bit_length() - 1)
        return Node(self.low, middle), Node(middle, self.high)


class Tree:
    """The tree over `count` shards, and what each of `ranks` ranks has of it."""

    def __init__(self, count: int, ranks: int) -> None:
        self.root = Node(0, count)
        self._parents: dict[tuple[Node, Node], Node] = {}
        self._enter(self.root)
        self.shards = [Node(*part_of(0, count, rank, ranks)) for rank in range(ranks)]
        """Of each rank: the shards that it computes."""
        self.parts = [self._cover(self.root, mine) for mine in self.shards]
        """Of each rank: the largest nodes that lie wholly in its shards, from left to right. What it sends."""

    def parent(self, left: Node, right: Node) -> Node | None:
        """The node whose halves these are."""
        return self._parents.get((left, right))

    def owner(self, shard: int) -> int:
        """The rank that computes a shard."""
        return next(rank for rank, mine in enumerate(self.shards) if mine.low <= shard < mine.high)

    def _enter(self, node: Node) -> None:
        if node.high - node.low > 1:
            halves = node.halves()
            self._parents[halves] = node
            for half in halves:
                self._enter(half)

    def _cover(self, node: Node, mine: Node) -> list[Node]:
        if mine.low <= node.low and node.high <= mine.high:
            return [node]
        if node.high <= mine.low or mine.high <= node.low:
            return []
        return [part for half in node.halves() for part in self._cover(half, mine)]
