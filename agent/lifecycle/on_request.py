"""Requests to this node: signals that stop it, signals for its workers, a polite request to leave. Pure."""

from __future__ import annotations

from dataclasses import replace

from ...rendezvous.records import NodeState
from . import transitions, verdicts
from .events import Event, ForwardAsked, ForwardSignal, LeaveAsked, SignalReceived, SignalUnheard
from .state import Node, Phase, Rules, Verdict
from .transitions import Move


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


def on_leave_asked_when_finished(node: Node, event: LeaveAsked, now: float, rules: Rules) -> Move:
    return transitions.end(node, rules, now, Verdict(verdicts.OK, f"this node's workers all finished; {event.reason}"))


def on_at_once(node: Node, event: Event, now: float, rules: Rules) -> Move:
    return transitions.conclude(node)


def on_forward(node: Node, event: ForwardAsked, now: float, rules: Rules) -> Move:
    return replace(node, because=f"signal {event.signum} is passed on to the workers"), (ForwardSignal(event.signum),)


def on_forward_while_stopping(node: Node, event: ForwardAsked, now: float, rules: Rules) -> Move:
    return node, (ForwardSignal(event.signum),)


def on_forward_at_rest(node: Node, event: ForwardAsked, now: float, rules: Rules) -> Move:
    return replace(node, because=f"signal {event.signum} came while no worker of this node ran; nobody heard it"), ()


def on_unheard(node: Node, event: SignalUnheard, now: float, rules: Rules) -> Move:
    """Passed on to stop nothing, it must not end a script that has not come to its handler yet."""
    because = f"local rank {event.local_rank} has no handler for signal {event.signum}, which was not passed on to it"
    return replace(node, because=because), ()
