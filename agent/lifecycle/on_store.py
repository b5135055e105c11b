"""What the store means to the node: opened, failed, away, back, record written, this node leads. Pure."""

from __future__ import annotations

from dataclasses import replace

from ...rendezvous.records import RoundPhase
from . import on_request, transitions, verdicts
from .events import (
    Event,
    LeadershipChanged,
    OthersEnded,
    RecordWritten,
    StoreCameBack,
    StoreFailed,
    StoreOpened,
    StoreWentAway,
    WakeAt,
)
from .state import Node, Rules, Verdict
from .transitions import Move


def on_opened(node: Node, event: StoreOpened, now: float, rules: Rules) -> Move:
    return transitions.rejoin(replace(node, hosting=event.hosting, addr=event.addr), rules, now, "the store answers")


def on_store_failed(node: Node, event: StoreFailed, now: float, rules: Rules) -> Move:
    node = replace(node, store_spoiled=True)
    if node.verdict is not None:  # each thread on the store says it once; only people may cut the grace short
        return node, ()
    if node.finished and event.status == verdicts.STORE_LOST:
        return on_request.leave(node, rules, now, verdicts.of_store_lost(node, rules, event.reason))
    return on_request.leave(node, rules, now, Verdict(event.status, event.reason))


def on_went_away(node: Node, event: StoreWentAway, now: float, rules: Rules) -> Move:
    if node.store_lost_until is not None:
        return node, ()
    return transitions.tolerate_store_outage(node, rules, now, event.reason)


def on_came_back(node: Node, event: StoreCameBack, now: float, rules: Rules) -> Move:
    if node.store_lost_until is None:
        return node, ()
    return transitions.republish(replace(node, store_lost_until=None), rules, now)


def on_leadership(node: Node, event: LeadershipChanged, now: float, rules: Rules) -> Move:
    return replace(node, leading=event.leads), ()


def on_written(node: Node, event: RecordWritten, now: float, rules: Rules) -> Move:
    if event.seq < node.seq:
        return node, ()
    closed = node.latest_round is not None and node.latest_round.phase is RoundPhase.CLOSED
    if node.hosting and not node.others_ended:
        if closed or node.latest_round is None or len(node.latest_round.members) < 2:
            return node, ()
        because = "serving the store until the other nodes have ended; another signal ends that"
        return replace(node, because=because), ()
    if node.leading and not node.others_ended and closed:
        # Another could do it, but is as likely to be gone by then. Not for longer than a last word may take.
        return replace(node, because="clearing the store up once the other nodes have ended"), ()
    return transitions.conclude(node)


def on_others_ended(node: Node, event: OthersEnded, now: float, rules: Rules) -> Move:
    return transitions.conclude(replace(node, others_ended=True))


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
    if node.store_lost_until is not None:
        return node, ()
    return transitions.tolerate_store_outage(node, rules, now, event.reason)


def on_came_back_while_ending(node: Node, event: StoreCameBack, now: float, rules: Rules) -> Move:
    """What we said last has been written, or is about to be: whoever connects anew says it again."""
    return replace(node, store_lost_until=None), ()
