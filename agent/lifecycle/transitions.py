"""The agent's transitions: each returns the new state and its effects. Pure; the `on_` modules choose."""

from __future__ import annotations

from ...proto.frozen import replace
from ...rendezvous.agreements import Act
from ...rendezvous.failures import Ending, EndKind, Sign, WorkerFailure, charges, worth_reporting
from ...rendezvous.records import Member, NodeRecord, NodeState, Round, RoundPhase
from ...rendezvous.text import count, shorten
from .. import exit_status
from . import restart_policy, stop_ladder, verdicts
from .events import (
    Conclude,
    Effect,
    KeepLeftovers,
    KillWorkers,
    NameLeftovers,
    OpenStore,
    PreparePlace,
    Publish,
    SignalWorkers,
    StartWorkers,
    WakeAt,
)
from .state import Node, Phase, RoundTally, Rules, Verdict

SIGTERM = 15
"""As a number, because what decides imports nothing that acts."""

LAST_RECORD_S = 3.0
"""How long the last record may take to be acknowledged before the agent ends anyway; its lease then runs out."""

LATE_S = 0.2
"""A wake-up that comes later than this shows that this agent was paused, and nothing about the store."""

AFTER_PAUSE_S = 5.0
"""What the store gets to answer, or killed workers to exit, once this agent runs again: one call's deadline."""

LAST_ENDING_CHARS = 400
"""How much of the last ending the sentence of the next round repeats."""

SILENCE_S = 5.0
"""After so long without an announcement that is due, a node says for whom it waits."""

Move = tuple[Node, tuple[Effect, ...]]


def publish(node: Node, rules: Rules, now: float, state: NodeState, because: str) -> Move:
    """Publish this node's record. It carries the first failure of the round, so that no later record can hide it."""
    at = now if node.tally.failed_at is None else node.tally.failed_at
    record = NodeRecord(
        node=rules.node,
        name=rules.name,
        state=state,
        seq=node.seq + 1,
        round=node.round,
        nproc=node.place.nproc,
        role=rules.role,
        addr=node.place.addr,
        port=node.place.port,
        preferred_rank=rules.preferred_rank,
        restarts_left=restart_policy.restarts_left(rules.restarts, node.budget.charges, at),
        failure=node.tally.failures[0] if node.tally.failures else None,
        finished=node.finished,
        because=because,
        min_nodes=rules.min_nodes,
        max_nodes=rules.max_nodes,
        deaths=worth_reporting(node.tally.deaths),
        charge_local=rules.charge_local,
        all_exits_reported=node.phase is Phase.JOINING,
        grace_s=rules.grace_s,
        requests=node.requests,
        answer=node.answer,
        control=control_address(rules.control, node.place.addr),
        fenced_round=_fenced_round(node, rules, state),
    )
    return replace(node, record=record, because=because), (Publish(record),)


def _fenced_round(node: Node, rules: Rules, state: NodeState) -> int:
    """The newest round of which this node lets no worker run on: one that ends for what it publishes here, or that it
    has seen to be over."""
    if not rules.fences:
        return 0
    ended = node.round if state not in (NodeState.WORKING, NodeState.FINISHED) else node.round - 1
    seen = node.latest_round
    if seen is not None:
        ended = max(ended, seen.number if seen.phase is RoundPhase.OVER else seen.number - 1)
    return max(ended, 0)


def control_address(control: str, addr: str) -> str:
    """Where other hosts reach the control service: `:PORT`, of a wildcard address, stands for this node's own."""
    if not control.startswith(":"):
        return control
    return f"[{addr}]{control}" if ":" in addr else f"{addr}{control}"


def republish(node: Node, rules: Rules, now: float) -> Move:
    """Publish the last record again: the store did not answer, and what it holds of this node is unknown."""
    if node.record is None:
        return node, ()
    if node.record.state is NodeState.WAITING and not node.place.ready:
        # A round that this node missed used the place in it; the next place is published when it is prepared.
        return replace(node, because="the store answers again"), ()
    published, effects = publish(node, rules, now, node.record.state, node.record.because)
    return replace(published, because="the store answers again"), effects


def tolerate_store_outage(node: Node, rules: Rules, now: float, reason: str) -> Move:
    """The store does not answer: go on without it for `store_grace`."""
    until = now + rules.store_grace_s
    doing = "workers go on" if node.phase is Phase.WORKING else "waiting for it"
    where = f" at {rules.endpoint}" if rules.endpoint else ""
    because = f"the store{where} does not answer ({reason}); {doing} for up to {rules.store_grace_s:g} s"
    outage = replace(node.outage, until=until, why=reason)
    return replace(node, outage=outage, because=because), (WakeAt(until),)


def was_paused(until: float, now: float) -> bool:
    """Whether this wake-up is late: the awaited event may be queued, unread."""
    return now >= until + LATE_S


def extend_outage(node: Node, now: float) -> Move:
    """Allow the store a little longer: it may have answered while this agent was paused."""
    until = now + AFTER_PAUSE_S
    because = f"this agent was paused (frozen or starved); allowing the store {AFTER_PAUSE_S:g} s more to answer"
    return replace(node, outage=replace(node.outage, until=until), because=because), (WakeAt(until),)


def rejoin(node: Node, rules: Rules, now: float, because: str) -> Move:
    """Workers are gone; prepare a place and ask for the next round, after the pause if this is a crash loop.

    During the pause the record still says that a worker failed, so the coordinator begins no round without this node
    and no join timeout runs; it also says that all exits are reported, so that the cause can be settled."""
    if node.leaving is not None:
        return end(node, rules, now, node.leaving)
    node = replace(
        node,
        phase=Phase.JOINING,
        ladder=None,
        tally=replace(node.tally, running=frozenset()),
        place=replace(node.place, ready=False),
        spare_until=None,
        because=because,
    )
    if node.paused_until is None or now >= node.paused_until:
        return replace(node, paused_until=None), (PreparePlace(),)
    left_until = node.paused_until
    left_s = left_until - now
    because = f"{because}; pausing {left_s:.1f} s before the next round, as workers keep failing (--restart-backoff)"
    state = node.record.state if node.record is not None else NodeState.BROKEN
    published, effects = publish(node, rules, now, state, because)
    return published, (*effects, WakeAt(left_until))


def resume(node: Node, because: str) -> Move:
    """End the pause: prepare a place and ask for the next round."""
    return replace(node, paused_until=None, because=because), (PreparePlace(),)


def offer(node: Node, rules: Rules, now: float, because: str) -> Move:
    """Ask for a place in the next round."""
    return publish(replace(node, place=replace(node.place, ready=True)), rules, now, NodeState.WAITING, because)


def await_answer(node: Node, now: float) -> Move:
    """An announcement is due: say so if none comes."""
    return replace(node, unanswered_since=now), (WakeAt(now + SILENCE_S),)


def start(node: Node, rules: Rules, now: float, running: Round, member: Member) -> Move:
    """Take this node's place in a round."""
    last = _last_ending(node, rules, running)
    node = replace(
        node,
        phase=Phase.WORKING,
        tally=RoundTally(running.number, running=frozenset(range(member.nproc))),
        agreement=None,
        answer=None,
        spare_until=None,
        place=replace(node.place, ready=False),
    )
    size = f"{count(running.nodes, 'node')}, group rank {member.group_rank}"
    because = f"round {running.number} begins with {size}: {running.because}{last}"
    node, effects = publish(node, rules, now, NodeState.WORKING, because)
    return node, (StartWorkers(running, member, node.restarts_used), *effects)


def _last_ending(node: Node, rules: Rules, running: Round) -> str:
    """How this node's last round ended, where only the coordinator could know: a node was lost, or a failure of this
    node's own workers was an echo and costs it nothing."""
    ended = running.ended
    if ended is None or ended.round != node.round or costs_us(node, rules, ended):
        return ""
    if node.tally.failures:
        return f"; round {ended.round} costs this node no restart: {shorten(ended.because, LAST_ENDING_CHARS)}"
    return f"; {shorten(ended.because, LAST_ENDING_CHARS)}" if ended.kind is EndKind.DEPARTURE else ""


def fail(node: Node, rules: Rules, now: float, failure: WorkerFailure) -> Node:
    """A worker of this node failed, the first of this round. Decides how soon workers may start again, and, where the
    host was at fault, whether any start here again."""
    if charges(failure):
        pause_s = restart_policy.pause_s(rules.restarts, node.budget.charges, now, rules.jitter)
    elif failure.sign is Sign.CUT_OFF:
        pause_s = 0.0  # as a node that is lost comes back as often as it can
    else:
        pause_s = restart_policy.host_pause_s(rules.restarts, node.budget.host_failures, now, rules.jitter)
        node = count_host_failure(node, rules, now, failure.message, pause_s)
    until = now + pause_s if pause_s else None
    failures, deaths = (*node.tally.failures, failure), (*node.tally.deaths, failure)
    tally = replace(node.tally, failures=failures, deaths=deaths, failed_at=now)
    if restart_policy.may_be_preemption(
        rules.restarts, node.budget.charges, now, failure.exit_code, failure.stopped_by
    ):
        tally = replace(tally, preempted_until=now + restart_policy.PREEMPTION_S)
    return replace(node, tally=tally, paused_until=until)


def count_host_failure(node: Node, rules: Rules, now: float, reason: str, pause_s: float = 0.0) -> Node:
    """This host failed, not the script. That costs no restart; but a host that keeps failing leaves the job, as it
    must not restart a job for ever."""
    if node.verdict is None and restart_policy.host_keeps_failing(node.budget.host_failures, now):
        node = replace(node, verdict=verdicts.of_failing_host(reason))
    failures = node.budget.host_failures.add(restart_policy.Charge(now, pause_s), rules.restarts)
    return replace(node, budget=replace(node.budget, host_failures=failures))


def settle_charge(node: Node, rules: Rules, now: float, seen: Round) -> Node:
    """Charge this node one restart if its workers caused the end of its last round.

    Looked at with every announcement, because the next round may begin and end without this node receiving it.
    """
    ended = seen.ended
    if (
        ended is None
        or ended.round != node.round
        or seen.number <= ended.round
        or node.budget.settled_round >= ended.round
    ):
        return node
    node = replace(node, budget=replace(node.budget, settled_round=ended.round))
    if not costs_us(node, rules, ended):
        return node
    at = now if node.tally.failed_at is None else node.tally.failed_at
    if restart_policy.restarts_left(rules.restarts, node.budget.charges, at) == 0:
        # The coordinator closes the job for that, unless this node was cut off and counted as lost.
        node = replace(node, verdict=node.verdict or verdicts.of_spent(rules, ended))
    charge = restart_policy.Charge(at, restart_policy.pause_s(rules.restarts, node.budget.charges, at, rules.jitter))
    return replace(node, budget=replace(node.budget, charges=node.budget.charges.add(charge, rules.restarts)))


def costs_us(node: Node, rules: Rules, ended: Ending) -> bool:
    """Whether that end of this node's last round is charged to it."""
    return ended.charged == rules.node or (rules.charge_local and charges(next(iter(node.tally.failures), None)))


def stop(
    node: Node,
    rules: Rules,
    now: float,
    state: NodeState,
    because: str,
    *,
    signum: int = SIGTERM,
    verdict: Verdict | None = None,
    held_s: float = 0.0,
) -> Move:
    """Stop the workers, and publish why; then come back, or end where there is a verdict. `held_s`: how long workers
    that still run may first end by themselves."""
    if verdict is None and node.leaving is not None:
        verdict = _preempted(node, node.leaving) if _has_settled(node) else node.leaving
        state, because = NodeState.LEAVING, verdict.because
    hold = held_s > 0 and bool(node.tally.running)
    rungs = stop_ladder.hold(now, rules.grace_s, held_s) if hold else stop_ladder.ask(now, rules.grace_s)
    node = replace(node, phase=Phase.STOPPING, ladder=rungs, verdict=verdict)
    node, effects = publish(node, rules, now, state, because)
    orders: tuple[Effect, ...] = () if hold else (SignalWorkers(signum),)
    return node, (*effects, *orders, WakeAt(rungs.until))


def _has_settled(node: Node) -> bool:
    """Whether this node's workers have saved at the boundary that all settle at."""
    agreement, answer = node.agreement, node.answer
    return (
        agreement is not None
        and agreement.act is Act.SETTLE
        and agreement.at > 0
        and answer is not None
        and (answer.agreement, answer.done) == (agreement.number, True)
    )


def _preempted(node: Node, leaving: Verdict) -> Verdict:
    """What was asked for by a signal and lost nothing is a preemption: the same command goes on where it was."""
    return Verdict(exit_status.PREEMPTED, f"{leaving.because}; its workers saved before")


def stop_leftovers(node: Node, rules: Rules, now: float, because: str) -> Move:
    """All workers exited 0: wait for what they left running, before this node counts as finished."""
    rungs = stop_ladder.linger(now, rules.grace_s, rules.leftovers, rules.leftover_s)
    node = replace(node, phase=Phase.STOPPING, ladder=rungs, finished=True, because=because)
    if node.leaving is not None and rules.leftovers is not stop_ladder.Leftovers.KEEP:
        return ask_leftovers(node, (), now)
    return node, (WakeAt(rungs.until),)


def ask_leftovers(node: Node, effects: tuple[Effect, ...], now: float, signum: int = SIGTERM) -> Move:
    """A request to stop, or to leave, ends the time in which processes may end by themselves."""
    if node.phase is not Phase.STOPPING or node.ladder is None or node.ladder.rung not in stop_ladder.WAITING:
        return node, effects
    rungs = node.ladder.ask_now(now)
    return replace(node, ladder=rungs), (*effects, SignalWorkers(signum), WakeAt(rungs.until))


def climb(node: Node, now: float) -> Move:
    """Go up the stop ladder as far as its deadlines have passed."""
    if node.ladder is None:
        return node, ()
    killed = node.ladder.rung in (stop_ladder.Rung.KILLED, stop_ladder.Rung.LAST_LOOK)
    if killed and was_paused(node.ladder.until, now):
        until = now + AFTER_PAUSE_S
        because = f"this agent was paused (frozen or starved); allowing killed workers {AFTER_PAUSE_S:g} s more to exit"
        ladder = replace(node.ladder, rung=stop_ladder.Rung.LAST_LOOK, until=until)
        return replace(node, ladder=ladder, because=because), (WakeAt(until),)
    rungs = node.ladder.climb(now)
    wake = (WakeAt(rungs.until),) if rungs.until < stop_ladder.FOREVER else ()
    if rungs is node.ladder:
        return node, wake
    node = replace(node, ladder=rungs)
    if rungs.rung is stop_ladder.Rung.NAMED:
        return node, (NameLeftovers(), *wake)
    if rungs.rung is stop_ladder.Rung.KEPT:
        return node, (KeepLeftovers(),)
    if rungs.rung is stop_ladder.Rung.ASKED and rungs.named:
        return replace(node, because=f"stopping {rungs.named}"), (SignalWorkers(SIGTERM), *wake)
    if rungs.rung is stop_ladder.Rung.ASKED:
        name = (NameLeftovers(),) if rungs.leftovers else ()
        return node, (*name, SignalWorkers(SIGTERM), *wake)
    if rungs.rung is stop_ladder.Rung.KILLED:
        return replace(node, because=f"workers did not stop within {rungs.grace_s:g} s; killing them"), (
            KillWorkers(),
            *wake,
        )
    return node, wake


def hurry(node: Node, now: float, because: str) -> Move:
    """A second request to stop: kill workers now that still have time."""
    if node.ladder is None:
        return node, ()
    node, effects = climb(replace(node, ladder=node.ladder.hurry(now)), now)
    return replace(node, because=because), effects


def begin_anew(node: Node, because: str) -> Move:
    """Join the job at another host of the store. No worker of this node is left."""
    fresh = Node(budget=node.budget, requests=node.requests, requested=node.requested)
    return replace(fresh, because=f"{because}; joining it there"), (OpenStore(),)


def finish(node: Node, rules: Rules, now: float) -> Move:
    """Enter the finalisation barrier."""
    node = replace(node, phase=Phase.FINISHED, ladder=None, finished=True)
    return publish(node, rules, now, NodeState.FINISHED, "all workers of this node exited 0")


def end(node: Node, rules: Rules, now: float, verdict: Verdict) -> Move:
    """Publish the last record; conclude when it is written, and on the host when no node needs the store any more."""
    connected = node.phase is not Phase.CONNECTING
    node = replace(node, phase=Phase.ENDING, verdict=verdict, ladder=None, conclude_at=now + LAST_RECORD_S)
    if not connected:
        return conclude(node)
    node, effects = publish(node, rules, now, NodeState.ENDED, verdict.because)
    return node, (*effects, WakeAt(now + LAST_RECORD_S))


def conclude(node: Node) -> Move:
    """End the agent with its verdict. Raises ValueError without one."""
    if node.verdict is None:
        raise ValueError("an agent cannot conclude without a verdict")
    return replace(node, phase=Phase.ENDED, because=node.verdict.because), (Conclude(node.verdict),)
