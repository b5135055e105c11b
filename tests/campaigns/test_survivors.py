"""A short run of `make survivors`: no process survives agent and nursery, killed in any order."""

from __future__ import annotations

from campaigns.kills import survivors

LIMIT_S = 10.0
"""Long, because here only the number of survivors counts; `make survivors` measures the time, on an idle host."""


def test_no_process_survives_agent_and_nursery_and_no_bystander_is_killed() -> None:
    """Each order, with and without a fork bomb; the processes of another agent stay alive."""
    trials = survivors.campaign(seed=0, count=8, orders=survivors.PROMISED, limit_s=LIMIT_S)
    assert {(trial.victims, trial.bomb) for trial in trials} == {
        (order, bomb) for order in survivors.PROMISED for bomb in (False, True)
    }
    assert [trial for trial in trials if not trial.good] == []


def test_no_process_survives_a_guardian_that_is_killed() -> None:
    """The guardian alone, or together with the agent."""
    trials = survivors.campaign(seed=0, count=6, orders=survivors.BEYOND, limit_s=LIMIT_S)
    assert [trial for trial in trials if not trial.good] == []
