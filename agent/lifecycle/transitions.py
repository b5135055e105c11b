"""The agent's transitions: each returns the new state and its effects. Pure; the `on_` modules choose."""

from __future__ import annotations

from dataclasses import replace

from ...rendezvous.failures import Ending, WorkerFailure, charges, worth_reporting
from ...rendezvous.records import Member, NodeRecord, NodeState, Round
from ...rendezvous.text import count
from . import restart_policy, stop_ladder, verdicts
from .events import (
    Conclude,
    Effect,
    KillWorkers,
    PreparePlace,
    Publish,
    SignalWorkers,
    StartWorkers,
    WakeAt,
)
from .state import Node, Phase, Rules, Verdict

SIGTERM = 15
"""As a number, because what decides imports nothing that acts."""

LAST_WORD_S = 3.0
"""How long the last record may take to be acknowledged before the agent goes anyway; its lease then speaks for it."""

LATE_S = 1.0
"""A wake-up that comes later than this says more about this host than about the store."""

SECOND_LOOK_S = 5.0
"""What the store gets to answer, or killed workers to be gone, once we ourselves run again: one call's deadline."""

Move = tuple[Node, tuple[Effect, ...]]


def publish(node: Node, rules: Rules, now: float, state: NodeState, because: str) -> Move:
    """Say what we are. The first failure of the round stays with it, so that no later record can hide it."""
    at = now if node.failed_at is None else node.failed_at
    record = NodeRecord(
        node=rules.node,
        name=rules.name,
        state=state,
        seq=node.seq + 1,
        round=node.round,
        nproc=node.nproc,
        role=rules.role,
        addr=node.addr,
        port=node.port,
        preferred_rank=rules.preferred_rank,
        restarts_left=restart_policy.restarts_left(rules.restarts, node.charges, at),
        failure=node.failures[0] if node.failures else None,
        finished=node.finished,
        because=because,
        min_nodes=rules.min_nodes,
        max_nodes=rules.max_nodes,
        deaths=worth_reporting(node.deaths),
        charge_local=rules.charge_local,
        all_exits_reported=node.phase is Phase.JOINING,
    )
    return replace(node, seq=record.seq, record=record, because=because), (Publish(record),)


def republish(node: Node, rules: Rules, now: float) -> Move:
    """Say it again: the store was away, and what it holds of us is unknown."""
    if node.record is None:
        return node, ()
    if node.record.state is NodeState.WAITING and not node.place_ready:
        # The place it told of was used by a round that we missed; what we say comes with the next.
        return replace(node, because="the store answers again"), ()
    said, effects = publish(node, rules, now, node.record.state, node.record.because)
    return replace(said, because="the store answers again"), effects


def tolerate_store_outage(node: Node, rules: Rules, now: float, reason: str) -> Move:
    """The store went away: do without it for `store_grace`."""
    until = now + rules.store_grace_s
    doing = "workers go on" if node.phase is Phase.WORKING else "waiting for it"
    because = f"the store does not answer ({reason}); {doing} for up to {rules.store_grace_s:g} s"
    return replace(node, store_lost_until=until, store_lost_why=reason, because=because), (WakeAt(until),)


def stood_still(until: float, now: float) -> bool:
    """Whether we ourselves come so late that what was to happen by then may have, with nobody to see it."""
    return now >= until + LATE_S


def look_again(node: Node, now: float) -> Move:
    """Give the store a little longer: it may have answered all the while."""
    until = now + SECOND_LOOK_S
    because = f"this agent stood still itself; the store has another {SECOND_LOOK_S:g} s to answer"
    return replace(node, store_lost_until=until, because=because), (WakeAt(until),)


def rejoin(node: Node, rules: Rules, now: float, because: str) -> Move:
    """Workers are gone; prepare a place and ask for the next round, after the pause if this is a crash loop.

    Until then it stands that a worker failed, so the coordinator begins no round without us and nobody's join timeout
    runs; but that all is told, so that whose fault it was can be settled."""
    node = replace(
        node,
        phase=Phase.JOINING,
        ladder=None,
        running=frozenset(),
        place_ready=False,
        spare_until=None,
        because=because,
    )
    if node.paused_until is None or now >= node.paused_until:
        return replace(node, paused_until=None), (PreparePlace(),)
    left_until = node.paused_until
    left_s = left_until - now
    because = f"{because}; pausing {left_s:.1f} s before the next, as workers fail again and again (--restart-backoff)"
    state = node.record.state if node.record is not None else NodeState.BROKEN
    said, effects = publish(node, rules, now, state, because)
    return said, (*effects, WakeAt(left_until))


def resume(node: Node, because: str) -> Move:
    """The pause is over; as if the workers were gone only now."""
    return replace(node, paused_until=None, because=because), (PreparePlace(),)


def offer(node: Node, rules: Rules, now: float, because: str) -> Move:
    """Ask for a place in the next round."""
    return publish(replace(node, place_ready=True), rules, now, NodeState.WAITING, because)


def start(node: Node, rules: Rules, now: float, running: Round, member: Member) -> Move:
    """Take our place in a round."""
    excuse = _excuse(node, rules, running)
    node = replace(
        node,
        phase=Phase.WORKING,
        round=running.number,
        running=frozenset(range(member.nproc)),
        failures=(),
        failed_at=None,
        preempted_until=None,
        deaths=(),
        spare_until=None,
        place_ready=False,
    )
    size = f"{count(len(running.members), 'node')}, group rank {member.group_rank}"
    because = f"round {running.number} begins with {size}: {running.because}{excuse}"
    node, effects = publish(node, rules, now, NodeState.WORKING, because)
    return node, (StartWorkers(running, member, node.restarts_used), *effects)


def _excuse(node: Node, rules: Rules, running: Round) -> str:
    """Why a failure of our own workers in the last round costs us nothing, which only the coordinator could tell."""
    ended = running.ended
    if not node.failures or ended is None or ended.round != node.round or costs_us(node, rules, ended):
        return ""
    return f"; round {ended.round} costs this node no restart: {ended.because}"


def fail(node: Node, rules: Rules, now: float, failure: WorkerFailure) -> Node:
    """A worker of ours failed, the first of this round; how soon workers may start again is decided here, and whether
    any start here again where the machine was at fault."""
    if charges(failure):
        pause_s = restart_policy.pause_s(rules.restarts, node.charges, now, rules.jitter)
    else:
        pause_s = restart_policy.loss_pause_s(rules.restarts, node.losses, now, rules.jitter)
        node = lose(node, rules, now, failure.message, pause_s)
    until = now + pause_s if pause_s else None
    failures, deaths = (*node.failures, failure), (*node.deaths, failure)
    node = replace(node, failures=failures, deaths=deaths, failed_at=now, paused_until=until)
    if restart_policy.may_be_preemption(rules.restarts, node.charges, now, failure.exit_code, failure.stopped_by):
        return replace(node, preempted_until=now + restart_policy.PREEMPTION_S)
    return node


def lose(node: Node, rules: Rules, now: float, reason: str, pause_s: float = 0.0) -> Node:
    """This machine failed, not what runs on it. That costs no restart; but where it happens again and again, the node
    leaves, as one machine must not restart a job for ever."""
    if node.verdict is None and restart_policy.is_sick(node.losses, now):
        node = replace(node, verdict=verdicts.of_sick(reason))
    return replace(node, losses=node.losses.add(restart_policy.Charge(now, pause_s), rules.restarts))


def settle_charge(node: Node, rules: Rules, now: float, seen: Round) -> Node:
    """Charge ourselves one restart if the end of our last round was our workers' fault.

    Asked at every word of the coordinator, because the next round may come and go while we miss its beginning.
    """
    ended = seen.ended
    if ended is None or ended.round != node.round or seen.number <= ended.round or node.settled >= ended.round:
        return node
    node = replace(node, settled=ended.round)
    if not costs_us(node, rules, ended):
        return node
    at = now if node.failed_at is None else node.failed_at
    charge = restart_policy.Charge(at, restart_policy.pause_s(rules.restarts, node.charges, at, rules.jitter))
    return replace(node, charges=node.charges.add(charge, rules.restarts))


def costs_us(node: Node, rules: Rules, ended: Ending) -> bool:
    """Whether that end of our last round is charged to this node."""
    return ended.charged == rules.node or (rules.charge_local and charges(next(iter(node.failures), None)))


def stop(
    node: Node,
    rules: Rules,
    now: float,
    state: NodeState,
    because: str,
    *,
    signum: int = SIGTERM,
    verdict: Verdict | None = None,
    hold: bool = False,
) -> Move:
    """Say why, and stop the workers; then come back, or end where there is a verdict. `hold`: let those that still run
    end by themselves for a moment first."""
    hold = hold and bool(node.running)
    rungs = (stop_ladder.hold if hold else stop_ladder.ask)(now, rules.grace_s)
    node = replace(node, phase=Phase.STOPPING, ladder=rungs, verdict=verdict)
    node, effects = publish(node, rules, now, state, because)
    orders: tuple[Effect, ...] = () if hold else (SignalWorkers(signum),)
    return node, (*effects, *orders, WakeAt(rungs.until))


def stop_leftovers(node: Node, rules: Rules, now: float, because: str) -> Move:
    """All workers exited 0: what they left behind ends too, before we call this finished."""
    rungs = stop_ladder.linger(now, rules.grace_s)
    node = replace(node, phase=Phase.STOPPING, ladder=rungs, finished=True, because=because)
    return node, (WakeAt(rungs.until),)


def climb(node: Node, now: float) -> Move:
    """Go up the stop ladder as far as time has."""
    if node.ladder is None:
        return node, ()
    if node.ladder.rung is stop_ladder.Rung.KILLED and stood_still(node.ladder.until, now):
        # The news that they are gone may lie unread.
        until = now + SECOND_LOOK_S
        because = f"this agent stood still itself; killed workers have another {SECOND_LOOK_S:g} s to be gone"
        return replace(node, ladder=replace(node.ladder, until=until), because=because), (WakeAt(until),)
    rungs = node.ladder.climb(now)
    if rungs is node.ladder:
        return node, (WakeAt(rungs.until),)
    node = replace(node, ladder=rungs)
    if rungs.rung is stop_ladder.Rung.ASKED:
        return node, (SignalWorkers(SIGTERM), WakeAt(rungs.until))
    if rungs.rung is stop_ladder.Rung.KILLED:
        return replace(node, because="workers did not stop in time and are killed"), (
            KillWorkers(),
            WakeAt(rungs.until),
        )
    return node, ()


def hurry(node: Node, now: float, because: str) -> Move:
    """Somebody asked again: kill now what was given time."""
    if node.ladder is None:
        return node, ()
    node, effects = climb(replace(node, ladder=node.ladder.hurry(now)), now)
    return replace(node, because=because), effects


def finish(node: Node, rules: Rules, now: float) -> Move:
    """Into the finalisation barrier."""
    node = replace(node, phase=Phase.FINISHED, ladder=None, finished=True)
    return publish(node, rules, now, NodeState.FINISHED, "all workers of this node exited 0")


def end(node: Node, rules: Rules, now: float, verdict: Verdict) -> Move:
    """Say our last word; conclude when it is written, and on the host when nobody needs the store any more."""
    connected = node.phase is not Phase.CONNECTING
    node = replace(node, phase=Phase.ENDING, verdict=verdict, ladder=None, conclude_at=now + LAST_WORD_S)
    if not connected:
        return conclude(node)
    node, effects = publish(node, rules, now, NodeState.ENDED, verdict.because)
    return node, (*effects, WakeAt(now + LAST_WORD_S))


def conclude(node: Node) -> Move:
    """Done."""
    if node.verdict is None:
        raise ValueError("an agent cannot conclude without a verdict")
    return replace(node, phase=Phase.ENDED, because=node.verdict.because), (Conclude(node.verdict),)
