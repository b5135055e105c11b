"""What the coordinator learns and what it does: two closed unions of frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..records import NodeRecord, Outcome, Round


@dataclass(frozen=True, slots=True)
class Elected:
    """This node coordinates from here on, and this is what it found."""

    epoch: int
    """Of its term, greater than every earlier one."""
    newest: Round | None = None
    """The newest word of whoever coordinated before; None if there is none."""
    records: tuple[NodeRecord, ...] = ()
    """The current one of each node."""
    version: int = 0
    """The newest version that anybody is known to have heard of; `newest` may have been cleared away since."""
    outcome: Outcome | None = None
    """How the job ended, where its record says so already."""


@dataclass(frozen=True, slots=True)
class Deposed:
    """Our term is over; another node coordinates, or will."""


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node published a record, or, where it is the one we know, the node's lease may have changed."""

    record: NodeRecord


@dataclass(frozen=True, slots=True)
class BeatsSeen:
    """The heartbeat counters asked for with ReadBeats were read: of each node asked for, -1 if it has none."""

    counts: Mapping[str, int]
    steady_s: float | None = None
    """On a store that keeps leases: for how long it has answered this node's own heartbeats in time. A node with -1 has
    no lease. None: the store keeps none, and the counters are to be aged."""


@dataclass(frozen=True, slots=True)
class DeadlineReached:
    """A time asked for with WakeAt has come, or some other; early or stale ones are harmless."""


Event = Elected | Deposed | NodeSeen | BeatsSeen | DeadlineReached


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
