"""A small part of the campaign of deadlines; `python -m tests.campaigns.guards.deadlines` plays all of it."""

from __future__ import annotations

import pytest

from campaigns.guards import deadlines

SEEDS = range(8)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_each_save_before_a_deadline_is_whole_and_in_time_or_skipped_with_the_reason() -> None:
    outcomes, wrong = deadlines.campaign(len(SEEDS), 120.0, jobs=2)
    assert wrong == []
    assert outcomes.total() == len(SEEDS)
    unjudged = sum(number for (outcome, _), number in outcomes.items() if outcome == deadlines.NOT_JUDGED)
    assert unjudged <= len(SEEDS) // 2, "this host is too busy for it"
