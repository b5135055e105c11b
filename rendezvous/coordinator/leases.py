"""Who is still alive: heartbeat counters, aged on the coordinator's own clock, or leases that the store itself keeps.

A heartbeat is a counter, not a time: no node's clock is ever compared with another's. Who judges doubts itself first:
while the observer came to no reading, because it was frozen or its store was, nobody's lease runs; and after a long
such while every lease starts anew, as heartbeats that came meanwhile may lie unread. A store's own leases may all run
out while it stands still; the end of one counts only if the store has answered the observer's own heartbeats in time
for as long as a lease lasts, in which whoever lives has got another.
"""

from __future__ import annotations

from dataclasses import replace

from ..records import NodeState
from .events import BeatsSeen
from .state import Rendezvous, Rules, Seen

READS_PER_BEAT = 2
"""Readings per heartbeat interval; each ages a lease by at most half an interval more than it should."""


def watched(state: Rendezvous, rules: Rules) -> dict[str, Seen]:
    """Nodes whose heartbeat is read: everybody but our own node and the ended. The lost, too: one that was only frozen
    may have nothing new to say, and would wait for ever if nobody listened for it."""
    return {
        node: seen
        for node, seen in state.nodes.items()
        if node != rules.own and seen.record.state is not NodeState.ENDED
    }


def age(state: Rendezvous, seen: BeatsSeen, now: float, rules: Rules) -> Rendezvous:
    """Take in one reading: renew the leases of nodes whose counter changed, mark as lost those that ran out."""
    unwatched_s = _unwatched_s(state.beats_seen_at, now, rules)
    aged: dict[str, Seen] = {}
    for node, known in watched(state, rules).items():
        if seen.steady_s is None:
            now_known = _aged(known, seen.counts.get(node, -1), now, rules, unwatched_s)
        elif node in seen.counts:  # else it has come since the reading was ordered
            now_known = _held(known, seen.counts[node] >= 0, now, steady=seen.steady_s >= rules.lease_s)
        else:
            continue
        if now_known is not known:
            aged[node] = now_known
    nodes = {**state.nodes, **aged} if aged else state.nodes
    due = now + rules.beat_s / (READS_PER_BEAT if seen.steady_s is None else 1)
    return replace(state, nodes=nodes, beats_seen_at=now, beats_due_at=due, reading=False, looked_at=state.asked_at)


def _unwatched_s(seen_at: float | None, now: float, rules: Rules) -> float:
    """How much of the time since the last reading counts against nobody: what is over one interval between heartbeats,
    or all of it and whatever came before."""
    if seen_at is None or now - seen_at > rules.lease_s / 2:
        return float("inf")
    return max(0.0, now - seen_at - rules.beat_s)


def _aged(seen: Seen, count: int, now: float, rules: Rules, unwatched_s: float) -> Seen:
    if count != seen.count:
        return replace(seen, count=count, heard_at=now, lost=False)
    heard_at = min(now, seen.heard_at + unwatched_s)
    lost = seen.lost or now - heard_at >= rules.lease_s
    if lost is seen.lost and not unwatched_s:
        return seen
    return replace(seen, heard_at=heard_at, lost=lost)


def _held(seen: Seen, held: bool, now: float, *, steady: bool) -> Seen:
    """Of a store that keeps the leases itself."""
    if held:
        return replace(seen, heard_at=now, lost=False)
    return replace(seen, lost=True) if steady else seen


def deadline_confirmed(state: Rendezvous, until: float | None, now: float) -> bool:
    """Whether nobody can have come until then whom we have not heard: the store has answered us since. Who stood still,
    or hears nothing, has no say in who is missing. What has not begun (None) is not over."""
    if until is None:
        return False
    return now >= until and state.looked_at is not None and state.looked_at >= until


def next_reading(state: Rendezvous, rules: Rules) -> float | None:
    """When to read next: at the usual interval, or just as the first lease would run out. None: nobody to watch."""
    nodes = watched(state, rules)
    if not nodes:
        return None
    held = (seen.heard_at for seen in nodes.values() if not seen.lost)
    first_out = min(held, default=state.beats_due_at) + rules.lease_s
    return max(min(state.beats_due_at, first_out), (state.beats_seen_at or 0.0))
