"""Leaving a job and ending: requests to stop, and what there is to do once the workers are gone for good. Pure."""

from __future__ import annotations

from dataclasses import replace

from ...rendezvous.records import NodeState, RoundPhase
from . import transitions, verdicts
from .events import (
    DeadlineReached,
    Event,
    LeadershipChanged,
    LeaveAsked,
    OthersEnded,
    RecordWritten,
    SignalReceived,
    StoreCameBack,
    StoreWentAway,
    WakeAt,
)
from .state import Node, Phase, Rules, Verdict
from .transitions import Move

# -- leaving ----------------------------------------------------------------------------------------------------------


def on_signalled(node: Node, event: SignalReceived, now: float, rules: Rules) -> Move:
    verdict = Verdict(verdicts.SIGNALLED + event.signum, f"the agent was stopped by signal {event.signum}")
    return leave(node, rules, now, verdict, event.signum)


def on_leave_asked(node: Node, event: LeaveAsked, now: float, rules: Rules) -> Move:
    return leave(node, rules, now, Verdict(verdicts.ASKED_TO_LEAVE, f"asked to leave: {event.reason}"))


def leave(node: Node, rules: Rules, now: float, verdict: Verdict, signum: int = 15) -> Move:
    if node.phase is Phase.WORKING:
        return transitions.stop(node, rules, now, NodeState.LEAVING, verdict.because, signum=signum, verdict=verdict)
    if node.phase is Phase.STOPPING and node.ladder is None:
        return transitions.end(node, rules, now, verdict)
    if node.phase is Phase.STOPPING and node.verdict is None:
        node, effects = transitions.publish(
            replace(node, verdict=verdict), rules, now, NodeState.LEAVING, verdict.because
        )
        return node, effects
    if node.phase is Phase.STOPPING:
        return transitions.hurry(node, now, f"{verdict.because} again: workers are killed now")
    return transitions.end(node, rules, now, verdict)


# -- the end ----------------------------------------------------------------------------------------------------------


def on_leadership(node: Node, event: LeadershipChanged, now: float, rules: Rules) -> Move:
    return replace(node, leading=event.leads), ()


def on_written(node: Node, event: RecordWritten, now: float, rules: Rules) -> Move:
    if event.seq < node.seq:
        return node, ()
    if node.hosting and not node.others_ended:
        if node.seen is None or node.seen.phase is RoundPhase.CLOSED or len(node.seen.members) < 2:
            return node, ()
        because = "serving the store until the other nodes have ended; another signal ends that"
        return replace(node, because=because), ()
    if node.leading and not node.others_ended and node.seen is not None and node.seen.phase is RoundPhase.CLOSED:
        # Another could do it, but is as likely to be gone by then. Not for longer than a last word may take.
        return replace(node, because="clearing the store up once the other nodes have ended"), ()
    return transitions.conclude(node)


def on_others_ended(node: Node, event: OthersEnded, now: float, rules: Rules) -> Move:
    return transitions.conclude(replace(node, others_ended=True))


def on_time_while_ending(node: Node, event: DeadlineReached, now: float, rules: Rules) -> Move:
    if node.hosting and not node.store_spoiled:
        return _serve_on(node, now)
    if node.conclude_at is None:
        return node, ()
    if now < node.conclude_at:
        return node, (WakeAt(node.conclude_at),)
    return transitions.conclude(node)


def _serve_on(node: Node, now: float) -> Move:
    """The host hears from its own store who has ended, so it goes when that has been away for too long."""
    lost = node.store_lost_until
    if lost is None:
        return node, ()
    if now < lost:
        return node, (WakeAt(lost),)
    return transitions.look_again(node, now) if transitions.stood_still(lost, now) else transitions.conclude(node)


def on_store_useless(node: Node, event: Event, now: float, rules: Rules) -> Move:
    """The others find out at their next heartbeat what is wrong with the store. Gone at once, it would only be lost to
    them, and they would wait for it; so who hosts it stays for a moment."""
    if not node.hosting:
        return transitions.conclude(node)
    if node.store_spoiled:
        return node, ()
    until = now + transitions.LAST_WORD_S
    return replace(node, store_spoiled=True, conclude_at=until), (WakeAt(until),)


def on_went_away_while_ending(node: Node, event: StoreWentAway, now: float, rules: Rules) -> Move:
    """To a guest it is of no more use. The host itself may have stood still, or one connection of its own broke: others
    may need the store that it serves as much as before."""
    if not node.hosting:
        return transitions.conclude(node)
    return (node, ()) if node.store_lost_until is not None else transitions.bear(node, rules, now, event.reason)


def on_came_back_while_ending(node: Node, event: StoreCameBack, now: float, rules: Rules) -> Move:
    """What we said last has been written, or is about to be: whoever connects anew says it again."""
    return replace(node, store_lost_until=None), ()


def on_at_once(node: Node, event: Event, now: float, rules: Rules) -> Move:
    return transitions.conclude(node)


def on_leave_asked_when_finished(node: Node, event: LeaveAsked, now: float, rules: Rules) -> Move:
    return transitions.end(node, rules, now, Verdict(verdicts.OK, f"this node's workers all finished; {event.reason}"))


def on_nothing(node: Node, event: Event, now: float, rules: Rules) -> Move:
    return node, ()
