"""What happens to this node's workers, and to the nursery that owns them. Pure."""

from __future__ import annotations

from ...proto.endings import PREEMPTED
from ...proto.frozen import replace
from ...rendezvous.driver.events import RoundSeen
from ...rendezvous.failures import STOOD_STILL, Sign, WorkerFailure, looks_like_an_echo, preempts
from ...rendezvous.records import NodeState
from . import on_request, on_round, restart_policy, stop_ladder, transitions
from .events import (
    HangFound,
    LeaveAsked,
    LeftoversNamed,
    NurseryLost,
    RestartNursery,
    StartFailed,
    WakeAt,
    WorkerExited,
    WorkersFenced,
    WorkersGone,
    WorkerStoreLost,
)
from .state import Node, Rules
from .transitions import Move


def on_exited(node: Node, event: WorkerExited, now: float, rules: Rules) -> Move:
    node = _exited(node, event.local_rank)
    if event.failure is not None:
        return _failed(node, event.failure, now, rules)
    if event.end is not None:
        node = _recorded(node, event.end)
    if node.tally.running:
        return replace(node, because=f"local rank {event.local_rank} exited 0; {len(node.tally.running)} still run"), ()
    return transitions.stop_leftovers(node, rules, now, "all workers of this node exited 0")


def on_start_failed(node: Node, event: StartFailed, now: float, rules: Rules) -> Move:
    return _failed(_exited(node, event.failure.local_rank), event.failure, now, rules)


def on_fenced(node: Node, event: WorkersFenced, now: float, rules: Rules) -> Move:
    """It charges nobody, and is the cause only where no worker failed on its own; this node stops what is left, and
    comes back."""
    because = (
        "this node was cut off, or its agent was paused, for so long that a newer round may run elsewhere, so its "
        "workers were killed"
    )
    local_rank = min(node.tally.running, default=0)
    failure = _unseen_end(node, rules, local_rank, because, Sign.CUT_OFF, "was killed as a newer round may run")
    return _failed(node, failure, now, rules)


def _exited(node: Node, local_rank: int) -> Node:
    return replace(node, tally=replace(node.tally, running=node.tally.running - {local_rank}))


def _recorded(node: Node, death: WorkerFailure) -> Node:
    return replace(node, tally=replace(node.tally, deaths=(*node.tally.deaths, death)))


def _failed(node: Node, failure: WorkerFailure, now: float, rules: Rules) -> Move:
    if preempts(failure):
        return _preempted(node, failure, now, rules)
    node = transitions.fail(node, rules, now, failure)
    if node.verdict is not None:
        return transitions.stop(node, rules, now, NodeState.LEAVING, node.verdict.because, verdict=node.verdict)
    held_s = stop_ladder.HOLD_S if looks_like_an_echo(failure) else 0.0
    return transitions.stop(node, rules, now, NodeState.BROKEN, f"worker failed: {failure}", held_s=held_s)


def _preempted(node: Node, asked: WorkerFailure, now: float, rules: Rules) -> Move:
    """A worker asked for the end of the job. The others get as long as workers get to stop, before they are stopped:
    they may still write what this one has saved its part of."""
    tally = node.tally
    tally = replace(tally, failures=(*tally.failures, asked), deaths=(*tally.deaths, asked), failed_at=now)
    node = replace(node, tally=tally)
    because = f"rank {asked.rank} (local rank {asked.local_rank}) asked for the end of the job by exit code {PREEMPTED}"
    return transitions.stop(node, rules, now, NodeState.BROKEN, because, held_s=rules.grace_s)


def on_exited_while_stopping(node: Node, event: WorkerExited, now: float, rules: Rules) -> Move:
    """A worker that exits now was asked to stop, or fails beside another of this node's, and which of two failed first
    is hard to tell. One that forbids a restart decides all the same."""
    node = _exited(node, event.local_rank)
    failure = event.failure
    if failure is None:
        return (_recorded(node, event.end) if event.end else node), ()
    if node.ladder is not None and node.ladder.rung is stop_ladder.Rung.LINGER and not node.tally.failures:
        node = transitions.fail(node, rules, now, failure)  # it was not asked to stop yet
    else:
        node = _recorded(node, failure)
    if not failure.final or not node.tally.failures or node.tally.failures[0].final or node.verdict is not None:
        return node, ()
    node = replace(node, tally=replace(node.tally, failures=(failure, *node.tally.failures)))
    return transitions.publish(node, rules, now, NodeState.BROKEN, f"worker failed: {failure}")


def on_start_failed_while_stopping(node: Node, event: StartFailed, now: float, rules: Rules) -> Move:
    return _recorded(_exited(node, event.failure.local_rank), event.failure), ()


def on_workers_gone(node: Node, event: WorkersGone, now: float, rules: Rules) -> Move:
    if node.verdict is not None:
        return transitions.end(node, rules, now, node.verdict)
    if node.elsewhere:
        return transitions.begin_anew(node, node.elsewhere)
    if node.finished and node.leaving is not None:
        return on_request.on_leave_asked_when_finished(node, LeaveAsked(node.leaving.because), now, rules)
    if node.finished:
        finished, effects = transitions.finish(node, rules, now)
        if node.latest_round is None:
            return finished, effects
        after, more = on_round.on_round_while_finished(finished, RoundSeen(node.latest_round), now, rules)
        return after, (*effects, *more)
    until = node.tally.preempted_until
    if until is not None and now < until:
        wait = f"waiting {restart_policy.PREEMPTION_S:g} s for the same signal to this agent"
        because = f"a stop signal from outside ended a worker; {wait}"
        return replace(node, ladder=None, because=because), (WakeAt(until),)
    return transitions.rejoin(node, rules, now, f"workers of round {node.round} are gone")


def on_leftovers_named(node: Node, event: LeftoversNamed, now: float, rules: Rules) -> Move:
    """Say what the workers left running, and what becomes of it."""
    ladder = node.ladder
    if ladder is None or not event.processes:
        return node, ()
    more = event.count - len(event.processes)
    listed = ", ".join((*event.processes, f"and {more} more") if more > 0 else event.processes)
    processes = "1 process" if event.count == 1 else f"{event.count} processes"
    named = f"{processes} that the workers left behind: {listed}"
    if ladder.rung is stop_ladder.Rung.KEPT:
        because = f"leaving {named} (--leftovers keep)"
    elif ladder.rung is stop_ladder.Rung.NAMED and ladder.until < stop_ladder.FOREVER:
        because = f"waiting {ladder.until - now:.0f} s before stopping {named} (--leftovers)"
    elif ladder.rung is stop_ladder.Rung.NAMED:
        because = f"waiting for {named} (--leftovers wait)"
    else:
        because = f"stopping {named}"
    return replace(node, ladder=replace(ladder, named=named), because=because), ()


def on_nursery_lost(node: Node, event: NurseryLost, now: float, rules: Rules) -> Move:
    """The round is over, as with any failure of this node's workers."""
    because = f"a failure of this host, not of the script: {_died(event)}, and the workers with it"
    failure = _host_failure(node, rules, because, "died with its nursery")
    node = transitions.fail(replace(node, tally=replace(node.tally, running=frozenset())), rules, now, failure)
    if node.verdict is not None:
        return transitions.end(node, rules, now, node.verdict)
    broken, published = transitions.publish(node, rules, now, NodeState.BROKEN, f"worker failed: {failure}")
    joining, effects = transitions.rejoin(broken, rules, now, because)
    return joining, (RestartNursery(), *published, *effects)


def on_nursery_lost_while_stopping(node: Node, event: NurseryLost, now: float, rules: Rules) -> Move:
    """The workers that this node was stopping are gone."""
    counted = node if node.finished else transitions.count_host_failure(node, rules, now, _died(event))
    after, effects = on_workers_gone(counted, WorkersGone(), now, rules)
    return after, effects if after.verdict is not None else (RestartNursery(), *effects)


def on_nursery_lost_at_rest(node: Node, event: NurseryLost, now: float, rules: Rules) -> Move:
    """No worker ran."""
    node = transitions.count_host_failure(node, rules, now, _died(event))
    return (node, (RestartNursery(),)) if node.verdict is None else transitions.end(node, rules, now, node.verdict)


def on_store_lost(node: Node, event: WorkerStoreLost, now: float, rules: Rules) -> Move:
    """The workers of all nodes have lost their store, whether they needed it any more or not: the round is over."""
    because = f"a failure of this host, not of the script: {_store_died(event)}"
    return _failed(node, _host_failure(node, rules, because, "lost its store"), now, rules)


def on_store_lost_when_finished(node: Node, event: WorkerStoreLost, now: float, rules: Rules) -> Move:
    """No worker runs here; those of other nodes fail if they need their store."""
    return replace(node, because=f"{_store_died(event)}; workers of other nodes fail if they still need it"), ()


def on_hang(node: Node, event: HangFound, now: float, rules: Rules) -> Move:
    """A failure like any other of this node's workers, and charged like one: all of them are stopped."""
    if event.round != node.round or event.local_rank not in node.tally.running:
        return node, ()
    failure = _unseen_end(node, rules, event.local_rank, event.because, Sign.OWN, STOOD_STILL, event.said)
    return _failed(node, failure, now, rules)


def _host_failure(node: Node, rules: Rules, because: str, sign_because: str) -> WorkerFailure:
    """A failure of this host, as that of its first worker that runs."""
    return _unseen_end(node, rules, min(node.tally.running, default=0), because, Sign.HOST, sign_because)


def _unseen_end(
    node: Node, rules: Rules, local_rank: int, because: str, sign: Sign, sign_because: str, said: str = ""
) -> WorkerFailure:
    """A failure of a worker whose exit was not seen."""
    member = node.latest_round.member(rules.node) if node.latest_round is not None else None
    rank = (member.rank_offset if member is not None else 0) + local_rank
    return WorkerFailure(
        rules.name,
        node.place.addr,
        rank,
        local_rank,
        0,
        -9,
        because,
        sign=sign,
        sign_because=sign_because,
        said=said,
    )


def _store_died(event: WorkerStoreLost) -> str:
    return f"the process that serves the workers' store died ({event.reason})"


def _died(event: NurseryLost) -> str:
    return f"the process that owns the workers died ({event.reason})"
