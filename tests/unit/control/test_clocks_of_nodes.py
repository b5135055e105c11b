"""Which node's clock is off."""

from __future__ import annotations

import pytest

from elastic_agent.control.decisions.clocks import skew


def test_the_clock_furthest_from_the_median_is_named() -> None:
    """Whichever node compares: its own may be the one."""
    others = {"a:1": 100.0, "b:2": 100.1, "c:3": 99.9}
    off_s, text = skew({**others, "d:4": 90.0})
    assert off_s == pytest.approx(9.95)
    assert text.startswith("the clock of d:4 is ")
    assert text.endswith(" s behind the median of 4 nodes")
    assert skew({"a:1": 0.0, "b:2": 30.0, "c:3": 30.0})[1] == "the clock of a:1 is 30 s behind the median of 3 nodes"


def test_of_two_clocks_nobody_knows_which_is_wrong() -> None:
    """So both nodes are named."""
    off_s, text = skew({"a:1": 5.0, "b:2": 2.0})
    assert off_s == 3.0
    assert text in ("the clock of a:1 is 3 s ahead of that of b:2", "the clock of b:2 is 3 s behind that of a:1")
