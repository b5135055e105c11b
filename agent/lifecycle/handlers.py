"""What each event means to the agent, phase by phase. Pure; the table in `machine.py` says who handles what."""

from __future__ import annotations

from dataclasses import replace

from ...rendezvous.coordinator import charging, root_cause
from ...rendezvous.records import NodeState, Outcome, Round, RoundPhase, WorkerFailure
from ...rendezvous.text import count
from . import leaving, restart_policy, stop_ladder, transitions, verdicts
from .events import (
    DeadlineReached,
    Effect,
    ForwardAsked,
    ForwardSignal,
    PlaceFailed,
    PlacePrepared,
    PreparePlace,
    RoundSeen,
    SignalUnheard,
    StartFailed,
    StoreCameBack,
    StoreFailed,
    StoreOpened,
    StoreWentAway,
    WakeAt,
    WorkerExited,
    WorkersGone,
)
from .state import Node, Phase, Rules, Verdict
from .transitions import Move

# -- the store --------------------------------------------------------------------------------------------------------


def on_opened(node: Node, event: StoreOpened, now: float, rules: Rules) -> Move:
    return transitions.rejoin(replace(node, hosting=event.hosting, addr=event.addr), rules, now, "the store answers")


def on_store_failed(node: Node, event: StoreFailed, now: float, rules: Rules) -> Move:
    node = replace(node, store_spoiled=True)
    if node.verdict is not None:  # each thread on the store says it once; only people may cut the grace short
        return node, ()
    if node.finished and event.status == verdicts.STORE_LOST:
        return leaving.leave(node, rules, now, verdicts.of_store_lost(node, rules, event.reason))
    return leaving.leave(node, rules, now, Verdict(event.status, event.reason))


def on_went_away(node: Node, event: StoreWentAway, now: float, rules: Rules) -> Move:
    return (node, ()) if node.store_lost_until is not None else transitions.bear(node, rules, now, event.reason)


def on_came_back(node: Node, event: StoreCameBack, now: float, rules: Rules) -> Move:
    if node.store_lost_until is None:
        return node, ()
    return transitions.republish(replace(node, store_lost_until=None), rules, now)


# -- rounds -----------------------------------------------------------------------------------------------------------


def on_round_while_joining(node: Node, event: RoundSeen, now: float, rules: Rules) -> Move:
    seen = event.round
    node = transitions.settle_charge(replace(node, seen=seen), rules, now, seen)
    member = seen.member(rules.node)
    if seen.phase is RoundPhase.CLOSED:
        return transitions.end(node, rules, now, verdicts.of_closed(node, seen))
    if seen.phase is RoundPhase.RUNNING and member is not None and seen.number > node.round and node.place_ready:
        return transitions.start(node, rules, now, seen, member)
    if node.paused_until is not None and _costs_nothing(node, rules, seen):
        return transitions.resume(node, f"the pause is over, as round {node.round} costs this node no restart")
    said: tuple[Effect, ...] = ()
    passed = _passed(seen, member is not None)
    if passed > node.round and node.place_ready:
        node, said = _missed(node, rules, now, seen, passed)
    if seen.phase is RoundPhase.RUNNING and member is None and node.spare_until is None:
        until = now + rules.join_timeout_s
        how = "as a spare" if len(seen.members) >= rules.max_nodes else "for the next"
        because = f"round {seen.number} runs without this node, which waits {how}, for up to {rules.join_timeout_s:g} s"
        return replace(node, spare_until=until, because=because), (*said, WakeAt(until))
    if seen.phase in (RoundPhase.GATHERING, RoundPhase.LAST_CALL):
        return replace(
            node, spare_until=None, because=f"round {seen.number} is {seen.phase.value}: {seen.because}"
        ), said
    return node, said


def _costs_nothing(node: Node, rules: Rules, seen: Round) -> bool:
    """Whether it is settled that the end of our round was not our workers' fault, nor our machine's. While it is open,
    the last one is announced."""
    ended = seen.ended
    if ended is None or ended.round != node.round or not all(map(charging.charges, node.failures)):
        return False
    return not transitions.costs_us(node, rules, ended)


def _missed(node: Node, rules: Rules, now: float, seen: Round, passed: int) -> Move:
    because = f"round {passed} is over, and no worker of it is here"
    missed = replace(node, round=passed, failures=(), deaths=(), failed_at=None)
    if (seen.master_addr, seen.master_port) == (node.addr, node.port):
        # Our place was that round's master: the next gets another, which nobody of the last one knows.
        return replace(missed, place_ready=False, because=because), (PreparePlace(),)
    return transitions.offer(missed, rules, now, because)


def _passed(seen: Round, member: bool) -> int:
    """The last round that is over for this node. We may have had a place in it and never have heard so; the coordinator
    then waits for our word that none of its workers live here."""
    return seen.number if seen.phase is RoundPhase.OVER and member else seen.number - 1


def on_round_while_working(node: Node, event: RoundSeen, now: float, rules: Rules) -> Move:
    seen = event.round
    node = replace(node, seen=seen)
    if seen.phase is RoundPhase.CLOSED:
        verdict = verdicts.of_closed(node, seen)
        return transitions.stop(node, rules, now, NodeState.LEAVING, verdict.because, verdict=verdict)
    if _still_mine(node, seen, rules):
        return node, ()
    why = seen.because if seen.phase is RoundPhase.OVER else f"round {seen.number} began without this node"
    because = f"round {node.round} is over: {why}"
    return transitions.stop(node, rules, now, NodeState.STOPPING, because, hold=seen.hold)


def _still_mine(node: Node, seen: Round, rules: Rules) -> bool:
    return seen.number < node.round or (
        seen.phase is RoundPhase.RUNNING and seen.number == node.round and seen.member(rules.node) is not None
    )


def on_round_while_stopping(node: Node, event: RoundSeen, now: float, rules: Rules) -> Move:
    node = replace(node, seen=event.round)
    if event.round.phase is RoundPhase.CLOSED and node.verdict is None and not node.finished:
        return leaving.leave(node, rules, now, verdicts.of_closed(node, event.round))
    return node, ()


def on_round_while_finished(node: Node, event: RoundSeen, now: float, rules: Rules) -> Move:
    node = replace(node, seen=event.round)
    if event.round.phase is RoundPhase.CLOSED:
        return transitions.end(node, rules, now, verdicts.of_closed(node, event.round))
    return node, ()


def on_prepared(node: Node, event: PlacePrepared, now: float, rules: Rules) -> Move:
    changed = node.round > 0 and event.nproc != node.nproc
    room = f", with room for {count(event.nproc, 'worker')}, no longer {node.nproc}" if changed else ""
    because = f"waiting for a place in a round{room}"
    node, effects = transitions.offer(replace(node, nproc=event.nproc, port=event.port), rules, now, because)
    if node.seen is None:
        return node, effects
    seen_again, more = on_round_while_joining(node, RoundSeen(node.seen), now, rules)
    return seen_again, (*effects, *more)


def on_place_failed(node: Node, event: PlaceFailed, now: float, rules: Rules) -> Move:
    status = verdicts.MACHINE_FAILED if event.machine else verdicts.USAGE
    return transitions.end(node, rules, now, Verdict(status, event.reason))


# -- workers ----------------------------------------------------------------------------------------------------------


def on_exited(node: Node, event: WorkerExited, now: float, rules: Rules) -> Move:
    node = replace(node, running=node.running - {event.local_rank})
    if event.failure is not None:
        return _failed(node, event.failure, now, rules)
    if event.end is not None:
        node = replace(node, deaths=(*node.deaths, event.end))
    if node.running:
        return replace(node, because=f"local rank {event.local_rank} exited 0; {len(node.running)} still run"), ()
    return transitions.sweep(node, rules, now, "all workers of this node exited 0")


def on_start_failed(node: Node, event: StartFailed, now: float, rules: Rules) -> Move:
    return _failed(replace(node, running=node.running - {event.failure.local_rank}), event.failure, now, rules)


def _failed(node: Node, failure: WorkerFailure, now: float, rules: Rules) -> Move:
    node = transitions.fail(node, rules, now, failure)
    if node.verdict is not None:
        return transitions.stop(node, rules, now, NodeState.LEAVING, node.verdict.because, verdict=node.verdict)
    hold = root_cause.looks_like_an_echo(failure)
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
        if node.seen is None:
            return finished, effects
        after, more = on_round_while_finished(finished, RoundSeen(node.seen), now, rules)
        return after, (*effects, *more)
    until = node.preempted_until
    if until is not None and now < until:
        wait = f"waiting {restart_policy.PREEMPTION_S:g} s for one to this agent"
        because = f"a stop signal from elsewhere ended a worker; {wait}"
        return replace(node, ladder=None, because=because), (WakeAt(until),)
    return transitions.rejoin(node, rules, now, f"workers of round {node.round} are gone")


# -- signals for the workers -------------------------------------------------------------------------------------------


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


# -- time -------------------------------------------------------------------------------------------------------------


def on_time(node: Node, event: DeadlineReached, now: float, rules: Rules) -> Move:
    lost = node.store_lost_until
    if lost is not None and now >= lost and node.verdict is None:
        if transitions.stood_still(lost, now):
            return transitions.look_again(node, now)
        verdict = verdicts.of_store_lost(node, rules, node.store_lost_why)
        return leaving.leave(replace(node, store_lost_until=None, store_spoiled=True), rules, now, verdict)
    if node.spare_until is not None and now >= node.spare_until:
        because = f"no place came free within the join timeout of {rules.join_timeout_s:g} s"
        return transitions.end(node, rules, now, Verdict(verdicts.JOIN_TIMED_OUT, because))
    deadlines = [when for when in (lost, node.spare_until) if when is not None and when > now]
    return node, tuple(WakeAt(when) for when in deadlines)


def on_time_while_joining(node: Node, event: DeadlineReached, now: float, rules: Rules) -> Move:
    node, effects = on_time(node, event, now, rules)
    if node.paused_until is None or node.verdict is not None:
        return node, effects
    if now < node.paused_until:
        return node, (*effects, WakeAt(node.paused_until))
    resumed, more = transitions.resume(node, "the pause is over")
    return resumed, (*effects, *more)


def on_time_while_stopping(node: Node, event: DeadlineReached, now: float, rules: Rules) -> Move:
    node, effects = on_time(node, event, now, rules) if node.verdict is None else (node, ())
    if node.phase is Phase.STOPPING and node.ladder is None:
        after, more = on_gone(node, WorkersGone(), now, rules)
        return after, (*effects, *more)
    node, climbing = transitions.climb(node, now)
    if node.ladder is None or node.ladder.rung is not stop_ladder.Rung.GIVEN_UP:
        return node, (*effects, *climbing)
    left = ", ".join(str(rank) for rank in sorted(node.running)) or "none; but something that they started"
    late = f"{stop_ladder.GIVE_UP_S:g} s after SIGKILL"
    because = f"workers would not die {late} (local ranks: {left}); this node gives up on them"
    status = node.verdict.exit_code if node.verdict and node.verdict.exit_code else verdicts.WORKER_FAILED
    ended, more = transitions.end(node, rules, now, Verdict(status, because, Outcome.FAILED))
    return ended, (*effects, *more)
