"""How long the coordinator waits for nodes, and when it looks again."""

from __future__ import annotations

from ..records import RoundPhase
from .state import Rendezvous, Rules, Seen

FIRST_PROGRESS_S = 1.0
"""How long nodes wait before the coordinator announces for whom. A restart takes 0.03 s, so most never need it."""
SLOWEST_PROGRESS_S = 60.0
"""The longest time between two such announcements; it trebles up to here, so that a long wait costs few reads."""


def last_call_ends(state: Rendezvous, rules: Rules) -> float:
    """End of the last call: `quiet_s` after the latest arrival, at most `last_call_timeout_s` in all."""
    latest = max((seen.waiting_since for seen in state.candidates()), default=state.since)
    quiet_until = latest + rules.quiet_s
    return quiet_until if state.last_call_until is None else min(quiet_until, state.last_call_until)


def arrivals_settled(new: list[Seen], rules: Rules) -> float:
    """When newcomers to a running round may end it: a burst of them ends it once. Workers train meanwhile."""
    latest = max(seen.waiting_since for seen in new)
    first = min(seen.waiting_since for seen in new)
    return min(latest + rules.quiet_s, first + rules.last_call_timeout_s)


def verdict_at(state: Rendezvous, rules: Rules) -> float | None:
    """When the job ends because of nodes that have not joined, or not finished, by then."""
    if state.phase is RoundPhase.CLOSED:
        return None
    if state.phase is not RoundPhase.GATHERING:
        return state.barrier_until
    join = state.since + rules.join_timeout_s
    return join if state.barrier_until is None else min(join, state.barrier_until)


def deadline(state: Rendezvous, rules: Rules) -> float | None:
    """The next moment at which time alone changes something, apart from leases and progress."""
    if state.phase is RoundPhase.LAST_CALL:
        return last_call_ends(state, rules)
    if (verdict := verdict_at(state, rules)) is not None:
        return verdict
    if state.phase is RoundPhase.RUNNING and rules.max_nodes > len(state.members):
        new = state.newcomers()
        return arrivals_settled(new, rules) if new else None
    return None


def progress_at(state: Rendezvous, rules: Rules) -> float | None:
    """When nodes that wait are next told for whom and how long yet; None while they do not wait."""
    if state.phase is RoundPhase.CLOSED or (state.phase is RoundPhase.RUNNING and not state.finishing):
        return None
    began = state.since
    if state.phase is RoundPhase.RUNNING and state.barrier_until is not None:
        began = max(began, state.barrier_until - rules.exit_barrier_s)
    last = max(began, state.announced_at)
    return last + min(SLOWEST_PROGRESS_S, max(FIRST_PROGRESS_S, 2 * (last - began)))
