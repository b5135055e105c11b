"""Who is still there: heartbeat counters, aged on the coordinator's own clock, or leases that the store itself keeps.

A heartbeat is a counter, not a time: no node's clock is ever compared with another's. The observer may itself be late:
while it reads nothing, because it or its store was frozen, no lease runs; after a long pause every lease starts anew,
as heartbeats that arrived meanwhile may be unread. A store's own leases may all run out while it stands still, so the
end of one counts only if the store has acknowledged the observer's own heartbeats on time for as long as a lease
lasts: in that time every live node has got another lease.

A node that sends heartbeats but does not report what all others wait for is lost as well, once that is overdue.
"""

from __future__ import annotations

from collections.abc import Collection

from ...proto.frozen import replace
from ..codec.limits import FEW_NODES
from . import deadlines
from .events import BeatsSeen
from .nodes import ENDED, Seen
from .state import LeaseReadings, Rendezvous, Rules

READINGS_APART = 0.5
"""Between two readings, in heartbeat intervals. A lease is aged by at most so much more than it should."""
READINGS_OF_MANY_APART = 0.9
"""The same where more than `FEW_NODES` are watched, as a reading of 1,000 takes the coordinator's process
7 ms, and where a lease is five times as long. Less than an interval, so that a reading that comes a little late is no
pause."""


def watched(state: Rendezvous, rules: Rules) -> dict[str, Seen]:
    """Nodes whose heartbeat is read: all but our own and those that ended. Lost nodes too: one that was only frozen may
    have no new record to publish, and would wait for ever if its heartbeat were not read."""
    return {node: seen for node, seen in state.nodes.items() if node != rules.own and seen.record.state is not ENDED}


def age(state: Rendezvous, seen: BeatsSeen, now: float, rules: Rules) -> Rendezvous:
    """Take in one reading: renew the leases of nodes whose counter changed, mark as lost those that ran out, and nodes
    whose report was due before the reading was asked for."""
    unwatched_s = _unwatched_s(state.readings.last_at, now, rules)
    paused = unwatched_s == float("inf")
    asked_at, confirmed_until = state.readings.asked_at, state.readings.confirmed_until
    before = watched(state, rules)
    awaited = before if paused else deadlines.awaited(state)
    aged: dict[str, Seen] = {}
    for node, known in before.items():
        if seen.steady_s is None:
            now_known = _aged(known, seen.counts.get(node, -1), now, rules, unwatched_s, confirmed_until)
        elif node in seen.counts:  # else it joined after the reading was ordered
            now_known = _held(known, seen.counts[node] >= 0, now, steady=seen.steady_s >= rules.lease_s)
        else:
            continue
        if node in awaited:
            now_known = _reporting(state, now_known, asked_at, now, rules, paused=paused)
        if now_known is not known:
            aged[node] = now_known
    oldest_at = min([known.heard_at for known in {**before, **aged}.values() if not known.lost], default=None)
    due = now + (_between_readings_s(len(before), rules) if seen.steady_s is None else rules.beat_s)
    readings = LeaseReadings(now, due, asked_at, confirmed_until=asked_at, oldest_at=oldest_at)
    nodes = state.nodes.with_all(aged.values()) if aged else state.nodes
    return replace(state, nodes=nodes, readings=readings)


def _between_readings_s(count: int, rules: Rules) -> float:
    usual_s = READINGS_APART * rules.beat_s
    if count <= FEW_NODES:
        return usual_s
    return max(usual_s, min(READINGS_OF_MANY_APART * rules.beat_s, rules.lease_s / 5))


def _unwatched_s(seen_at: float | None, now: float, rules: Rules) -> float:
    """How much of the time since the last reading counts against no node: what exceeds one interval between heartbeats,
    or, after a long pause, all of it and everything before."""
    if _was_paused(seen_at, now, rules):
        return float("inf")
    return max(0.0, now - (seen_at or 0.0) - rules.beat_s)


def _was_paused(seen_at: float | None, now: float, rules: Rules) -> bool:
    """Whether what is read now may have been unread for long: the last reading was at `seen_at`."""
    return seen_at is None or now - seen_at > rules.lease_s / 2


def _aged(seen: Seen, count: int, now: float, rules: Rules, unwatched_s: float, read_at: float | None) -> Seen:
    """The node after a reading of its counter. `read_at`: when the reading was asked for that `seen` is of."""
    if seen.lost and 0 <= count < seen.count:
        # Set back by late bytes, or by the node after a stranger wrote over it: only a rise from here shows life.
        return replace(seen, count=count)
    rose = count > seen.count
    if rose or (count != seen.count and not seen.lost):
        since = _counted_since(seen, now)
        fresh = rose and not seen.lost and unwatched_s < float("inf")  # else late bytes, or unread for long
        alive_at = now if fresh else seen.alive_at
        reached_at, arrived_at = _arrivals(seen, count, read_at)
        return replace(
            seen,
            count=count,
            heard_at=now,
            alive_at=alive_at,
            since=since,
            lost=seen.overdue,
            reached_at=reached_at,
            arrived_at=arrived_at,
        )
    heard_at = min(now, seen.heard_at + unwatched_s)
    lost = seen.lost or now - heard_at >= rules.lease_s
    if lost is seen.lost and not unwatched_s:
        return seen
    return replace(seen, heard_at=heard_at, lost=lost, lost_at=now if lost and not seen.lost else seen.lost_at)


def _arrivals(seen: Seen, count: int, read_at: float | None) -> tuple[float, float]:
    """`Seen.reached_at` and `Seen.arrived_at` of a node whose counter was read as `count`."""
    if read_at is None or count <= seen.count:
        return seen.reached_at, seen.arrived_at
    several = seen.count >= 0 and count > seen.count + 1
    return read_at if several else seen.arrived_at, read_at


def _held(seen: Seen, held: bool, now: float, *, steady: bool) -> Seen:
    """The node after a reading of a store that keeps leases itself."""
    if held:
        since = _counted_since(seen, now)
        alive_at = now if steady else seen.alive_at  # else the store may have prolonged it by itself
        return replace(seen, heard_at=now, alive_at=alive_at, since=since, lost=seen.overdue)
    return replace(seen, lost=True, lost_at=seen.lost_at if seen.lost else now) if steady else seen


def dead_by(state: Rendezvous, nodes: Collection[str], rules: Rules) -> float:
    """When the lease of each of these nodes is over that died before the last of them came, at the latest: of one that
    was killed, and started again under another identity. Leases that a pause renewed are awaited anew."""
    known = [state.nodes[node] for node in nodes]
    return max(max(seen.waiting_since, seen.since) for seen in known) + rules.lease_s + rules.beat_s


def alive_since(state: Rendezvous, nodes: Collection[str], since: float, rules: Rules) -> bool:
    """Whether each of these nodes has been seen to be alive since then; our own node needs no lease."""
    return all(node == rules.own or state.nodes[node].alive_at >= since for node in nodes)


def alive_at(state: Rendezvous, known: Seen | None, now: float, rules: Rules) -> float:
    """`Seen.alive_at` of a node whose next record is read now; it may have been written before a pause."""
    if not _was_paused(state.readings.last_at, now, rules):
        return now
    return known.alive_at if known is not None else float("-inf")


def _counted_since(seen: Seen, now: float) -> float:
    """`Seen.since` of a node that has just sent a heartbeat."""
    return now if seen.lost and not seen.overdue else seen.since


def _reporting(
    state: Rendezvous, seen: Seen, asked_at: float | None, now: float, rules: Rules, *, paused: bool
) -> Seen:
    """The node, lost if its report is overdue. `asked_at`: when this reading was asked for; what the node had reported
    before that is known by now. `paused`: the coordinator was, so that what is due begins anew."""
    if seen.lost:
        return seen
    if paused:
        return replace(seen, since=now)
    due = deadlines.report_due(state, seen, rules)
    if due is None or asked_at is None or asked_at < due:
        return seen
    return replace(seen, lost=True, overdue=True, lost_at=now)


def deadline_confirmed(state: Rendezvous, until: float | None, now: float) -> bool:
    """Whether `until` has passed, and a read requested since then was answered. A coordinator that was paused, or whose
    store does not answer, must not decide which nodes are missing. A deadline that does not run (None) is not over."""
    if until is None:
        return False
    confirmed = state.readings.confirmed_until
    return now >= until and confirmed is not None and confirmed >= until


def next_reading(state: Rendezvous, rules: Rules) -> float | None:
    """When to read next: at the usual interval, or as the first lease would run out. None: no node to watch."""
    if not any(node != rules.own and seen.record.state is not ENDED for node, seen in state.nodes.items()):
        return None
    readings = state.readings
    oldest_at = readings.due_at if readings.oldest_at is None else readings.oldest_at
    return max(min(readings.due_at, oldest_at + rules.lease_s), (readings.last_at or 0.0))
