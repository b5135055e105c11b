"""What the store means to the node: opened, failed, away, back, record written, this node leads. Pure."""

from __future__ import annotations

from ...proto.frozen import replace
from ...rendezvous.driver.events import (
    LeadershipChanged,
    NeighboursEnded,
    OthersEnded,
    RecordWritten,
    StoreCameBack,
    StoreFailed,
    StoreHandedOver,
    StoreOpened,
    StoreWentAway,
)
from ...rendezvous.records import NodeState, RoundPhase
from ...rendezvous.store import JobMismatch, StoreElsewhere, StoreOutvoted, StoreReplaced, VersionMismatch
from .. import exit_status
from . import on_request, transitions, verdicts
from .events import Effect, Event, WakeAt
from .state import Node, Phase, Rules, StoreOutage, Verdict
from .transitions import Move

NAMED = 8
"""As many neighbours are named at most."""
_STATUS = {JobMismatch: exit_status.OTHER_JOB, VersionMismatch: exit_status.OTHER_VERSION}
"""Which exit status follows an error of the store, where it is not STORE_LOST."""


def on_opened(node: Node, event: StoreOpened, now: float, rules: Rules) -> Move:
    place = replace(node.place, addr=event.addr)
    return transitions.rejoin(replace(node, hosting=event.hosting, place=place), rules, now, "the store answers")


def on_store_failed_while_joining(node: Node, event: StoreFailed, now: float, rules: Rules) -> Move:
    """Where the job goes on elsewhere, and this node has had no place in any round or hosted the same job: it begins
    again there."""
    begun = node.round > 0 or (node.latest_round is not None and node.latest_round.begun)
    outvoted = isinstance(event.error, StoreOutvoted)
    if not isinstance(event.error, StoreElsewhere) or (begun and not outvoted) or node.verdict is not None:
        return on_store_failed(node, event, now, rules)
    return transitions.begin_anew(node, str(event.error))


def on_store_failed(node: Node, event: StoreFailed, now: float, rules: Rules) -> Move:
    if isinstance(event.error, StoreOutvoted) and _goes_along(node):
        return _follow(node, str(event.error), now, rules)
    node = replace(node, outage=replace(node.outage, spoiled=True))
    if node.verdict is not None:  # each thread on the store reports it once; only people may cut the grace short
        return transitions.hurry(node, now, str(event.error)) if isinstance(event.error, StoreReplaced) else (node, ())
    status, reason = _STATUS.get(type(event.error), exit_status.STORE_LOST), str(event.error)
    if (node.finished or node.leaving is not None) and status == exit_status.STORE_LOST:
        return on_request.leave(node, rules, now, verdicts.of_store_lost(node, rules, reason))
    node, effects = on_request.leave(node, rules, now, Verdict(status, reason))
    if not isinstance(event.error, StoreReplaced):
        return node, effects
    # The host's node was started again, and is about to run workers of a new job: these must not run beside them.
    node, orders = transitions.hurry(node, now, f"{reason}; killing workers now")
    return node, (*effects, *orders)


def _goes_along(node: Node) -> bool:
    """Whether this node, another one hosting its job, means to be in it further, once its workers are gone."""
    going = node.verdict is not None or node.leaving is not None or node.finished
    return node.phase in (Phase.WORKING, Phase.STOPPING) and not going


def _follow(node: Node, because: str, now: float, rules: Rules) -> Move:
    """Those of the next host's round may run already, so these get no grace."""
    if node.elsewhere:
        return node, ()
    effects: tuple[Effect, ...] = ()
    if node.phase is Phase.WORKING:
        node, effects = transitions.stop(node, rules, now, NodeState.STOPPING, because)
    node = replace(node, elsewhere=because)
    if node.ladder is None:  # workers are gone already, and a signal that may follow is waited for
        return transitions.begin_anew(node, because)
    node, orders = transitions.hurry(node, now, f"{because}; killing workers now")
    return node, (*effects, *orders)


def on_went_away(node: Node, event: StoreWentAway, now: float, rules: Rules) -> Move:
    if node.outage.until is not None:
        return node, ()
    return transitions.tolerate_store_outage(node, rules, now, event.reason)


def on_came_back(node: Node, event: StoreCameBack, now: float, rules: Rules) -> Move:
    if node.outage.until is None:
        return node, ()
    return transitions.republish(answering(node), rules, now)


def on_leadership(node: Node, event: LeadershipChanged, now: float, rules: Rules) -> Move:
    return replace(node, leading=event.leads, hosting=node.hosting or event.hosting), ()


def on_neighbours_ended(node: Node, event: NeighboursEnded, now: float, rules: Rules) -> Move:
    """Each record says so; one is written now, unless the next one is about to be."""
    record = node.record
    if record is None or (record.state is NodeState.WAITING and not node.place.ready):
        return node, ()
    published, effects = transitions.publish(node, rules, now, record.state, record.because)
    names = event.names
    if (seen := node.latest_round) is not None and seen.members and seen.crowd is None:
        # Others were agents of earlier jobs of this run id.
        members = {member.name for member in seen.members}
        names = tuple(name for name in names if name in members)
    if not names:
        return replace(published, because=node.because), effects
    them = "it" if len(names) == 1 else "them"
    because = f"no process is left on this host of {', '.join(names[-NAMED:])}, so nobody need wait for {them}"
    return replace(published, because=because), effects


def on_written(node: Node, event: RecordWritten, now: float, rules: Rules) -> Move:
    if event.seq < node.seq:
        return node, ()
    closed = node.latest_round is not None and node.latest_round.phase is RoundPhase.CLOSED
    if node.hosting and not node.others_ended:
        if closed or node.latest_round is None or node.latest_round.nodes == 1:
            return node, ()
        because = "serving the store until the other nodes have ended; another signal stops that"
        return replace(node, because=because), ()
    if node.leading and not node.others_ended and closed:
        # Another node could do it, but is as likely to be gone by then. Bounded by `conclude_at`.
        return replace(node, because="removing the job's keys from the store once the other nodes have ended"), ()
    return transitions.conclude(node)


def on_others_ended(node: Node, event: OthersEnded, now: float, rules: Rules) -> Move:
    return transitions.conclude(replace(node, others_ended=True))


def on_handed_over(node: Node, event: StoreHandedOver, now: float, rules: Rules) -> Move:
    return transitions.conclude(node)


def on_store_useless(node: Node, event: Event, now: float, rules: Rules) -> Move:
    """The other nodes read at their next heartbeat what is wrong with the store. If the host ended at once, they would
    wait for the store as for one that is away; so the host stays for a moment."""
    if not node.hosting:
        return transitions.conclude(node)
    if node.outage.spoiled:
        return node, ()
    until = now + transitions.LAST_RECORD_S
    return replace(node, outage=replace(node.outage, spoiled=True), conclude_at=until), (WakeAt(until),)


def on_went_away_while_ending(node: Node, event: StoreWentAway, now: float, rules: Rules) -> Move:
    """A guest needs the store no more. The host may have been paused itself, or one of its own connections broke: other
    nodes may need the store as much as before."""
    if not node.hosting:
        return transitions.conclude(node)
    if node.outage.until is not None:
        return node, ()
    return transitions.tolerate_store_outage(node, rules, now, event.reason)


def on_came_back_while_ending(node: Node, event: StoreCameBack, now: float, rules: Rules) -> Move:
    """The last record is written, or is about to be: a thread that connects anew writes it again."""
    return answering(node), ()


def answering(node: Node) -> Node:
    """The node whose store answers again."""
    return replace(node, outage=StoreOutage(spoiled=node.outage.spoiled))
