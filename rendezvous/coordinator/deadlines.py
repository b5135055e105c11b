"""How long the coordinator waits for nodes, and when it looks again."""

from __future__ import annotations

from collections.abc import Collection

from ...proto.frozen import replace
from ..codec.limits import FEW_NODES
from ..failures import EndKind, preempts
from ..records import Round
from .nodes import ALIVE, ENDED, MAY_HAVE_WORKERS, READY, UNAWARE, Seen
from .state import CLOSED, GATHERING, LAST_CALL, OVER, RUNNING, Rendezvous, Rules

PROGRESS_S = (1.01, 3.01, 9.01, 27.01)
"""After how long a wait the coordinator announces for which nodes; then every `LATER_PROGRESS_S`. A restart takes
0.03 s, so most never need it, and a long wait costs few reads. No multiples of the time between readings of heartbeats,
so that two deadlines never fall on one moment."""
LATER_PROGRESS_S = 60.0
RARE_PROGRESS_S = (5.01, 27.01)
"""The same once the job is closed, while members take their places, where most nodes need no more than a moment, and in
a large job: 1,000 nodes that join within two seconds would all read twice what none of them needs."""
LAST_CALL_SAID_S = 0.51
"""After which time a large job's last call is announced: where all nodes come, the round begins in that moment."""
SAME_MOMENT_S = 0.01
"""Times closer than this count as one."""
REPORT_MARGIN_S = 30.0
"""What a node gets beyond its grace, at least, to report what all others wait for. It needs 16 s where all goes wrong:
1 s for a failure that looks like an echo, 10 s after SIGKILL, 5 s for the last lines of output."""


def last_call_ends(state: Rendezvous, rules: Rules) -> float:
    """End of the last call: `quiet_s` after the latest arrival, at most `last_call_timeout_s` in all."""
    latest = max((seen.waiting_since for seen in state.nodes.any_order(READY)), default=state.since)
    quiet_until = latest + rules.quiet_s
    return quiet_until if state.last_call_until is None else min(quiet_until, state.last_call_until)


def arrivals_settled(new: list[Seen], rules: Rules) -> float:
    """When newcomers to a running round may end it: a burst of them ends it once. Workers train meanwhile."""
    latest = max(seen.waiting_since for seen in new)
    first = min(seen.waiting_since for seen in new)
    return min(latest + rules.quiet_s, first + rules.last_call_timeout_s)


def report_margin_s(rules: Rules) -> float:
    """What a node gets beyond its grace to report what all others wait for, in seconds. At least a lease: who gives
    nodes that long to send a heartbeat expects them to be slow, and one that was lost for being slow ends a round."""
    return max(REPORT_MARGIN_S, rules.lease_s)


def awaited(state: Rendezvous) -> Collection[str]:
    """Nodes of which `report_due` may say when they must have reported; it says None of all others."""
    if state.phase is RUNNING:
        return state.nodes.those(UNAWARE)
    return state.nodes.keys() if state.phase is CLOSED else state.nodes.those(MAY_HAVE_WORKERS)


def report_due(state: Rendezvous, seen: Seen, rules: Rules) -> float | None:
    """When this node must have reported what all others wait for: that it has taken its place, that its workers are
    gone, or, once the job is closed, that it has ended. None while nothing is awaited from it."""
    if state.phase is RUNNING:
        awaited = seen.unaware
    elif state.phase is CLOSED:
        awaited = seen.record.state is not ENDED
    else:
        awaited = seen.may_have_workers and not seen.pauses
    if not awaited:
        return None
    ending, failure = state.end.ending, seen.record.failure
    preempted = ending is not None and ending.kind is EndKind.PREEMPTION and state.phase is OVER
    # Where a worker asked for the end, the others first get as long to end by themselves.
    held_s = seen.record.grace_s if preempted or (failure is not None and preempts(failure)) else 0.0
    return max(state.since, seen.since) + held_s + seen.record.grace_s + report_margin_s(rules)


def verdict_at(state: Rendezvous, rules: Rules) -> float | None:
    """When the job ends because of nodes that have not joined, or not finished, by then."""
    if state.phase is CLOSED:
        return None
    if state.phase is not GATHERING:
        return state.barrier_until
    join = state.since + rules.join_timeout_s
    return join if state.barrier_until is None else min(join, state.barrier_until)


def deadline(state: Rendezvous, rules: Rules) -> float | None:
    """The next moment at which time alone changes something, apart from leases and progress."""
    if state.phase is LAST_CALL:
        return last_call_ends(state, rules)
    if (verdict := verdict_at(state, rules)) is not None:
        return verdict
    if state.phase is RUNNING and rules.max_nodes > len(state.members):
        new = state.newcomers()
        return arrivals_settled(new, rules) if new else None
    return None


def progress_at(state: Rendezvous, rules: Rules) -> float | None:
    """When the coordinator next says for which nodes all wait, or, once the job is closed, for which it waits itself;
    None while nobody waits, or while the store has not taken the last announcement yet: a sentence must not delay a
    decision."""
    starting = state.phase is RUNNING and not state.finishing
    if starting and not any(seen.placed == state.number for seen in state.nodes.any_order(UNAWARE)):
        return None
    if state.phase is CLOSED and not any(node != rules.own for node in state.nodes.those(ALIVE)):
        return None
    if not _keeps_up(state):
        return None
    if (called_at := _unsaid_last_call(state, rules)) is not None:
        return called_at + LAST_CALL_SAID_S
    began = state.since
    if state.phase is RUNNING and state.barrier_until is not None:
        began = max(began, state.barrier_until - rules.exit_barrier_s)
    waited_s = state.announced_at - began + SAME_MOMENT_S
    for after_s in RARE_PROGRESS_S if starting or _is_large(state, rules) or state.phase is CLOSED else PROGRESS_S:
        if after_s > waited_s:
            return began + after_s
    more = int((waited_s - PROGRESS_S[-1]) / LATER_PROGRESS_S) + 1
    return began + PROGRESS_S[-1] + more * LATER_PROGRESS_S


def _is_large(state: Rendezvous, rules: Rules) -> bool:
    return max(rules.min_nodes, len(state.nodes)) > FEW_NODES


def may_wait(state: Rendezvous, rules: Rules, view: Round) -> bool:
    """Whether an announcement of this view may wait: nothing in it is new, or only that a large job's last call has
    begun."""
    newest = state.announced
    if newest is None or view == newest:
        return newest is not None
    return _unsaid_last_call(state, rules) is not None and replace(view, phase=newest.phase) == newest


def _unsaid_last_call(state: Rendezvous, rules: Rules) -> float | None:
    """When the last call of a large job began that is not announced yet; None: there is none."""
    if state.phase is not LAST_CALL or state.last_call_until is None or not _is_large(state, rules):
        return None
    unsaid = state.announced is not None and state.announced.phase is GATHERING
    return state.last_call_until - rules.last_call_timeout_s if unsaid else None


def _keeps_up(state: Rendezvous) -> bool:
    """Whether a reading requested after the newest announcement is answered: both go to the store in that order.
    Where no other node is there to read, none can be delayed."""
    readings = state.readings
    if readings.asked_at is None:
        return True
    return readings.confirmed_until is not None and readings.confirmed_until >= state.announced_at
