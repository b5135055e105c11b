"""When a watch fires, is armed again and is repeated, from readings and their times alone."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_agent.control.decisions.watches import Change, ReadingResult, Rule, WatchState, observe

OVER, UNDER, UNKNOWN, NOT_YET = ReadingResult.OVER, ReadingResult.UNDER, ReadingResult.UNKNOWN, ReadingResult.NOT_YET


def play(rule: Rule, readings: Iterable[tuple[float, ReadingResult]]) -> list[tuple[float, Change]]:
    """The changes, with their times."""
    state, found = WatchState(), []
    for at, verdict in readings:
        state, changes = observe(rule, state, verdict, at)
        found += [(at, change) for change in changes]
    return found


def test_a_watch_without_for_fires_at_the_first_reading_over() -> None:
    """A full disk is reported at once where nobody asked for patience."""
    assert play(Rule(), [(0, UNDER), (1, OVER), (2, OVER)]) == [(1, Change.FIRED)]


def test_a_reading_counts_only_after_its_time() -> None:
    """With for = 5 min, four minutes over are nothing and five are an alarm."""
    readings = [(60.0 * minute, OVER) for minute in range(7)]
    assert play(Rule(for_s=300), readings) == [(300, Change.FIRED)]


def test_one_reading_below_begins_the_time_anew() -> None:
    """What is over only now and then never fires."""
    readings = [(float(at), UNDER if at % 4 == 0 else OVER) for at in range(40)]
    assert play(Rule(for_s=3), readings) == []


def test_a_fired_watch_is_silent_until_it_is_armed_again() -> None:
    """It fires once, says once that it is over, and fires again only then."""
    readings = [(0, OVER), (1, OVER), (2, OVER), (3, UNDER), (4, UNDER), (5, OVER)]
    assert play(Rule(), readings) == [(0, Change.FIRED), (3, Change.CLEARED), (5, Change.FIRED)]


def test_a_fired_watch_is_armed_only_after_as_long_below() -> None:
    """A reading that swings around the threshold is one alarm, not one for each swing."""
    swings = [(float(at), UNDER if at % 3 == 0 else OVER) for at in range(3, 60)]
    changes = play(Rule(for_s=2), [(0, OVER), (1, OVER), (2, OVER), *swings, (60, UNDER), (61, UNDER), (62, UNDER)])
    assert changes == [(2, Change.FIRED), (62, Change.CLEARED)]


def test_reminders_come_at_their_distance_and_only_if_asked_for() -> None:
    """With again = 10 s, what stays over is repeated every 10 s, and not at all without."""
    readings = [(float(at), OVER) for at in range(26)]
    assert play(Rule(again_s=10), readings) == [(0, Change.FIRED), (10, Change.AGAIN), (20, Change.AGAIN)]
    assert play(Rule(), readings) == [(0, Change.FIRED)]


def test_what_cannot_be_read_is_reported_once_and_neither_fires_nor_clears() -> None:
    """A file server that hangs leaves the alarm as it was, and is reported itself after as long."""
    readings = [(0, OVER), (5, OVER), (6, UNKNOWN), (10, UNKNOWN), (11, UNKNOWN), (20, UNKNOWN), (21, OVER)]
    changes = play(Rule(for_s=5), readings)
    assert changes == [(5, Change.FIRED), (11, Change.BLIND), (21, Change.READABLE)]


def test_a_reading_that_is_not_ready_changes_nothing() -> None:
    """The first looks of a rate say nothing, and are no error."""
    assert play(Rule(for_s=1), [(0, OVER), (1, NOT_YET), (2, OVER)]) == [(2, Change.FIRED)]
    assert play(Rule(), [(0, NOT_YET), (1, NOT_YET)]) == []


@given(st.lists(st.sampled_from(list(ReadingResult)), max_size=60), st.sampled_from([0.0, 1.0, 3.0]))
def test_alarms_and_clearings_alternate(verdicts: list[ReadingResult], for_s: float) -> None:
    """No two alarms without a clearing between them, whatever the readings."""
    changes = [change for _, change in play(Rule(for_s), ((float(at), each) for at, each in enumerate(verdicts)))]
    alarms = [change for change in changes if change in (Change.FIRED, Change.CLEARED)]
    assert alarms == [Change.FIRED, Change.CLEARED] * (len(alarms) // 2) + [Change.FIRED] * (len(alarms) % 2)


@pytest.mark.parametrize("for_s", [0.0, 2.0])
def test_an_alarm_is_preceded_by_its_whole_time_over(for_s: float) -> None:
    """The reading that fires is at least `for` after the first one over."""
    changes = play(Rule(for_s), [(0, UNDER), (1, OVER), (2.5, OVER), (3.5, OVER)])
    assert changes == [(1 if not for_s else 3.5, Change.FIRED)]
