"""Sentences for people about what the coordinator knows and waits for."""

from __future__ import annotations

from collections.abc import Iterable

from ..text import count
from . import agreements, deadlines, fencing, ranks
from .nodes import BROKEN, Seen
from .state import CLOSED, LAST_CALL, OVER, RUNNING, Rendezvous, Rules

ROUNDING = 1e-6
"""Seconds added before rounding: clocks that differ by a constant differ in their last bits too, and a time of exactly
half a unit must read the same on all of them."""


NAMED = 8
"""How many nodes a sentence about a wait names; a thousand would hide the point."""


def whole(seconds: float) -> str:
    """Rounded to seconds."""
    return str(int(seconds + 0.5 + ROUNDING))


def tenths(seconds: float) -> str:
    """Rounded to tenths of a second."""
    return f"{int(seconds * 10 + 0.5 + ROUNDING) / 10:.1f}"


def names(seen: Iterable[Seen]) -> str:
    """Names of nodes, in alphabetical order, as `listed` gives them; "no node" if there are none."""
    return listed(sorted(each.record.name for each in seen)) or "no node"


def listed(each: list[str]) -> str:
    """The first `NAMED` of these, and how many more there are."""
    more = len(each) - NAMED
    return ", ".join(each[:NAMED]) + (f" and {more} more" if more > 0 else "")


def leadership(state: Rendezvous) -> str:
    """What changes for this node when a term of coordination begins or ends."""
    if not state.leading:
        return state.because
    return f"this node coordinates the job from here on (epoch {state.epoch}); round {state.number}: {state.because}"


def barrier_over(state: Rendezvous, rules: Rules) -> str:
    """Which nodes were still working when the finalisation barrier ended."""
    late = [seen for seen in state.nodes.values() if not seen.finished and not seen.gone]
    return f"the finalisation barrier of {rules.exit_barrier_s:g} s ended before {names(late)} finished"


def who_is_missing(state: Rendezvous, rules: Rules) -> str:
    """Which nodes joined and which are missing when the join timeout ends."""
    here = state.ready()
    gone = [seen for seen in state.nodes.values() if not seen.waiting and not seen.finished]
    missing = listed([f"{seen.record.name} ({'lost' if seen.lost else seen.record.state.value})" for seen in gone])
    never = rules.min_nodes - len(state.nodes)
    if never > 0:
        missing += f"{', ' if missing else ''}{count(never, 'node')} that never joined"
    return (
        f"{len(here)} of at least {rules.min_nodes} nodes joined within the join timeout of "
        f"{rules.join_timeout_s:g} s: {names(here)}; missing: {missing or 'no other node was ever seen'}"
    )


def too_few_remain(state: Rendezvous, rules: Rules) -> str:
    """Why a failure cannot be restarted once other nodes have finished."""
    done = names(seen for seen in state.nodes.values() if seen.finished)
    able = state.able()
    remain = "remains" if able == 1 else "remain"
    return f"{done} had already finished, and {count(able, 'node')} {remain}, fewer than min_nodes {rules.min_nodes}"


def enough(here: int, rules: Rules) -> str:
    """Why a round can begin."""
    if here >= rules.max_nodes:
        return "every place is taken"
    return f"{count(here, 'node')} joined, enough for min_nodes {rules.min_nodes}"


def lost(seen: Seen, now: float, rules: Rules) -> str:
    """That a node's lease ran out, or that it sends heartbeats but does not report what all others wait for."""
    if seen.overdue:
        grace_s, more_s = seen.record.grace_s, deadlines.report_margin_s(rules)
        why = f"its agent sends heartbeats but did not report within {grace_s + more_s:g} s"
        return f"{seen.record.name} was lost: {why} (its grace of {grace_s:g} s, and {more_s:g} s more)"
    if seen.record.seq < 0 and rules.succeeds:
        return f"{seen.record.name} was lost: it has not come to the new host of the store"
    silent_s = now - seen.heard_at
    if silent_s < rules.lease_s - deadlines.SAME_MOMENT_S:  # as a store that keeps leases itself sees it
        return f"{seen.record.name} was lost: its lease of {rules.lease_s:g} s ran out"
    return f"{seen.record.name} was lost: no heartbeat for {tenths(silent_s)} s (lease {rules.lease_s:g} s)"


def waiting(state: Rendezvous, now: float, rules: Rules) -> str:
    """For which nodes all others wait, and for how long yet."""
    if state.phase is CLOSED:
        return _ending(state, now, rules)
    if state.phase is RUNNING:
        return _barrier(state, now, rules) if state.finishing else _starting(state, now, rules)
    if state.phase is OVER or state.may_have_workers():
        return _stopping(state, now, rules)
    here = state.ready()
    if state.phase is LAST_CALL:
        left_s = max(0.0, deadlines.last_call_ends(state, rules) - now)
        return f"{_joined(here, 'most', rules.max_nodes)}; waiting up to {whole(left_s)} s for more"
    left_s = max(0.0, (deadlines.verdict_at(state, rules) or now) - now)
    if silent := fencing.silent_majority(state, now, rules):
        return (
            f"waiting up to {whole(left_s)} s for {names(silent)}: more than half of those that may vote do not reach "
            "this node, and may have elected another host"
        )
    gone = [f"{seen.record.name} ({'lost' if seen.lost else 'left'})" for seen in state.nodes.values() if seen.gone]
    missing = f"; missing: {listed(sorted(gone))}" if gone else ""
    return f"{_joined(here, 'least', rules.min_nodes)}; waiting up to {whole(left_s)} s for more{missing}"


def doubt(state: Rendezvous, now: float) -> str:
    """That no node may be alive that had a part in what was announced, or none that waits for a place."""
    if state.doubt_until is None:
        return "reading which of the nodes that wait for a place are alive"
    left_s = max(0.0, state.doubt_until - now)
    parts = {member.node: seen for member, seen in state.seen_members()}
    parts |= {node: seen for node, seen in state.nodes.items() if seen.finished}
    why = f"to see whether a node that had a part in round {state.number} is alive"
    return f"waiting up to {whole(left_s)} s {why} ({names(parts.values())})"


def claims(conflict: ranks.RankConflict, left_s: float) -> str:
    """Which claims exclude each other, though the node of one may be dead."""
    return f"{conflict}; waiting up to {whole(max(0.0, left_s))} s to see whether each such node is alive"


def _joined(here: list[Seen], bound: str, nodes: int) -> str:
    who = f" ({listed(sorted(seen.record.name for seen in here))})" if here else ""
    return f"{len(here)} of at {bound} {count(nodes, 'node')} joined{who}"


def _barrier(state: Rendezvous, now: float, rules: Rules) -> str:
    working = listed(sorted(member.name for member, seen in state.seen_members() if not seen.finished))
    stop_at = agreements.deadline(state, rules)
    if agreements.stopping(state) is not None and stop_at is not None:
        return f"waiting up to {whole(max(0.0, stop_at - now))} s for the workers of {working} to save and exit"
    left_s = max(0.0, (state.barrier_until or now) - now)
    return f"waiting for {working} to finish; the finalisation barrier ends in {whole(left_s)} s"


def _ending(state: Rendezvous, now: float, rules: Rules) -> str:
    awaited = [seen for seen in state.awaited_at_close() if seen.record.node != rules.own]
    so_far = f"{whole(now - state.since)} s so far"
    return f"the job is over; waiting for {_awaited(awaited, now, rules)} to end ({so_far})"


def _starting(state: Rendezvous, now: float, rules: Rules) -> str:
    """Of a round that runs: whose workers those of the others wait for."""
    awaited = _awaited(state.starting(), now, rules)
    return f"waiting for {awaited} to start the workers of round {state.number} ({whole(now - state.since)} s so far)"


def _stopping(state: Rendezvous, now: float, rules: Rules) -> str:
    unanswered = state.end.unanswered
    awaited = [seen for node, seen in state.nodes.items() if seen.may_have_workers or node in unanswered]
    so_far = f"{whole(now - state.since)} s so far"
    if not awaited and (gone := fencing.cut_off(state, rules)):
        left_s = max(0.0, *(fencing.ends_at(state, seen, rules) - now for seen in gone))
        one = len(gone) == 1
        which = "which is dead or cut off, has" if one else "which are dead or cut off, have"
        workers = f"ended {'its' if one else 'their'} workers of round {state.number}"
        return f"waiting up to {whole(left_s)} s until {names(gone)}, {which} surely {workers} ({so_far})"
    return f"waiting for {_awaited(awaited, now, rules)} to stop the workers of round {state.number} ({so_far})"


def _awaited(awaited: list[Seen], now: float, rules: Rules) -> str:
    """Silent nodes first: one that neither answers nor sends heartbeats is lost when its lease runs out."""
    each = (_silence(seen, now, rules) for seen in awaited)
    return listed(sorted(each, key=lambda name: (" " not in name, name)))


def _silence(seen: Seen, now: float, rules: Rules) -> str:
    silent_s = now - seen.heard_at
    if seen.record.all_exits_reported and seen.record.state is BROKEN:
        return f"{seen.record.name}, which pauses after a failure (--restart-backoff)"
    if seen.record.node == rules.own or silent_s < 2 * rules.beat_s:
        return seen.record.name
    return f"{seen.record.name} (no heartbeat for {tenths(silent_s)} s; lost after {rules.lease_s:g} s)"
