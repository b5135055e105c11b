"""The messages of `proto/control.proto` about workers' seconds, as frozen values."""

from __future__ import annotations

from ...proto.frozen import dataclass


@dataclass(frozen=True, slots=True)
class SpentTime:
    """What part of the workers' time went into one bucket."""

    bucket: str
    length_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LostTime:
    """What the end of one round has cost, of all workers of the node."""

    round: int
    """0: the job's start, and waiting at its end; or the sum of ends of this kind and node that have cost less than
    those which are told."""
    kind: str
    length_s: float = 0.0
    node: str = ""
    because: str = ""


@dataclass(frozen=True, slots=True)
class RankSteps:
    """How far a rank is, and how long its steps took."""

    rank: int
    steps: int = 0
    stepped_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Goodput:
    """Where the seconds of this node's workers went."""

    name: str
    wall_s: float = 0.0
    workers: int = 0
    share: float = 0.0
    measured: bool = False
    buckets: tuple[SpentTime, ...] = ()
    lost: tuple[LostTime, ...] = ()
    ranks: tuple[RankSteps, ...] = ()
