"""A short run of `make survivors`: nobody survives agent and nursery, killed in whatever order."""

from __future__ import annotations

from campaigns import survivors

LIMIT_S = 10.0
"""Here that nobody is left counts; how soon, on a machine that has nothing else to do, `make survivors` measures."""


def test_nobody_survives_agent_and_nursery_and_no_bystander_is_touched() -> None:
    """Each order with and without a fork bomb: nobody survives, and the agent beside it keeps its family."""
    trials = survivors.campaign(seed=0, count=8, orders=survivors.PROMISED, limit_s=LIMIT_S)
    assert {(trial.victims, trial.bomb) for trial in trials} == {
        (order, bomb) for order in survivors.PROMISED for bomb in (False, True)
    }
    assert [trial for trial in trials if not trial.good] == []


def test_nobody_survives_a_guardian_that_is_killed() -> None:
    """Alone, or together with the agent."""
    trials = survivors.campaign(seed=0, count=6, orders=survivors.BEYOND, limit_s=LIMIT_S)
    assert [trial for trial in trials if not trial.good] == []
