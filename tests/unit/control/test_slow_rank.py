"""Which rank is the straggler, and its share of the lost time."""

from __future__ import annotations

import pytest

from elastic_agent.control.decisions.slow import LEAST_STEPS, Pace, straggler


def test_the_straggler_is_named_with_its_share_of_the_lost_time() -> None:
    """Steps of 2 s, in which three ranks need 1.2 s and one 1.8 s: it costs 0.6 s of each, 3 of 4 parts of the wait."""
    found = straggler({rank: Pace(100, 2.0, 1.8 if rank == 2 else 1.2) for rank in range(4)})
    assert found is not None
    assert [found.rank, found.lost, found.of_waits] == pytest.approx([2, 0.3, 0.75])
    assert found.text.startswith("rank 2 is the slowest: 1.8 s of its own in a step of 2 s, ranks 0-1, 3 1.2 s")
    assert "30 % of the time, 75 % of what others wait" in found.text


def test_equal_ranks_lose_nothing() -> None:
    """One of them is the slowest, of nothing."""
    found = straggler({rank: Pace(100, 1.0, 0.8) for rank in range(4)})
    assert found is not None
    assert found.lost == 0.0


@pytest.mark.parametrize(
    "paces", [{}, {0: Pace(100, 1.0, 1.0)}, {0: Pace(100, 1.0, 1.0), 1: Pace(LEAST_STEPS - 1, 1.0, 9.0)}]
)
def test_one_rank_or_few_steps_say_nothing(paces: dict[int, Pace]) -> None:
    """There is nobody to wait, or nothing to compare."""
    assert straggler(paces) is None
