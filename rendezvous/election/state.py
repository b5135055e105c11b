"""What one node knows while it takes part in the election of the next host of a c10d store."""

from __future__ import annotations

from enum import Enum

from ...proto.frozen import dataclass
from .electorate import Electorate, elects, outvotes
from .events import Position

HOLDS = 0.8
"""Leases behind an acknowledged heartbeat, or a promise, for which this node may vote. The host, or the node that was
promised the vote and hosts by now, goes on without this node no earlier than one lease behind it."""
SILENT_HOLDS = 1.5
"""The same where the host is silent. The host loses a voter one lease behind its last heartbeat, or later. Voters that
do not read what it begins then had a heartbeat acknowledged until then, so they find it silent half a lease later."""


class Phase(Enum):
    """What this node does about its host."""

    __hash__ = object.__hash__

    FOLLOWING = "following"
    """It follows a host that is not known to be dead."""
    ORPHANED = "orphaned"
    """The host is dead; this node waits for its turn, or for another candidate."""
    ASKING = "asking"
    """It is a candidate."""
    PROMISED = "promised"
    """It has promised its vote to another node, which may host by now."""
    SERVING = "serving"
    """It was elected."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What does not change while the agent runs."""

    node: str
    lease_s: float
    outvotes: bool = False
    """A host that is silent for a lease is replaced by more than half of all voters, although it may live."""
    survivor_goes: bool = False
    """In a round of two nodes the only guest does it, at the user's risk."""


@dataclass(frozen=True, slots=True)
class Voter:
    """One node, as it takes part in elections."""

    host: str
    """The node that hosts, or did last."""
    epoch: int = 1
    """Of its term."""
    phase: Phase = Phase.FOLLOWING
    because: str = "the host answers"
    newest: Position = (0, 0)
    """The newest announcement that was read."""
    electorate: Electorate = Electorate()
    """As that announcement says."""
    acknowledged: tuple[float, Position] = (float("-inf"), (0, 0))
    """Of the last acknowledged heartbeat: when it was sent, and the newest announcement that there was."""
    dead: frozenset[str] = frozenset()
    """Nodes whose processes are known to be dead."""
    silent: bool = False
    """The host is not known to be dead, but was silent for a lease, and is to be replaced."""
    outvoted: frozenset[str] = frozenset()
    """Hosts that this node has replaced so."""
    promised: tuple[int, str] = (0, "")
    """The greatest epoch for which this node has promised its vote, and to whom; "": the candidate has withdrawn."""
    votes: frozenset[str] = frozenset()
    """While ASKING: who has answered yes."""
    heard_at: float = float("-inf")
    """When the last heartbeat was sent that the host acknowledged to any of them or to this node."""
    seen: int = 0
    """The greatest epoch that another node is known to have promised."""
    turn_at: float = 0.0
    """While ORPHANED: when to ask; while ASKING: when to withdraw."""


def may_vote_until(state: Voter, rules: Rules) -> float:
    """Until when the host cannot have gone on without this node, unnoticed here."""
    sent_at, newest = state.acknowledged
    holds = HOLDS if not state.silent else SILENT_HOLDS
    return sent_at + holds * rules.lease_s if newest <= state.newest else float("-inf")


def has_given_up(state: Voter) -> bool:
    """Whether this node has promised another one to host in the place of a silent host, which it follows no more."""
    return state.silent and state.phase is Phase.PROMISED


def has_no_successor(state: Voter, rules: Rules) -> bool:
    """Whether the host is lost, and nobody replaces it: no other voter lives, and this node may not vote any more."""
    living = set(state.electorate.voters) - gone(state)
    return state.phase is Phase.ORPHANED and state.turn_at == float("inf") and living <= {rules.node}


def gone(state: Voter) -> frozenset[str]:
    """Who takes no part in the election."""
    return state.dead | {state.host} if state.silent else state.dead


def wins(state: Voter) -> bool:
    """Whether the votes that this node has elect it."""
    if state.silent:
        return outvotes(state.electorate, state.votes, state.host)
    return elects(state.electorate, state.votes, state.dead, state.host)
