"""A short run of `make survivors`: nobody survives agent and nursery, killed in whatever order."""

from __future__ import annotations

import survivors


def test_nobody_survives_agent_and_nursery_and_no_bystander_is_touched() -> None:
    """Each order with and without a fork bomb: 0 survivors after 1 s, and the agent beside it keeps its family."""
    trials = survivors.campaign(seed=0, count=8, orders=survivors.PROMISED)
    assert {(trial.victims, trial.bomb) for trial in trials} == {
        (order, bomb) for order in survivors.PROMISED for bomb in (False, True)
    }
    assert [trial for trial in trials if not trial.good] == []


def test_nobody_survives_a_guardian_that_is_killed() -> None:
    """Alone, or together with the agent."""
    trials = survivors.campaign(seed=0, count=6, orders=survivors.BEYOND)
    assert [trial for trial in trials if not trial.good] == []
