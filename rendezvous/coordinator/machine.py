"""The coordinator: which nodes are in which round. A pure machine.

    step(state, event, now, rules) -> Step(state, because, effects)

An event first changes what is known (`observations.py`); then the judge of the phase decides what follows, again and
again until nothing changes. `TRANSITIONS` names the observation for each (phase, event); `EDGES` lists every change of
phase with its occasion, and docs/state-machines.md is drawn from it. Time is this host's monotonic clock, in seconds,
and an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...proto.frozen import dataclass, replace
from ..agreements import HOLDS, Act, Agreement
from ..failures import Ending, EndKind, looks_like_an_echo, preempts
from ..records import Outcome, RoundPhase
from ..text import count
from . import agreements, charging, deadlines, explain, fencing, leases, ranks, standing
from .events import Announce, Effect, Elected, Event, HandOver, MoveFence, ReadBeats, Retire, Tell, WakeAt
from .nodes import ALIVE, ENDED, HAS_FINISHED, LEAVING, MAY_END, MAY_HAVE_WORKERS, READY, STOPPING, WAITING
from .observations import OBSERVATIONS, Observe
from .state import CLOSED, GATHERING, LAST_CALL, OVER, RUNNING, Placement, Rendezvous, RoundEnd, Rules, places_of

EDGES: Mapping[tuple[RoundPhase, RoundPhase], str] = {
    (GATHERING, LAST_CALL): "min_nodes are here, first round",
    (GATHERING, RUNNING): "max_nodes are here, or min_nodes after an earlier round",
    (GATHERING, CLOSED): "join timeout, the finalisation barrier ran out, the kill switch, or too few nodes are left",
    (LAST_CALL, GATHERING): "fewer than min_nodes again",
    (LAST_CALL, RUNNING): "max_nodes are here, or no more nodes came",
    (LAST_CALL, CLOSED): "the finalisation barrier ran out, the kill switch, or every node left",
    (RUNNING, OVER): "a worker failed, a member left, nodes arrived, or a restart was asked for",
    (RUNNING, CLOSED): "all finished, the finalisation barrier ran out, or the kill switch",
    (OVER, GATHERING): "all members answered; their workers are gone",
    (
        OVER,
        CLOSED,
    ): "the failure cannot be restarted, a worker asked for the end, the finalisation barrier ran out, the kill "
    "switch, or too few nodes are left",
}

_ENDS: Mapping[Act, Outcome] = {Act.KILL: Outcome.KILLED, Act.PREEMPT: Outcome.PREEMPTED}
"""How a job ends whose workers leave their loops by an agreement."""

WAITS = ""
"""Why a state is as it is that waits for nodes. `explain.waiting`, which looks at all of them, makes a sentence of it
once it is to be announced, and not at each event."""

MAX_MOVES = 8
"""Changes of phase that one event can cause. The longest chain is OVER, GATHERING, RUNNING, CLOSED; more is our bug."""


class IllegalEvent(RuntimeError):
    """An event unknown in this phase, or a change of phase that EDGES does not list. Our bug; nothing changed."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one event led to."""

    state: Rendezvous
    because: str
    effects: tuple[Effect, ...]


def step(state: Rendezvous, event: Event, now: float, rules: Rules) -> Step:
    """Apply one event. Raises IllegalEvent, leaving the caller's state as it was."""
    observe = TRANSITIONS.get((state.phase, type(event)))
    if observe is None:
        raise IllegalEvent(f"the coordinator got {event!r} while {state.phase.value}")
    known = observe(state, event, now, rules) if state.leading or isinstance(event, Elected) else state
    if not known.leading:
        return Step(known, known.because, ())
    decided = _decide(known, now, rules)
    announced, effects = _announce(decided, now, rules)
    watching, more = _watch(announced, now, rules)
    return Step(watching, watching.because, (*effects, *more))


def _decide(state: Rendezvous, now: float, rules: Rules) -> Rendezvous:
    state = standing.reviewed(state, now)
    for _ in range(MAX_MOVES):
        decided = _killed(state, now) or _JUDGES[state.phase](state, now, rules)
        if decided.phase is state.phase:
            return decided
        if (state.phase, decided.phase) not in EDGES:
            raise IllegalEvent(f"the coordinator went from {state.phase.value} to {decided.phase.value}")
        if not standing.allows(state, decided.phase):
            return replace(state, because=explain.doubt(state, now))
        state = decided
    raise IllegalEvent(f"the coordinator did not come to rest within {MAX_MOVES} moves: {state.because}")


def _announce(state: Rendezvous, now: float, rules: Rules) -> tuple[Rendezvous, tuple[Effect, ...]]:
    """Announce what changed; where all nodes wait, now and then also for whom and how long yet. Where only this one
    waits, as the job is over, tell people here."""
    newest, because = state.announced, state.because
    elects = rules.fences and not rules.hosted
    own, host = rules.own if elects else "", fencing.host(state, rules)
    if newest is not None and deadlines.may_wait(state, rules, state.view(state.version, newest.because, own, host)):
        progress_at = deadlines.progress_at(state, rules)
        if progress_at is None or now < progress_at:
            # A new sentence alone is not worth a read by every node.
            return state if because else replace(state, because=newest.because), ()
        # While gathering it is the reason already.
        because = state.because if state.phase is GATHERING else WAITS
        because = because or explain.waiting(state, now, rules)
        if state.phase is CLOSED:  # no node reads what is announced after the last announcement
            return replace(state, announced_at=now), (Tell(because),)
    because = because or explain.waiting(state, now, rules)
    view = state.view(state.version + 1, because, own, host)
    state = replace(state, because=state.because or because, version=view.version, announced=view, announced_at=now)
    return state, (Announce(view),)


def _watch(state: Rendezvous, now: float, rules: Rules) -> tuple[Rendezvous, tuple[Effect, ...]]:
    """Ask for the next reading of heartbeats and the next wake-up."""
    effects: list[Effect] = []
    verdict_at = deadlines.verdict_at(state, rules)
    doubtful = verdict_at is not None and now >= verdict_at and not leases.deadline_confirmed(state, verdict_at, now)
    doubtful = doubtful or fencing.needs_reading(state, rules)
    reading_at = None if state.readings.pending else now if doubtful else leases.next_reading(state, rules)
    if reading_at is not None and reading_at <= now:
        effects.append(ReadBeats(tuple(leases.watched(state, rules))))
        state = replace(state, readings=replace(state.readings, pending=True, asked_at=now))
        reading_at = None
    progress_at = deadlines.progress_at(state, rules)
    deadline, agreed_by = deadlines.deadline(state, rules), agreements.deadline(state, rules)
    known_ends = (*charging.evidence_until(state), *fencing.deadlines(state, rules))
    hands_over_at = fencing.hands_over_at(state, rules)
    waits = (reading_at, progress_at, deadline, agreed_by, hands_over_at, *known_ends)
    wake_ups = [when for when in waits if when is not None and when > now]
    if wake_ups:
        effects.append(WakeAt(min(wake_ups)))
    if state.phase is CLOSED and _deserted(state, rules):
        effects.append(Retire())
    if (until := fencing.host_until(state, rules)) != state.fence_until:
        effects.append(MoveFence(until))
        state = replace(state, fence_until=until)
    if hands_over_at is not None and now >= hands_over_at:
        effects.append(HandOver(state.version))
    return state, tuple(effects)


TRANSITIONS: Mapping[tuple[RoundPhase, type[Event]], Observe] = {
    (phase, event): observe for phase in RoundPhase for event, observe in OBSERVATIONS.items()
}


# -- what follows ---------------------------------------------------------------------------------------------------


def _judge_gathering(state: Rendezvous, now: float, rules: Rules) -> Rendezvous:
    here = state.how_many(READY)
    if _deserted(state, rules):
        return _close(state, now, Outcome.ABANDONED, "every node has left")
    if _used_up(state, rules):
        return _close(state, now, Outcome.ABANDONED, explain.too_few_remain(state, rules))
    if state.how_many(MAY_HAVE_WORKERS):
        return _await_workers(replace(state, because=WAITS), now, rules)
    may_begin = not fencing.silent_majority(state, now, rules)
    if may_begin and (here >= rules.max_nodes or (here >= rules.min_nodes and state.members)):
        return _start(state, now, rules, explain.enough(here, rules))
    if may_begin and here >= rules.min_nodes:
        state = replace(state, phase=LAST_CALL, last_call_until=now + rules.last_call_timeout_s)
        return replace(state, because=explain.waiting(state, now, rules))
    if leases.deadline_confirmed(state, state.barrier_until, now):
        return _close(state, now, Outcome.UNFINISHED, explain.barrier_over(state, rules))
    if leases.deadline_confirmed(state, state.since + rules.join_timeout_s, now):
        return _close(state, now, Outcome.JOIN_TIMED_OUT, explain.who_is_missing(state, rules))
    return replace(state, because=WAITS)


def _judge_last_call(state: Rendezvous, now: float, rules: Rules) -> Rendezvous:
    here = state.how_many(READY)
    if _deserted(state, rules):
        return _close(state, now, Outcome.ABANDONED, "every node has left")
    if here < rules.min_nodes:
        return replace(state, phase=GATHERING, last_call_until=None, because="a node left during last call")
    if state.how_many(MAY_HAVE_WORKERS):
        return _await_workers(state, now, rules)
    full = here >= rules.max_nodes
    if (full or now >= deadlines.last_call_ends(state, rules)) and fencing.silent_majority(state, now, rules):
        return replace(state, phase=GATHERING, last_call_until=None, because=WAITS)
    if full:
        return _start(state, now, rules, explain.enough(here, rules))
    if now >= deadlines.last_call_ends(state, rules):
        return _start(state, now, rules, f"last call ended with {count(here, 'node')}")
    return state


def _await_workers(state: Rendezvous, now: float, rules: Rules) -> Rendezvous:
    """Workers of an earlier round may run on a node that was lost and is back. Finished nodes wait for its report until
    the barrier ends, and no longer."""
    if leases.deadline_confirmed(state, state.barrier_until, now):
        return _close(state, now, Outcome.UNFINISHED, explain.barrier_over(state, rules))
    return state


def _killed(state: Rendezvous, now: float) -> Rendezvous | None:
    """Where no worker runs that could make a checkpoint first, the kill switch closes the job at once."""
    if not state.asking or state.phase in (RUNNING, CLOSED):
        return None
    for act, outcome in _ENDS.items():
        if (request := agreements.pending(state, act)) is not None:
            return _close(state, now, outcome, request.because)
    return None


def _judge_running(state: Rendezvous, now: float, rules: Rules) -> Rendezvous:
    ending = _why_over(state, now, rules)
    if (agreement := agreements.stopping(state)) is not None:
        because = agreements.why_stopped(state, ending, now, rules)
        if because is None:
            return agreements.advance(state, now, rules)
        return _close(state, now, _ENDS[agreement.act], because)
    before = state
    if ending is not None and ending.kind is EndKind.ARRIVAL and rules.settles:
        state = agreements.advance(agreements.settle(state, now, ending.because), now, rules)
        acted = agreements.acted(before, state)
        if acted is None or not (acted.act is Act.SETTLE or (acted.act in HOLDS and acted.at)):
            return replace(state, because=f"{ending.because}; its workers first save what they have done")
    if ending is not None:
        return _end(state, now, ending)
    if all(state.nodes[member.node].finished for member in state.members):
        return _close(state, now, Outcome.SUCCEEDED, f"all nodes of round {state.number} finished")
    state = agreements.advance(state, now, rules)
    if (acted := agreements.acted(before, state)) is not None and (planned := _planned(state, acted)) is not None:
        if planned.kind is not EndKind.PLANNED or not state.too_few_remain(rules):
            return _end(state, now, planned)
        few = explain.too_few_remain(state, rules)
        state = replace(state, because=f"not restarted, as {few}: {acted.because}")
    if leases.deadline_confirmed(state, state.barrier_until, now):
        return _close(state, now, Outcome.UNFINISHED, explain.barrier_over(state, rules))
    return state


def _planned(state: Rendezvous, acted: Agreement) -> Ending | None:
    """How the round ends behind an agreement that is over, if it does."""
    if acted.act is Act.SETTLE and acted.requests:
        names = explain.names([state.nodes[node] for node, _ in acted.requests if node in state.nodes])
        return Ending(state.number, EndKind.DEPARTURE, f"{names} left: {acted.because}")
    if acted.act is Act.RESTART and acted.at > 0:
        return Ending(state.number, EndKind.PLANNED, acted.because)
    return None


def _judge_over(state: Rendezvous, now: float, rules: Rules) -> Rendezvous:
    state = charging.settle(state, now, rules)
    ending = state.end.ending
    if ending is None:
        raise IllegalEvent(f"round {state.number} is over without an ending")
    if _deserted(state, rules):
        return _close(state, now, Outcome.ABANDONED, f"{ending.because}; every node has left")
    if (beyond := charging.beyond_restart(state, now, rules)) is not None:
        return _close(beyond[0], now, Outcome.FAILED, beyond[1])
    if state.end.settled and ending.kind is EndKind.PREEMPTION:
        return _close(state, now, Outcome.PREEMPTED, ending.because)
    if leases.deadline_confirmed(state, state.barrier_until, now):
        return _close(state, now, Outcome.UNFINISHED, explain.barrier_over(state, rules))
    if not state.end.settled:
        return state
    if state.able() == 0:
        return _close(state, now, Outcome.ABANDONED, f"{ending.because}; every node that had not finished has left")
    if _used_up(state, rules):
        return _close(state, now, Outcome.ABANDONED, f"{ending.because}; {explain.too_few_remain(state, rules)}")
    if state.how_many(MAY_HAVE_WORKERS):
        return state
    if not fencing.ended(state, now, rules):
        return replace(state, because=WAITS)
    restarts = state.restarts + (ending.kind is EndKind.FAILURE)
    number = state.number + 1
    return replace(state, phase=GATHERING, number=number, since=now, restarts=restarts, because=ending.because)


def _judge_closed(state: Rendezvous, now: float, rules: Rules) -> Rendezvous:
    return state


_JUDGES: Mapping[RoundPhase, Callable[[Rendezvous, float, Rules], Rendezvous]] = {
    GATHERING: _judge_gathering,
    LAST_CALL: _judge_last_call,
    RUNNING: _judge_running,
    OVER: _judge_over,
    CLOSED: _judge_closed,
}


def _why_over(state: Rendezvous, now: float, rules: Rules) -> Ending | None:
    """The first reason to end the running round: a failure, a departure, or arrivals for whom there is room."""
    number = state.number
    members = state.members_having(MAY_END)
    for member, seen in members:
        record = seen.record
        if record.failure is not None and record.round == number and not seen.gone:
            if preempts(record.failure):
                return charging.preemption(number, record.failure)
            return Ending(number, EndKind.FAILURE, f"worker failed: {record.failure}", member.node, record.failure)
    for member, seen in members:
        record = seen.record
        if seen.finished:
            continue
        if seen.lost:
            return Ending(number, EndKind.DEPARTURE, explain.lost(seen, now, rules))
        if record.state in (LEAVING, ENDED):
            return Ending(number, EndKind.DEPARTURE, f"{member.name} left: {record.because}")
        if record.state in (STOPPING, WAITING) and record.round == number:
            return Ending(number, EndKind.DEPARTURE, f"{member.name} gave up its place: {record.because}")
    return _arrival(state, now, rules)


def _arrival(state: Rendezvous, now: float, rules: Rules) -> Ending | None:
    """Newcomers end the round once, together: when they fill it, or when no more came for `quiet_s`."""
    room = rules.max_nodes - len(state.members)
    if room <= 0 or state.finishing or not (new := state.newcomers()):
        return None
    if len(new) < room and now < deadlines.arrivals_settled(new, rules):
        return None
    return Ending(state.number, EndKind.ARRIVAL, f"{explain.names(new[:room])} arrived and there is room")


def _deserted(state: Rendezvous, rules: Rules) -> bool:
    """Every node that ever joined has ended or is lost. Our own node may not have published a record yet."""
    return rules.own in state.nodes and not state.how_many(ALIVE)


def _used_up(state: Rendezvous, rules: Rules) -> bool:
    """No round can follow, whoever is waited for: with the nodes that finished and wait in the barrier the job has
    fewer places left than a round needs. Where it has enough, replacements may still come."""
    if not state.too_few_remain(rules):
        return False
    done = sum(not seen.dead for seen in state.nodes.any_order(HAS_FINISHED))
    return rules.max_nodes - done < rules.min_nodes


# -- changes of phase
# ----------------------------------------------------------------------------------------------------------


def _start(state: Rendezvous, now: float, rules: Rules, because: str) -> Rendezvous:
    last = state.last_ranks()
    chosen = ranks.choose([seen.record for seen in state.ready()], last, rules.max_nodes)
    try:
        members = ranks.assign(chosen, last, static=rules.static)
    except ranks.RankConflict as conflict:
        known_at = leases.dead_by(state, conflict.claimants, rules)
        if leases.alive_since(state, conflict.claimants, known_at, rules):
            return _close(state, now, Outcome.MISCONFIGURED, str(conflict))
        return replace(state, because=explain.claims(conflict, known_at - now))
    first = state.nodes[members[0].node].record
    placed = (replace(state.nodes[member.node], placed=state.number) for member in members)
    voters, before = fencing.voters(state, members, rules)
    old = state.placement
    previous, previous_at = (old.voters, old.began_at) if old.voters else (old.previous, old.previous_at)
    return replace(
        state,
        phase=RUNNING,
        nodes=state.nodes.with_all(placed),
        placement=Placement(
            members,
            rules.master_addr or first.addr,
            first.port,
            witnesses=fencing.witnesses(state, members, rules),
            voters=voters,
            before=before,
            previous=previous,
            began_at=now,
            previous_at=previous_at,
            places=places_of(members),
        ),
        since=now,
        last_call_until=None,
        because=because,
    )


def _end(state: Rendezvous, now: float, ending: Ending) -> Rendezvous:
    end = RoundEnd(
        ending,
        settled=False,
        unanswered=frozenset(member.node for member in state.members),
        hold=ending.kind is EndKind.PREEMPTION or (ending.failure is not None and looks_like_an_echo(ending.failure)),
    )
    state = agreements.dropped(state)
    return replace(state, phase=OVER, since=now, end=end, because=ending.because)


def _close(state: Rendezvous, now: float, outcome: Outcome, because: str) -> Rendezvous:
    end = replace(state.end, settled=True)
    return replace(state, phase=CLOSED, since=now, outcome=outcome, end=end, because=because)
