"""Taking over: what a new coordinator rebuilds of its predecessor's state, and what it cannot know. Pure.

Only what was announced was ever decided: the store refuses whatever a coordinator announces after its term.

* From the newest announcement: the round, its phase, members and master; why the last round ended and which node that
  charges; how many rounds failures have ended; the outcome.
* From the nodes' records: which nodes are here, left, failed, finished or still have workers, with what budget left,
  and how workers of this round ended (though not in which order that was read).
* Settled anew: the ending of a round that is over, if it was not final. What it was taken for was announced; which
  members have answered is in the records.
* Begun anew, because no clock reaches from one host to another: the join timeout, the last call and its quiet period,
  the finalisation barrier, what workers get to act on an agreement.
* Not known: in which order nodes came, so nodes that wait for a place queue up as the store lists them; which nodes are
  lost, which the next reading of the leases shows, and so whether any node stands for all this (`standing.py`); and
  which node had a place in the last round without ever publishing so. So a node counts as waiting only once its record
  is of the last round that began, which every node publishes that receives it.
"""

from __future__ import annotations

from ...proto.frozen import replace
from ..failures import Ending, EndKind
from ..records import Member, NodeRecord, NodeState, Round, RoundPhase
from . import charging, standing
from .events import Elected
from .nodes import HAS_FINISHED, Nodes, Seen
from .state import Placement, Rendezvous, RoundEnd, Rules, places_of

UNDER_WAY = frozenset({RoundPhase.RUNNING, RoundPhase.OVER})
"""Phases whose round has begun; in the others, the one before it was the last that did."""


def take_over(event: Elected, now: float, rules: Rules) -> Rendezvous:
    """The state to go on from. It announces itself with the next version, so that all nodes receive the new epoch."""
    began = _begin(event, now) if event.newest is None else _resume(event.newest, event, now, rules)
    elected_at = now if event.elected_at is None else event.elected_at
    silent_since = now if event.silent_since is None else event.silent_since
    began = replace(began, died=event.ended, elected_at=elected_at, outvoted=event.outvoted, silent_since=silent_since)
    finishing = event.newest is not None and event.newest.finishing
    if finishing or any(not seen.lost for seen in began.nodes.any_order(HAS_FINISHED)):
        began = replace(began, barrier_until=now + rules.exit_barrier_s)
    began = charging.add_exits(began, [seen.record for _, seen in began.seen_members()])
    if began.phase is RoundPhase.CLOSED:
        return began
    if event.outcome is None:
        return standing.doubted(began, now, rules)
    because = f"the job's record gives its outcome: {event.outcome.value}"
    end = replace(began.end, settled=True)
    return replace(began, phase=RoundPhase.CLOSED, outcome=event.outcome, end=end, because=because)


def _begin(event: Elected, now: float) -> Rendezvous:
    nodes = Nodes(_seen(record, arrival, 0, now) for arrival, record in enumerate(event.records))
    return Rendezvous(epoch=event.epoch, version=event.version, nodes=nodes, asking=_asking(event), since=now)


def _asking(event: Elected) -> frozenset[str]:
    return frozenset(record.node for record in event.records if record.requests)


def _resume(newest: Round, event: Elected, now: float, rules: Rules) -> Rendezvous:
    unsettled = newest.unsettled if newest.phase is RoundPhase.OVER else None
    end = RoundEnd(
        ending=unsettled or _settled(newest),
        settled=unsettled is None,
        unanswered=frozenset(member.node for member in newest.members) if unsettled else frozenset(),
        hold=newest.hold,
    )
    return Rendezvous(
        agreement=newest.agreement,
        agreed_at=now,
        asking=_asking(event),
        served=frozenset(newest.served),
        phase=newest.phase,
        number=newest.number,
        because=newest.because,
        nodes=_nodes(newest, event, now, rules),
        placement=Placement(
            newest.members,
            newest.master_addr,
            newest.master_port,
            witnesses=newest.witnesses,
            voters=newest.voters,
            before=newest.before,
            previous=tuple(voter for voter in newest.voters if voter.node in newest.before),
            places=places_of(newest.members),
        ),
        end=end,
        since=now,
        last_call_until=now + rules.last_call_timeout_s if newest.phase is RoundPhase.LAST_CALL else None,
        restarts=newest.restarts,
        outcome=newest.outcome,
        version=max(newest.version, event.version),
        epoch=event.epoch,
        announced=newest,
    )


def _settled(newest: Round) -> Ending | None:
    """How the last ended round ended. A store may hold any bytes, so an announcement may lack what ours always has."""
    if newest.phase is not RoundPhase.OVER or (newest.ended is not None and newest.ended.round == newest.number):
        return newest.ended
    return Ending(newest.number, EndKind.DEPARTURE, newest.because)


def _nodes(newest: Round, event: Elected, now: float, rules: Rules) -> Nodes:
    begun = newest.number if newest.phase in UNDER_WAY else newest.number - 1
    # Where the job began again, nobody knows any more who the members were.
    others = begun - 1 if newest.phase in UNDER_WAY and newest.members else begun
    members = {member.node: member for member in newest.members}
    known = {record.node: record for record in event.records}
    order = [*members, *(node for node in known if node not in members)]
    nodes = Nodes(
        _seen(known[node], arrival, begun if node in members else others, now)
        if node in known
        else _lost(_seen(_absent(members[node], begun, newest, event), arrival, begun, now), now)
        for arrival, node in enumerate(order)
    )
    if newest.finishing:
        return nodes
    # One that finished before the job began again, as the predecessor knew; if it is back, its lease shows that.
    before = [seen for seen in nodes.having(HAS_FINISHED) if seen.record.round < begun]
    return nodes.with_all(_lost(seen, now) for seen in before if seen.record.node != rules.own)


def _lost(seen: Seen, now: float) -> Seen:
    return replace(seen, lost=True, lost_at=now)


def _seen(record: NodeRecord, arrival: int, placed: int, now: float) -> Seen:
    return Seen(record=record, arrival=arrival, waiting_since=now, heard_at=now, placed=placed, fenced_at=now)


def _absent(member: Member, begun: int, newest: Round, event: Elected) -> NodeRecord:
    """Of a member without a readable record, which counts as lost until it publishes one."""
    finished = member.node in newest.finished
    state = NodeState.ENDED if member.node in event.ended else NodeState.LEAVING
    return NodeRecord(
        member.node,
        member.name,
        NodeState.FINISHED if finished else state,
        seq=-1,
        round=begun,
        finished=finished,
        because="its record is not in the store",
    )
