"""Requests to this node: signals that stop it, signals for its workers, a polite request to leave. Pure."""

from __future__ import annotations

from ...proto.frozen import replace
from ...rendezvous.agreements import Act
from ...rendezvous.records import NodeState
from .. import exit_status
from . import on_agreement, transitions
from .events import (
    Event,
    ForwardAsked,
    ForwardSignal,
    LeaveAsked,
    SignalNotForwarded,
    SignalReceived,
    WakeAt,
)
from .state import Node, Phase, Rules, Verdict
from .transitions import Move


def on_signalled(node: Node, event: SignalReceived, now: float, rules: Rules) -> Move:
    because = event.because or f"the agent was stopped by signal {event.signum}"
    verdict = Verdict(exit_status.SIGNALLED + event.signum, because)
    if event.signum == transitions.SIGTERM and _settles(node, rules):
        limit_s = rules.grace_s / 2 if rules.term_settle_s is None else rules.term_settle_s
        return _settle(node, rules, now, verdict, min(rules.settle_s, limit_s))
    return transitions.ask_leftovers(*leave(node, rules, now, verdict, event.signum), now, event.signum)


def on_leave_asked(node: Node, event: LeaveAsked, now: float, rules: Rules) -> Move:
    verdict = Verdict(exit_status.PREEMPTED, f"asked to leave: {event.reason}")
    if _settles(node, rules):
        return _settle(node, rules, now, verdict, rules.settle_s)
    return transitions.ask_leftovers(*leave(node, rules, now, verdict), now)


def _settles(node: Node, rules: Rules) -> bool:
    """Whether workers save first; a second request stops them at once."""
    return rules.settle_s > 0 and node.phase is Phase.WORKING and node.leaving is None


def _settle(node: Node, rules: Rules, now: float, verdict: Verdict, limit_s: float) -> Move:
    """Leave once the workers of all nodes have saved at one step, and the coordinator has ended the round for that."""
    node = replace(node, leaving=verdict, leave_at=now + limit_s)
    because = f"leaving; workers may first save what they have done, for up to {limit_s:g} s"
    node, effects = on_agreement.ask(node, Act.SETTLE, "", verdict.because, now, rules)
    return replace(node, because=because), (*effects, WakeAt(node.leave_at))


def leave(node: Node, rules: Rules, now: float, verdict: Verdict, signum: int = transitions.SIGTERM) -> Move:
    """Stop the workers and end with this verdict; a second request kills workers that are being stopped."""
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
        return transitions.hurry(node, now, f"{verdict.because} again: killing workers now")
    return transitions.end(node, rules, now, verdict)


def on_leave_asked_when_finished(node: Node, event: LeaveAsked, now: float, rules: Rules) -> Move:
    return transitions.end(
        node, rules, now, Verdict(exit_status.OK, f"this node's workers all finished; {event.reason}")
    )


def on_signal_while_ending(node: Node, event: Event, now: float, rules: Rules) -> Move:
    return transitions.conclude(node)


def on_forward(node: Node, event: ForwardAsked, now: float, rules: Rules) -> Move:
    return replace(node, because=f"passing signal {event.signum} on to the workers"), (ForwardSignal(event.signum),)


def on_forward_while_stopping(node: Node, event: ForwardAsked, now: float, rules: Rules) -> Move:
    return node, (ForwardSignal(event.signum),)


def on_forward_at_rest(node: Node, event: ForwardAsked, now: float, rules: Rules) -> Move:
    return replace(node, because=f"signal {event.signum} arrived while no worker of this node ran; it was dropped"), ()


def on_not_forwarded(node: Node, event: SignalNotForwarded, now: float, rules: Rules) -> Move:
    """A forwarded signal is not meant to stop a worker, so it must not end one that has not installed its handler
    yet."""
    because = f"signal {event.signum} was not passed on to local rank {event.local_rank}, which has no handler for it"
    return replace(node, because=because), ()
