"""What the coordinator learns and what it does: two closed unions of frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .records import NodeRecord, Round


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node published a record."""

    record: NodeRecord


@dataclass(frozen=True, slots=True)
class BeatsSeen:
    """The heartbeat counters asked for with ReadBeats were read. A node without one is absent."""

    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class DeadlineReached:
    """A time asked for with WakeAt has come, or some other; early or stale ones are harmless."""


Event = NodeSeen | BeatsSeen | DeadlineReached


@dataclass(frozen=True, slots=True)
class Announce:
    """Publish this round."""

    round: Round


@dataclass(frozen=True, slots=True)
class ReadBeats:
    """Read the heartbeat counters of these nodes; answer with BeatsSeen."""

    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send DeadlineReached at this time (seconds on this host's monotonic clock)."""

    when: float


@dataclass(frozen=True, slots=True)
class Retire:
    """The rendezvous is closed and every node has ended or is dead: nobody needs the store any more."""


Effect = Announce | ReadBeats | WakeAt | Retire
