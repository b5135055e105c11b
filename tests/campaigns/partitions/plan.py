"""A seed becomes a job, and the partitions that follow each other in it. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

LEASE_S, BEAT_S = 3.0, 0.5
STORE_GRACE_S = 20.0
GRACE_S = 1.0
STORE = "store"
MOMENT_S = (0.1, 0.2 * LEASE_S)
"""Shorter than what any fence allows: disturbs nobody."""
LONG_S = (1.2 * LEASE_S, 3.0 * LEASE_S)
OUTAGE_S = (1.5 * LEASE_S, 0.6 * STORE_GRACE_S)

KINDS = ("2+2", "1+3", "3+1+1", "one-way", "store only", "peers only", "freeze", "outage", "moment")


@dataclass(frozen=True)
class Partition:
    """What is cut, and for how long."""

    kind: str
    for_s: float
    after_s: float
    """From the moment on at which all nodes work."""
    cut: frozenset[tuple[str, str]] = frozenset()
    """Of each pair the second receives nothing of what the first sends it."""
    frozen: str = ""
    """The node whose agent stands still."""

    @property
    def disturbs(self) -> bool:
        """Whether workers may be stopped by it."""
        return self.kind not in ("peers only", "outage", "moment")


@dataclass(frozen=True)
class Plan:
    """A job."""

    seed: int
    nodes: tuple[str, ...]
    partitions: tuple[Partition, ...]


def draw(seed: int, count: int = 10, *, hosted: bool = False) -> Plan:
    """The job of this seed. Each kind has its turn. `hosted`: the first node hosts the store at first, and another one
    once that was cut off or stood still for long."""
    rng = random.Random(seed)
    nodes = tuple("abcde"[: 5 if seed % 2 else 4])
    first = seed * count
    drawn = (_partition(rng, KINDS[(first + at) % len(KINDS)], nodes) for at in range(count))
    return Plan(seed, nodes, tuple(_of_host(each, nodes[0]) if hosted else each for each in drawn))


def _of_host(partition: Partition, host: str) -> Partition:
    """The same where this node hosts the store at first: its loss is one of a node, and by then any may host."""
    if partition.kind == "outage":
        return replace(partition, kind="freeze", for_s=min(partition.for_s, LONG_S[1]), cut=frozenset(), frozen=host)
    if partition.kind == "peers only":
        return replace(partition, kind="peers and hosts")
    return partition


def _partition(rng: random.Random, kind: str, nodes: tuple[str, ...]) -> Partition:
    for_s = rng.uniform(*{"outage": OUTAGE_S, "moment": MOMENT_S}.get(kind, LONG_S))
    after_s = rng.uniform(0.2, 1.5)
    shuffled = rng.sample(nodes, len(nodes))
    if kind == "freeze":
        return Partition(kind, for_s, after_s, frozen=shuffled[0])
    return Partition(kind, for_s, after_s, _cut(rng, kind, shuffled))


def _cut(rng: random.Random, kind: str, nodes: list[str]) -> frozenset[tuple[str, str]]:
    some = nodes[: rng.choice((1, 1, 2))]
    if kind in ("2+2", "1+3", "3+1+1"):
        return apart(*_groups(kind, nodes))
    if kind in ("one-way", "moment"):
        ways = rng.choice((True, False))
        pairs = {(some[0], other) for other in (*nodes[1:], STORE)}
        return frozenset(pairs if ways else {(to, of) for of, to in pairs})
    if kind == "peers only":
        return frozenset((a, b) for a in nodes for b in nodes if a != b)
    cut = nodes if kind == "outage" else some
    return frozenset(pair for node in cut for pair in ((node, STORE), (STORE, node)))


def _groups(kind: str, nodes: list[str]) -> list[list[str]]:
    """The store is in the first group."""
    if kind == "1+3":
        return [[*nodes[1:], STORE], nodes[:1]]
    if kind == "3+1+1":
        return [[*nodes[2:], STORE], nodes[:1], nodes[1:2]]
    return [[*nodes[2:], STORE], nodes[:2]]


def apart(*groups: list[str]) -> frozenset[tuple[str, str]]:
    """Every pair of members of different groups, both ways."""
    return frozenset((a, b) for one in groups for other in groups if one is not other for a in one for b in other)
