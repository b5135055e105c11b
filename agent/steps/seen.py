"""How an agent sees its workers: when they began and exited, and how those that use the worker library spend time."""

from __future__ import annotations

from collections.abc import Mapping

from ...proto.frozen import dataclass
from ...rendezvous.failures import Sign

BY_AGENT = (Sign.STOPPED, Sign.STANDING)
"""Ends that this agent brought about."""


@dataclass(frozen=True, slots=True)
class Shown:
    """How a worker that uses the worker library has spent its time, in seconds (`proto/steps.py`)."""

    steps: int = 0
    """Number of the last step of its run."""
    doing: int = 0
    """What it does in the time since `began_s` that no sum has."""
    saved: int = 0
    """The step of its newest checkpoint; 0: it has taken none."""
    began_s: float = 0.0
    """When it made its Run, on this host's monotonic clock; 0: it has made none."""
    useful_s: float = 0.0
    repeated_s: float = 0.0
    saving_s: float = 0.0
    paused_s: float = 0.0
    written_bytes: int = 0
    """The size of the newest checkpoint that it has brought to the disk, for all ranks or some; 0: it brought none."""


@dataclass(frozen=True, slots=True)
class WorkersSeen:
    """This node's workers of one round, as they are now. Times are of this host's monotonic clock."""

    at_s: float
    round: int
    nproc: int
    first_rank: int
    began_s: float
    """When the first of them was about to be started."""
    started_s: Mapping[int, float]
    """By local rank: when its process had begun."""
    exited: Mapping[int, tuple[float, int]]
    """By local rank: when its process was gone, and its exit code."""
    shown: tuple[Shown, ...]
    """By local rank."""
    failed: tuple[tuple[int, Sign], ...] = ()
    """Local ranks of those that failed, and what their exits say; whom this agent stopped has not failed."""
