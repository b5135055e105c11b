"""What happens to the coordinator and what it does: two closed unions of frozen values."""

from __future__ import annotations

from collections.abc import Mapping

from ...proto.frozen import dataclass
from ..records import NodeRecord, Outcome, Round


@dataclass(frozen=True, slots=True)
class Elected:
    """This node coordinates from here on, and the store holds this."""

    epoch: int
    """Of its term, greater than every earlier one."""
    newest: Round | None = None
    """The newest announcement of an earlier coordinator; None if there is none."""
    records: tuple[NodeRecord, ...] = ()
    """The current record of each node."""
    version: int = 0
    """The newest version that any node may have received; `newest` may have been removed since."""
    outcome: Outcome | None = None
    """How the job ended, if its record holds an outcome already."""
    ended: frozenset[str] = frozenset()
    """Nodes on which no process of the agent's is left, workers included, by the word of their kernels."""
    outvoted: frozenset[str] = frozenset()
    """Nodes that hosted the store and were replaced as they were silent."""
    elected_at: float | None = None
    """When it had the votes of others, in seconds on this host's monotonic clock; None: just now."""
    silent_since: float | None = None
    """When the last of those who elected it had sent the last heartbeat that these hosts have acknowledged, on the same
    clock; None: just now."""


@dataclass(frozen=True, slots=True)
class Deposed:
    """This node's term is over; another node coordinates, or will."""


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node published a record; or, if it is the known one, the node's lease may have changed."""

    record: NodeRecord


@dataclass(frozen=True, slots=True)
class NodesSeen:
    """Several nodes published a record: as `NodeSeen` for each, in this order, with one decision after the last."""

    records: tuple[NodeRecord, ...]


@dataclass(frozen=True, slots=True)
class BeatsSeen:
    """The heartbeat counters requested with ReadBeats were read: one for each node, -1 if it has none."""

    counts: Mapping[str, int]
    steady_s: float | None = None
    """On a store that keeps leases: for how long it has acknowledged this node's own heartbeats on time. A node with -1
    has no lease. None: the store keeps no leases, and the counters are to be aged."""


@dataclass(frozen=True, slots=True)
class ProcessesDied:
    """No process is left of these nodes' agents, nor of their workers, by the word of their kernels."""

    nodes: frozenset[str]


@dataclass(frozen=True, slots=True)
class DeadlineReached:
    """A deadline requested with WakeAt has passed; early or stale ones are harmless."""


Event = Elected | Deposed | NodeSeen | NodesSeen | BeatsSeen | ProcessesDied | DeadlineReached


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
    """The rendezvous is closed and every node has ended or is lost: no node needs the store any more."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """This node, which hosts the store, has ended, and those that stay can elect another host: announce no more, and
    let them know."""

    version: int
    """Of the newest announcement."""


@dataclass(frozen=True, slots=True)
class Tell:
    """Show this sentence to people on this node: for which nodes it waits."""

    because: str


@dataclass(frozen=True, slots=True)
class MoveFence:
    """Workers of this node, which hosts the store, may run until then: seconds on this host's monotonic clock."""

    until: float


StoreEffect = Announce | ReadBeats | Retire | HandOver
"""What is done on the store, by the coordinator's threads."""

Effect = StoreEffect | WakeAt | Tell | MoveFence
