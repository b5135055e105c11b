"""When a reading counts: a watch fires after its time over the threshold, once, and is armed again after as long below.

Times are seconds of any clock that never goes backwards.
"""

from __future__ import annotations

from enum import Enum

from ...proto.frozen import dataclass, replace


class ReadingResult(Enum):
    """What a reading says about its threshold."""

    OVER = "over"
    UNDER = "under"
    NOT_YET = "not yet"
    """Still measuring: counts for nothing, and is nothing to report."""
    UNKNOWN = "unknown"
    """It could not be read."""


class Change(Enum):
    """What a reading changed about its watch."""

    FIRED = "fired"
    AGAIN = "still"
    """It fired before, is still over, and a reminder is due."""
    CLEARED = "cleared"
    BLIND = "blind"
    """It cannot be read, for as long as would have let it fire."""
    READABLE = "sees again"


@dataclass(frozen=True)
class Reading:
    """One look at what is watched."""

    verdict: ReadingResult
    text: str
    """For people: the thing and the number, such as `3.1 hours left at 12 GB an hour`."""


@dataclass(frozen=True)
class Rule:
    """When a watch acts."""

    for_s: float = 0.0
    """How long readings must be over before they count, and below before the watch is armed again."""
    again_s: float = 0.0
    """How long after it fired, while still over, a reminder is due, and then each next one. 0: none."""


@dataclass(frozen=True)
class WatchState:
    """What is remembered of a watch between two readings. The default is that of a watch that is new."""

    over_since: float | None = None
    under_since: float | None = None
    unknown_since: float | None = None
    reported_at: float | None = None
    """When it fired or was last repeated; None while it is armed."""
    blind: bool = False


def observe(rule: Rule, state: WatchState, verdict: ReadingResult, now: float) -> tuple[WatchState, tuple[Change, ...]]:
    """The state after a reading at `now`, and what it changed, in order.

    A reading that failed neither counts nor breaks a time that others began: a file server that hangs does not disarm.
    """
    if verdict is ReadingResult.NOT_YET:
        return state, ()
    if verdict is ReadingResult.UNKNOWN:
        return _unknown(rule, state, now)
    changes: list[Change] = [Change.READABLE] if state.blind else []
    state = replace(state, unknown_since=None, blind=False)
    if verdict is ReadingResult.OVER:
        state, change = _over(rule, state, now)
    else:
        state, change = _under(rule, state, now)
    return state, (*changes, *([change] if change else []))


def _unknown(rule: Rule, state: WatchState, now: float) -> tuple[WatchState, tuple[Change, ...]]:
    since = now if state.unknown_since is None else state.unknown_since
    told = now - since >= rule.for_s and not state.blind
    return replace(state, unknown_since=since, blind=state.blind or told), (Change.BLIND,) if told else ()


def _over(rule: Rule, state: WatchState, now: float) -> tuple[WatchState, Change | None]:
    since = now if state.over_since is None else state.over_since
    state = replace(state, over_since=since, under_since=None)
    if state.reported_at is None:
        if now - since < rule.for_s:
            return state, None
        return replace(state, reported_at=now), Change.FIRED
    if rule.again_s and now - state.reported_at >= rule.again_s:
        return replace(state, reported_at=now), Change.AGAIN
    return state, None


def _under(rule: Rule, state: WatchState, now: float) -> tuple[WatchState, Change | None]:
    if state.reported_at is None:
        return replace(state, over_since=None), None
    since = now if state.under_since is None else state.under_since
    if now - since < rule.for_s:
        return replace(state, under_since=since), None
    return WatchState(), Change.CLEARED
