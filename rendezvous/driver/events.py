"""What a node's link to the other nodes finds, for the agent's machine: frozen values.

A module of its own, because a job on one host needs only this of the driver. What the coordinator's machine gets is in
`rendezvous/coordinator/events.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from ...proto.frozen import dataclass
from ..coordinator.events import Event as CoordinatorEvent
from ..records import Round
from ..store import StoreError


@dataclass(frozen=True, slots=True)
class StoreOpened:
    """The store answered and holds this job. `hosting`: this node serves it. `addr`: how other nodes reach this one."""

    hosting: bool
    addr: str


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """The store cannot be used: no process serves it, what answers is no store of ours, or its job is another one."""

    error: StoreError


@dataclass(frozen=True, slots=True)
class StoreWentAway:
    """A call to the store broke or did not come back in time."""

    reason: str


@dataclass(frozen=True, slots=True)
class StoreCameBack:
    """The store answers again."""


@dataclass(frozen=True, slots=True)
class RoundSeen:
    """The coordinator's newest announcement was received."""

    round: Round


@dataclass(frozen=True, slots=True)
class RecordWritten:
    """This node's record number `seq` has reached the store."""

    seq: int


@dataclass(frozen=True, slots=True)
class LeadershipChanged:
    """This node coordinates the job from here on, or no longer."""

    leads: bool
    hosting: bool = False
    """It hosts the store as well, from here on."""


@dataclass(frozen=True, slots=True)
class NeighboursEnded:
    """No process is left of agents that were on this node's host, which its records say from now on."""

    names: tuple[str, ...]
    """Of all of them, for people."""


@dataclass(frozen=True, slots=True)
class OthersEnded:
    """This node coordinates, the rendezvous is closed, and every node has ended: no node needs the store any more."""


@dataclass(frozen=True, slots=True)
class StoreHandedOver:
    """This node hosted the store and has ended: it serves no more, and others elect the next host."""


Event = (
    StoreOpened
    | StoreFailed
    | StoreWentAway
    | StoreCameBack
    | RoundSeen
    | RecordWritten
    | LeadershipChanged
    | NeighboursEnded
    | OthersEnded
    | StoreHandedOver
)


@dataclass(frozen=True, slots=True)
class LoopAsked:
    """Whether the agent's loop turns: it calls `answer` when it takes this. For no machine."""

    answer: Callable[[], None]


Post = Callable[[Event | CoordinatorEvent | LoopAsked], None]
"""Adds an event to the agent's queue. Called from the driver's threads; must only enqueue."""


def overtaken(event: object, newest: int) -> bool:
    """Whether this is an announcement older than `newest`: several wait in the queue after a freeze, and only the last
    counts."""
    return isinstance(event, RoundSeen) and event.round.version < newest
