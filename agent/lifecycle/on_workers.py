"""What happens to this node's workers, and to the nursery that owns them. Pure."""

from __future__ import annotations

from dataclasses import replace

from ...rendezvous.failures import Sign, WorkerFailure, looks_like_an_echo
from ...rendezvous.records import NodeState
from . import on_round, restart_policy, stop_ladder, transitions
from .events import NurseryLost, RestartNursery, RoundSeen, StartFailed, WakeAt, WorkerExited, WorkersGone
from .state import Node, Rules
from .transitions import Move


def on_exited(node: Node, event: WorkerExited, now: float, rules: Rules) -> Move:
    node = replace(node, running=node.running - {event.local_rank})
    if event.failure is not None:
        return _failed(node, event.failure, now, rules)
    if event.end is not None:
        node = replace(node, deaths=(*node.deaths, event.end))
    if node.running:
        return replace(node, because=f"local rank {event.local_rank} exited 0; {len(node.running)} still run"), ()
    return transitions.stop_leftovers(node, rules, now, "all workers of this node exited 0")


def on_start_failed(node: Node, event: StartFailed, now: float, rules: Rules) -> Move:
    return _failed(replace(node, running=node.running - {event.failure.local_rank}), event.failure, now, rules)


def _failed(node: Node, failure: WorkerFailure, now: float, rules: Rules) -> Move:
    node = transitions.fail(node, rules, now, failure)
    if node.verdict is not None:
        return transitions.stop(node, rules, now, NodeState.LEAVING, node.verdict.because, verdict=node.verdict)
    hold = looks_like_an_echo(failure)
    return transitions.stop(node, rules, now, NodeState.BROKEN, f"worker failed: {failure}", hold=hold)


def on_exited_while_stopping(node: Node, event: WorkerExited, now: float, rules: Rules) -> Move:
    """What exits now was asked to, if it was. But beside a failure of our own, which of two died first is hard to tell,
    and a worker that forbids a restart is heard."""
    node = replace(node, running=node.running - {event.local_rank})
    failure = event.failure
    if failure is None:
        return replace(node, deaths=(*node.deaths, event.end) if event.end else node.deaths), ()
    if node.ladder is not None and node.ladder.rung is stop_ladder.Rung.LINGER and not node.failures:
        node = transitions.fail(node, rules, now, failure)  # nobody has asked it to stop yet
    else:
        node = replace(node, deaths=(*node.deaths, failure))
    if not failure.final or not node.failures or node.failures[0].final or node.verdict is not None:
        return node, ()
    node = replace(node, failures=(failure, *node.failures))
    return transitions.publish(node, rules, now, NodeState.BROKEN, f"worker failed: {failure}")


def on_start_failed_while_stopping(node: Node, event: StartFailed, now: float, rules: Rules) -> Move:
    node = replace(node, running=node.running - {event.failure.local_rank})
    return replace(node, deaths=(*node.deaths, event.failure)), ()


def on_gone(node: Node, event: WorkersGone, now: float, rules: Rules) -> Move:
    if node.verdict is not None:
        return transitions.end(node, rules, now, node.verdict)
    if node.finished:
        finished, effects = transitions.finish(node, rules, now)
        if node.latest_round is None:
            return finished, effects
        after, more = on_round.on_round_while_finished(finished, RoundSeen(node.latest_round), now, rules)
        return after, (*effects, *more)
    until = node.preempted_until
    if until is not None and now < until:
        wait = f"waiting {restart_policy.PREEMPTION_S:g} s for one to this agent"
        because = f"a stop signal from elsewhere ended a worker; {wait}"
        return replace(node, ladder=None, because=because), (WakeAt(until),)
    return transitions.rejoin(node, rules, now, f"workers of round {node.round} are gone")


def on_nursery_lost(node: Node, event: NurseryLost, now: float, rules: Rules) -> Move:
    """The round is over as with any failure of our workers."""
    because = f"a failure of this machine, not of the script: {_died(event)}, and they with it"
    local_rank = min(node.running, default=0)
    member = node.latest_round.member(rules.node) if node.latest_round is not None else None
    rank = (member.rank_offset if member is not None else 0) + local_rank
    failure = WorkerFailure(
        rules.name, node.addr, rank, local_rank, 0, -9, because, sign=Sign.HOST, sign_because="died with its nursery"
    )
    node = transitions.fail(replace(node, running=frozenset()), rules, now, failure)
    if node.verdict is not None:
        return transitions.end(node, rules, now, node.verdict)
    broken, said = transitions.publish(node, rules, now, NodeState.BROKEN, f"worker failed: {failure}")
    joining, effects = transitions.rejoin(broken, rules, now, because)
    return joining, (RestartNursery(), *said, *effects)


def on_nursery_lost_while_stopping(node: Node, event: NurseryLost, now: float, rules: Rules) -> Move:
    """What we meant to stop is gone, one way or the other."""
    counted = node if node.finished else transitions.lose(node, rules, now, _died(event))
    after, effects = on_gone(counted, WorkersGone(), now, rules)
    return after, effects if after.verdict is not None else (RestartNursery(), *effects)


def on_nursery_lost_at_rest(node: Node, event: NurseryLost, now: float, rules: Rules) -> Move:
    """No worker ran."""
    node = transitions.lose(node, rules, now, _died(event))
    return (node, (RestartNursery(),)) if node.verdict is None else transitions.end(node, rules, now, node.verdict)


def _died(event: NurseryLost) -> str:
    return f"the process that owns the workers died ({event.reason})"
