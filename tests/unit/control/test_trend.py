"""How long a stock lasts: leaks are found, and what only looks like one is not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from elastic_agent.control.decisions import trend
from elastic_agent.control.decisions.trend import Checkpoints, Sample

MB = 1e6


def samples(value: Callable[[float], float], number: int = 60, every_s: float = 10.0) -> list[Sample]:
    return [(at * every_s, value(at * every_s)) for at in range(number)]


def test_a_leak_is_measured_through_noise() -> None:
    """1 MB/s with 5 MB of noise is found within a tenth."""
    noise = random.Random(1)
    growth = trend.steady_growth(samples(lambda at: at * MB + noise.uniform(-5, 5) * MB))
    assert growth is not None
    assert abs(growth - MB) < 0.1 * MB


@pytest.mark.parametrize(
    "value",
    [
        lambda at: 1000 * MB,
        lambda at: 1000 * MB if at > 300 else 0.0,
        lambda at: min(at, 150.0) * MB,
        lambda at: 800 * MB * (at % 120 < 60),
    ],
    ids=["flat", "one jump", "warm-up", "swings"],
)
def test_what_grows_once_or_falls_back_is_no_leak(value: Callable[[float], float]) -> None:
    """At most a twentieth of the growth that a line from end to end would show for the jump."""
    growth = trend.steady_growth(samples(value))
    assert growth is not None
    assert growth < 0.1 * MB


def test_a_leak_that_begins_late_is_found_while_there_is_time() -> None:
    """Flat for half an hour, then 1 GB a minute of 20 GB: found with more than 5 minutes left, a look a minute."""
    kept: list[Sample] = []
    found = None
    minute, used = 0, 0.0
    for minute in range(50):
        used = max(0.0, minute - 30) * 1e9
        trend.keep(kept, (60.0 * minute, used), window_s=1800.0)
        found = trend.leak(kept, 20e9 - used)
        if found and found[0] < 600:
            break
    assert 30 < minute <= 45
    assert found is not None
    assert found[0] == pytest.approx((50 - minute) * 60, rel=0.1)
    assert found[1] == pytest.approx(1e9 / 60, rel=0.1)


def test_a_short_rise_is_not_believed_for_long() -> None:
    """Ten minutes of growth after a flat half hour say nothing about what comes in three hours."""
    kept = [(60.0 * minute, max(0.0, minute - 20) * 1e8) for minute in range(31)]
    found = trend.leak(kept, 18e9)
    assert found is not None
    assert found[0] > 3 * 3600


def test_few_samples_say_nothing() -> None:
    """A trend needs ten looks."""
    assert trend.steady_growth(samples(lambda at: at, number=9)) is None
    assert trend.steady_growth(samples(lambda at: at, number=10)) is not None


def test_samples_are_bounded_in_time_and_number() -> None:
    """Days of looks do not fill the memory of what watches the memory."""
    kept: list[Sample] = []
    for at in range(5000):
        trend.keep(kept, (float(at), 0.0), window_s=2000.0, most=100)
    assert len(kept) <= 101
    assert kept[0][0] >= 2999
    assert kept[-1][0] == 4999


def test_before_anything_is_measured_all_checkpoints_are_assumed_to_stay() -> None:
    """10 GB every hour is 10 GB an hour."""
    rate = trend.disk_rate([], Checkpoints(10e9, 3600))
    assert rate == pytest.approx(10e9 / 3600)


def test_once_measured_what_retention_deletes_counts() -> None:
    """Checkpoints of which each new one replaces an old one fill no disk."""
    flat = [(3600.0 * hour, 50e9) for hour in range(6)]
    assert trend.disk_rate(flat, Checkpoints(10e9, 3600)) == 0


def test_a_rate_needs_two_intervals_of_checkpoints() -> None:
    """Between two saves nothing is written, which proves nothing."""
    minutes = [(60.0 * minute, 50e9) for minute in range(30)]
    assert trend.disk_rate(minutes, Checkpoints(10e9, 3600)) == pytest.approx(10e9 / 3600)


def test_no_room_for_the_next_checkpoint_is_no_time_left() -> None:
    """9 GB free are worth nothing to a save of 10 GB."""
    assert trend.seconds_left(9e9, 1.0, 10e9) == 0
    assert trend.seconds_left(20e9, 10e9 / 3600, 10e9) == pytest.approx(3600)
    assert trend.seconds_left(20e9, 0.0, 10e9) == math.inf


def test_one_checkpoint_has_no_interval() -> None:
    """Two are needed to know how often they come."""
    assert trend.checkpoints_of([(0.0, 1.0)]) is None
    assert trend.checkpoints_of([(0.0, 1.0), (10.0, 3.0), (20.0, 2.0)]) == Checkpoints(3.0, 10.0)
