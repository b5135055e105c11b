"""How long the coordinator waits for more nodes, and when it must look again."""

from __future__ import annotations

from ..records import RoundPhase
from .state import Rendezvous, Rules, Seen


def last_call_ends(state: Rendezvous, rules: Rules) -> float:
    """End of the last call: a quiet while after the latest arrival, bounded by `last_call_timeout_s` in all."""
    latest = max((seen.waiting_since for seen in state.candidates()), default=state.since)
    quiet_until = latest + rules.quiet_s
    return quiet_until if state.last_call_until is None else min(quiet_until, state.last_call_until)


def arrivals_settled(new: list[Seen], rules: Rules) -> float:
    """When newcomers to a running round may end it: a burst of them should end it once. Workers train meanwhile."""
    latest = max(seen.waiting_since for seen in new)
    first = min(seen.waiting_since for seen in new)
    return min(latest + rules.quiet_s, first + rules.last_call_timeout_s)


def verdict_at(state: Rendezvous, rules: Rules) -> float | None:
    """When the job ends because of those who have not come, or not finished, by then."""
    if state.phase is RoundPhase.CLOSED:
        return None
    if state.phase is not RoundPhase.GATHERING:
        return state.barrier_until
    join = state.since + rules.join_timeout_s
    return join if state.barrier_until is None else min(join, state.barrier_until)


def deadline(state: Rendezvous, rules: Rules) -> float | None:
    """The next moment at which time alone changes something, heartbeats aside."""
    if state.phase is RoundPhase.LAST_CALL:
        return last_call_ends(state, rules)
    if (verdict := verdict_at(state, rules)) is not None:
        return verdict
    if state.phase is RoundPhase.RUNNING and rules.max_nodes > len(state.members):
        new = state.newcomers()
        return arrivals_settled(new, rules) if new else None
    return None
