"""Which rank makes the others wait, and how much of the time that costs. Pure.

In a step all ranks wait for the slowest, so its length is the same for all; what differs is each rank's own time, in
which it waits for nobody.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...proto.frozen import dataclass
from ...rendezvous.text import duration
from .hang import named

LEAST_STEPS = 5
"""Ranks with fewer steps than this are not compared."""


@dataclass(frozen=True)
class Counts:
    """What one rank has counted since its start."""

    steps: int
    stepped_s: float
    """How long all of them took together."""
    own_s: float
    """The part of it in which the rank waited for no other."""


@dataclass(frozen=True)
class StepPace:
    """One rank's steps over some time."""

    steps: int
    step_s: float
    """How long one took, on average."""
    own_s: float
    """The part of it in which the rank waited for no other."""


@dataclass(frozen=True)
class Straggler:
    """The slowest rank."""

    rank: int
    lost: float
    """The share of the step's time that it costs the others, beyond what the median rank needs; from 0 to 1."""
    of_waits: float
    """The share of all that the median rank waits in a step that this is; from 0 to 1."""
    text: str


def pace(before: Counts, after: Counts) -> StepPace:
    """The steps between two looks."""
    steps = after.steps - before.steps
    if steps <= 0:
        return StepPace(0, 0.0, 0.0)
    return StepPace(steps, (after.stepped_s - before.stepped_s) / steps, (after.own_s - before.own_s) / steps)


def straggler(paces: Mapping[int, StepPace], nodes: Mapping[int, str] | None = None) -> Straggler | None:
    """The slowest of two ranks or more; None where there are fewer, or too few steps. `nodes`: names of the nodes by
    rank, where there are several."""
    known = {rank: pace for rank, pace in paces.items() if pace.steps >= LEAST_STEPS and pace.step_s > 0}
    if len(known) < 2:
        return None
    slowest = max(known, key=lambda rank: known[rank].own_s)
    own_s, step_s = known[slowest].own_s, known[slowest].step_s
    usual_s = _median([pace.own_s for rank, pace in known.items() if rank != slowest])
    lost_s = max(0.0, min(own_s, step_s) - usual_s)
    waits_s = max(step_s - usual_s, lost_s)
    lost, of_waits = min(1.0, lost_s / step_s), (lost_s / waits_s if waits_s else 0.0)
    others = named(rank for rank in known if rank != slowest)
    where = _where(slowest, known, nodes or {})
    text = (
        f"rank {slowest}{where} is the slowest: {duration(own_s)} of its own in a step of {duration(step_s)}, {others} "
        f"{duration(usual_s)}; this costs {100 * lost:.0f} % of the time, {100 * of_waits:.0f} % of the others' waiting"
    )
    return Straggler(slowest, lost, of_waits, text)


def _where(slowest: int, known: Mapping[int, StepPace], nodes: Mapping[int, str]) -> str:
    """The slowest rank's node, and whether it is that node that is slow."""
    if slowest not in nodes:
        return ""
    there = [pace.own_s for rank, pace in known.items() if nodes.get(rank) == nodes[slowest]]
    others = [pace.own_s for rank, pace in known.items() if nodes.get(rank) != nodes[slowest]]
    whole = len(there) > 1 and others and min(there) > max(others)
    which = f", of which all {len(there)} ranks are slower than those of other nodes," if whole else ""
    return f" on {nodes[slowest]}{which}"


def _median(numbers: list[float]) -> float:
    ordered, half = sorted(numbers), len(numbers) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
