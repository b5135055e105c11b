"""The arithmetic of checkpoints: what saves cost, what a failure costs, and the interval that costs least."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_agent.control.decisions.interval import Measured, cost, daly_s, failure_s, young_s
from elastic_agent.control.watcher.advise import lines_of


def test_the_handbooks_worked_example() -> None:
    """A save of 40 s every 3 hours for 90 days: 720 saves, 8 hours, 0.37 %."""
    lines = list(lines_of(40, 3 * 3600, None, 90 * 86400, None))
    assert lines[0] == "now: a save of 40 s every 3 h costs 0.37 % of the time"
    assert lines[1] == "over 90 days: 720 saves, 8 h, 0.37 %"


def test_youngs_and_dalys_intervals() -> None:
    """With 40 s and a failure a day: 2,629 s, and Daly's 2,602 s, by the formulas of the papers."""
    measured = Measured(40, 86400)
    assert young_s(measured) == pytest.approx((2 * 40 * 86400) ** 0.5)
    part = 40 / (2 * 86400)
    assert daly_s(measured) == pytest.approx(young_s(measured) * (1 + part**0.5 / 3 + part / 9) - 40)


def test_a_save_as_long_as_the_time_between_failures_has_no_better_interval() -> None:
    """Daly's estimate ends there."""
    assert daly_s(Measured(200, 100)) == 100


@given(st.floats(0.1, 600), st.floats(3600, 1e7), st.floats(0.2, 5))
def test_no_other_interval_costs_less_than_youngs(save_s: float, between_s: float, factor: float) -> None:
    """To the first order, which is what Young's interval minimises."""
    measured = Measured(save_s, between_s)
    best = young_s(measured)
    assert cost(measured, best).total <= cost(measured, best * factor).total * (1 + 1e-9)


def test_what_a_failure_costs() -> None:
    """Half an interval on average, a whole one at most, and the restart."""
    assert failure_s(Measured(40, 86400, restart_s=60), 3600) == (1860, 3660)


def test_an_interval_is_told_in_steps_where_their_time_is_known() -> None:
    """3 hours of 2 s a step are 5,400 steps."""
    assert "every 3 h (5,400 steps)" in next(lines_of(40, 3 * 3600, 2.0, None, None))
