"""What this node does when a deadline passes. Pure."""

from __future__ import annotations

from ...proto.frozen import replace
from .. import exit_status
from . import on_request, on_workers, stop_ladder, transitions, verdicts
from .events import DeadlineReached, WakeAt, WorkersGone
from .state import Node, Phase, Rules, StoreOutage, Verdict
from .transitions import Move


def on_time(node: Node, event: DeadlineReached, now: float, rules: Rules) -> Move:
    lost = node.outage.until
    if lost is not None and now >= lost and node.verdict is None:
        if transitions.was_paused(lost, now):
            return transitions.extend_outage(node, now)
        verdict = verdicts.of_store_lost(node, rules, node.outage.why)
        return on_request.leave(replace(node, outage=StoreOutage(spoiled=True)), rules, now, verdict)
    if node.spare_until is not None and now >= node.spare_until:
        because = f"no place came free within the join timeout of {rules.join_timeout_s:g} s"
        return transitions.end(node, rules, now, Verdict(exit_status.JOIN_TIMED_OUT, because))
    if node.leaving is not None and node.phase is Phase.WORKING:
        if now >= node.leave_at:
            return on_request.leave(node, rules, now, node.leaving)
        return node, (WakeAt(node.leave_at), *(WakeAt(when) for when in (lost,) if when is not None and when > now))
    deadlines = [when for when in (lost, node.spare_until) if when is not None and when > now]
    return node, tuple(WakeAt(when) for when in deadlines)


def on_time_while_joining(node: Node, event: DeadlineReached, now: float, rules: Rules) -> Move:
    node, silent = _notice_silence(node, now)
    node, effects = on_time(node, event, now, rules)
    effects = (*silent, *effects)
    if node.paused_until is None or node.verdict is not None:
        return node, effects
    if now < node.paused_until:
        return node, (*effects, WakeAt(node.paused_until))
    resumed, more = transitions.resume(node, "the pause is over")
    return resumed, (*effects, *more)


def _notice_silence(node: Node, now: float) -> Move:
    """Say for whom this node waits, once it has waited for an announcement for too long."""
    since = node.unanswered_since
    if since is None or not node.place.ready or node.verdict is not None:
        return node, ()
    due = since + transitions.SILENCE_S
    if now < due:
        return node, (WakeAt(due),)
    if node.leading or node.outage.until is not None or transitions.was_paused(due, now):
        return transitions.await_answer(node, now)
    last = node.latest_round
    coordinator = f"{last.coordinator}, which coordinates" if last and last.coordinator else "the coordinator"
    because = (
        f"no announcement since this node asked for a place {transitions.SILENCE_S:g} s ago; waiting for "
        f"{coordinator}, or for another node to take over once its lease has run out"
    )
    return replace(node, unanswered_since=None, because=because), ()


def on_time_while_stopping(node: Node, event: DeadlineReached, now: float, rules: Rules) -> Move:
    node, effects = on_time(node, event, now, rules) if node.verdict is None else (node, ())
    if node.phase is Phase.STOPPING and node.ladder is None:
        after, more = on_workers.on_workers_gone(node, WorkersGone(), now, rules)
        return after, (*effects, *more)
    node, climbing = transitions.climb(node, now)
    if node.ladder is None or node.ladder.rung is not stop_ladder.Rung.GIVEN_UP:
        return node, (*effects, *climbing)
    ended, more = transitions.end(node, rules, now, verdicts.of_unkillable(node))
    return ended, (*effects, *more)


def on_time_while_ending(node: Node, event: DeadlineReached, now: float, rules: Rules) -> Move:
    if node.hosting and not node.outage.spoiled:
        return _serve_on(node, now)
    if node.conclude_at is None:
        return node, ()
    if now < node.conclude_at:
        return node, (WakeAt(node.conclude_at),)
    return transitions.conclude(node)


def _serve_on(node: Node, now: float) -> Move:
    """The host reads from its own store which nodes have ended, so it ends when that store does not answer in time."""
    lost = node.outage.until
    if lost is None:
        return node, ()
    if now < lost:
        return node, (WakeAt(lost),)
    return transitions.extend_outage(node, now) if transitions.was_paused(lost, now) else transitions.conclude(node)
