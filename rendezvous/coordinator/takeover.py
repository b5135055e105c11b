"""Taking over: what a new coordinator rebuilds of what the one before it knew, and what it cannot know. Pure.

Only what was announced was ever decided: the store refuses whatever a coordinator says after its term.

* From the newest word: the round, its phase, members and master; why the last round ended and whom that charges; how
  many rounds failures have ended; the outcome.
* From the nodes' records: who is here, who left, failed, finished or still has workers, with what budget left, and how
  workers of this round ended (though not in which order that was heard).
* Settled anew: the ending of a round that is over, if it was not final. What it was held to be was announced; who has
  answered is in the records.
* Begun anew, because no clock reaches from one host to another: the join timeout, the last call and its quiet period,
  the finalisation barrier.
* Not known: in which order nodes came, so those that wait for a place queue up as the store lists them; who was lost,
  which the next reading of the leases tells; and who had a place in the last round without ever saying so. So a node
  counts as waiting only once it speaks of the last round that began, which every node does that hears of it.
"""

from __future__ import annotations

from dataclasses import replace

from ..failures import Ending, EndKind
from ..records import Member, NodeRecord, NodeState, Round, RoundPhase
from . import charging
from .events import Elected
from .state import Rendezvous, Rules, Seen

UNDER_WAY = frozenset({RoundPhase.RUNNING, RoundPhase.OVER})
"""Phases whose round has begun; in the others, the one before it was the last that did."""


def take_over(event: Elected, now: float, rules: Rules) -> Rendezvous:
    """The state to go on from. It announces itself, with the next version, so that everybody knows of the new epoch."""
    began = _begin(event, now) if event.newest is None else _resume(event.newest, event, now, rules)
    finishing = event.newest is not None and event.newest.finishing
    if finishing or any(record.finished for record in event.records):
        began = replace(began, barrier_until=now + rules.exit_barrier_s)
    for _, seen in began.seen_members():
        began = charging.add_exits(began, seen.record)
    if event.outcome is None or began.phase is RoundPhase.CLOSED:
        return began
    because = f"the job's record says that it {event.outcome.value}"
    return replace(began, phase=RoundPhase.CLOSED, outcome=event.outcome, settled=True, because=because)


def _begin(event: Elected, now: float) -> Rendezvous:
    nodes = {
        record.node: _seen(record, arrival, 0, now)
        for arrival, record in enumerate(event.records)
    }  # fmt: skip
    return Rendezvous(epoch=event.epoch, version=event.version, nodes=nodes, since=now)


def _resume(word: Round, event: Elected, now: float, rules: Rules) -> Rendezvous:
    unsettled = word.unsettled if word.phase is RoundPhase.OVER else None
    return Rendezvous(
        phase=word.phase,
        number=word.number,
        because=word.because,
        nodes=_nodes(word, event.records, now),
        members=word.members,
        master_addr=word.master_addr,
        master_port=word.master_port,
        since=now,
        last_call_until=now + rules.last_call_timeout_s if word.phase is RoundPhase.LAST_CALL else None,
        unanswered=frozenset(member.node for member in word.members) if unsettled else frozenset(),
        ended=unsettled or _settled(word),
        settled=unsettled is None,
        hold=word.hold,
        restarts=word.restarts,
        outcome=word.outcome,
        version=max(word.version, event.version),
        epoch=event.epoch,
        announced=word,
    )


def _settled(word: Round) -> Ending | None:
    """How the last ended round ended. Any bytes may stand in a store, so there may be none where we would say one."""
    if word.phase is not RoundPhase.OVER or (word.ended is not None and word.ended.round == word.number):
        return word.ended
    return Ending(word.number, EndKind.DEPARTURE, word.because)


def _nodes(word: Round, records: tuple[NodeRecord, ...], now: float) -> dict[str, Seen]:
    begun = word.number if word.phase in UNDER_WAY else word.number - 1
    others = begun - 1 if word.phase in UNDER_WAY else begun
    members = {member.node: member for member in word.members}
    known = {record.node: record for record in records}
    order = [*members, *(node for node in known if node not in members)]
    return {
        node: _seen(known[node], arrival, begun if node in members else others, now)
        if node in known
        else _unheard(members[node], arrival, begun, now)
        for arrival, node in enumerate(order)
    }


def _seen(record: NodeRecord, arrival: int, placed: int, now: float) -> Seen:
    return Seen(record=record, arrival=arrival, waiting_since=now, heard_at=now, placed=placed)


def _unheard(member: Member, arrival: int, begun: int, now: float) -> Seen:
    """A member without a record that could be read: as good as lost, until it says something."""
    because = "its record is not in the store"
    record = NodeRecord(member.node, member.name, NodeState.LEAVING, seq=-1, round=begun, because=because)
    return replace(_seen(record, arrival, begun, now), lost=True)
