"""What all ranks of a job do at one step boundary, and how the nodes agree on which: frozen values.

A node *requests* an act in its record. The coordinator announces an *agreement*, without a boundary at first. Each
member answers with a bound: a boundary that none of its workers has passed, and that none of them passes before it
knows the decision. The agreement then gets the largest bound, at which all workers act. Boundaries are counted from the
start of a worker's process; all ranks come to each.
"""

from __future__ import annotations

from enum import Enum

from ..proto.frozen import dataclass

MAX_REQUESTS = 8
"""Requests that a node's record holds."""
MAX_SERVED = 64
"""Requests that one agreement serves; further ones are served by the next."""
MAX_LABEL_BYTES = 256
"""Of a checkpoint's label, in UTF-8; the rest is cut."""


class Act(Enum):
    """What all ranks do. A later one takes the place of an earlier one that has no boundary yet."""

    __hash__ = object.__hash__

    SAVE = "save"
    """Make a checkpoint with a label, and go on."""
    SETTLE = "settle"
    """Make a checkpoint and wait at the boundary: the round is about to end."""
    RESTART = "restart"
    """The same, and the round ends then; no node is charged."""
    PREEMPT = "preempt"
    """Make a checkpoint and exit 0: the job is to be queued again."""
    KILL = "kill"
    """Make a checkpoint and exit 0: the job ends for good."""


MAX_SAVES = MAX_REQUESTS - (len(Act) - 1)
"""Saves among them; further ones are refused. They stand for ever where workers make no Run, and must not keep anybody
from stopping the job: each other act has a place of its own."""
DOES = {
    Act.SAVE: "save",
    Act.SETTLE: "save and wait",
    Act.RESTART: "save and start again",
    Act.PREEMPT: "save and stop",
    Act.KILL: "save and stop",
}
"""How a sentence about all ranks goes on."""
URGENCY = {act: place for place, act in enumerate(Act)}
HOLDS = frozenset({Act.SETTLE, Act.RESTART})
"""Workers wait behind the save until the round ends, or they are released."""
STOPS = frozenset({Act.PREEMPT, Act.KILL})
"""Workers leave their loop behind the save, and exit."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a node asks for. It stays in the node's record until an agreement that lists it is over."""

    number: int
    """Counts this node's requests, from 1."""
    act: Act
    label: str = ""
    because: str = ""
    """Who asks, for people."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One member's answer to an agreement."""

    agreement: int
    """`Agreement.number`."""
    bound: int = 0
    """The boundary that its workers do not pass without the decision; 0: some worker has no boundaries, as it has made
    no Run (yet)."""
    done: bool = False
    """Its workers have acted; for acts but SAVE, what they saved is on the disk."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """What all ranks of the running round do, as the coordinator announces it."""

    number: int
    """Greater than that of every agreement before."""
    act: Act
    label: str = ""
    because: str = ""
    at: int = 0
    """The boundary at which all ranks act; 0 as long as that is not decided."""
    over: bool = False
    """All have acted, or it was given up."""
    requests: tuple[tuple[str, int], ...] = ()
    """Whose requests it serves: node and number."""
    round: int = 1
    """The round whose ranks act. One that is over is announced also in the next, until another begins."""

    @property
    def given_up(self) -> bool:
        """Over, and no rank has acted: some worker has no boundaries."""
        return self.over and not self.at
