"""Which nodes stand for what was announced, and what becomes of it once none of them is alive. Pure.

A store that outlives the agents holds what a coordinator announced whose agents were all killed, and the same command
started again finds it there. A round, a failure, a finish and the finalisation barrier that follows it count for as
long as one node is alive that had a part in it: a member of the last round, or a node that has finished. Once all of
them are lost or have ended, the job begins again: in the next round, as the first one begins.

A successor that had no part in it itself cannot know at once which of them are alive: the store keeps a lease for a
while after its node has died. Until then it may end a round, but begins none, and does not close the job.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...proto.frozen import replace
from ..failures import Ending, EndKind
from ..records import NodeRecord, RoundPhase
from . import leases
from .nodes import HAS_FINISHED, Seen
from .state import LeaseReadings, Placement, Rendezvous, RoundEnd, Rules

BEGAN_AGAIN = "the job begins again: no node that had a part in it is alive"


def doubted(state: Rendezvous, now: float, rules: Rules) -> Rendezvous:
    """The state of a successor: in doubt, unless it had a part itself in what its predecessor announced. A store that
    outlives the nodes also holds records of the dead; the leases show which."""
    if state.announced is not None and not rules.hosted and leases.watched(state, rules):
        state = replace(state, readings=LeaseReadings(awaited=True))
    parts = [seen.record.node for seen in _participants(state)]
    in_doubt = bool(parts) and rules.own not in parts
    return replace(state, doubt_until=now + rules.lease_s) if in_doubt else state


def reported(state: Rendezvous, record: NodeRecord) -> Rendezvous:
    """The state after a node published this record: one that had a part is alive, which ends the doubt."""
    if state.doubt_until is None or not (record.finished or state.member(record.node) is not None):
        return state
    return replace(state, doubt_until=None)


def reviewed(state: Rendezvous, now: float) -> Rendezvous:
    """The state without what no living node stands for."""
    if state.phase is RoundPhase.CLOSED or (state.doubt_until is None and not state.finishing):
        return state
    if _all_finished(state):
        return state  # their last records say so, however soon they ended: the job is about to be closed
    if all(seen.dead for seen in _participants(state)):
        return _begin_again(state, now)
    until = state.doubt_until
    if until is not None and any(seen.alive_at >= until for seen in _participants(state)):
        return replace(state, doubt_until=None)
    return state


def allows(state: Rendezvous, phase: RoundPhase) -> bool:
    """Whether this state may move to this phase."""
    if state.doubt_until is not None and phase not in (RoundPhase.OVER, RoundPhase.GATHERING):
        return False
    return not (state.readings.awaited and phase is RoundPhase.RUNNING)


def _all_finished(state: Rendezvous) -> bool:
    """Whether all members of the round that runs have finished, and none was lost."""
    members = state.seen_members() if state.phase is RoundPhase.RUNNING else []
    return bool(members) and all(seen.finished and not seen.lost for _, seen in members)


def _participants(state: Rendezvous) -> Iterator[Seen]:
    for _, seen in state.seen_members():
        yield seen
    yield from state.nodes.having(HAS_FINISHED)


def _begin_again(state: Rendezvous, now: float) -> Rendezvous:
    """Rounds and versions are counted on; nothing else of the earlier run is left."""
    state = replace(
        state,
        placement=Placement(witnesses=state.placement.witnesses),  # who came back may still vouch for others
        since=now,
        doubt_until=None,
        barrier_until=None,
        last_call_until=None,
        restarts=0,
        because=BEGAN_AGAIN,
    )
    if state.phase in (RoundPhase.RUNNING, RoundPhase.OVER):
        ending = Ending(state.number, EndKind.DEPARTURE, BEGAN_AGAIN)
        return replace(state, phase=RoundPhase.OVER, end=RoundEnd(ending))
    return replace(state, phase=RoundPhase.GATHERING)
