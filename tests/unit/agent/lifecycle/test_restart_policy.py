"""When failed workers are started again: one table for each clause of the policy."""

from __future__ import annotations

import pytest

from elastic_agent.agent.lifecycle import restart_policy
from elastic_agent.agent.lifecycle.restart_policy import Charge, History, Policy
from support.builders import history

# -- the budget --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "window_s", "charged", "at", "left"),
    [
        (0, 0.0, (), 5.0, 0),
        (3, 0.0, (), 5.0, 3),
        (3, 0.0, (1.0, 2.0), 5.0, 1),
        (3, 0.0, (1.0, 2.0, 3.0), 1e9, 0),  # without a window every charge counts for ever
        (1, 10.0, (1.0,), 5.0, 0),
        (1, 10.0, (1.0,), 10.9, 0),
        (1, 10.0, (1.0,), 11.0, 1),  # just out of the window
        (2, 10.0, (1.0, 8.0), 12.0, 1),  # one is out, one still counts
        (0, 10.0, (), 5.0, 0),  # a window adds no restarts
        (1, 10.0, (1.0, 2.0), 5.0, 0),  # never negative: it is published as a count
    ],
)
def test_the_budget_counts_the_charges_of_the_window(
    most: int, window_s: float, charged: tuple[float, ...], at: float, left: int
) -> None:
    """Without a window it counts all charges of the job."""
    assert restart_policy.restarts_left(Policy(max_restarts=most, window_s=window_s), history(*charged), at) == left


def test_the_history_is_bounded() -> None:
    """It keeps as many charges as the policy can need, and counts all of them."""
    rules = Policy(max_restarts=40, window_s=1000.0)
    past = History()
    for at in range(500):
        past = past.add(Charge(float(at)), rules)
    assert (past.total, len(past.recent), past.recent[-1].at) == (500, 40, 499.0)
    assert restart_policy.restarts_left(rules, past, 500.0) == 0
    assert restart_policy.failures_in_a_row(Policy(), past, 1e6) == 1


# -- the pauses of a crash loop ----------------------------------------------------------------------------------------

PACED = Policy(max_restarts=100, pause_min_s=2.0, pause_max_s=10.0)


@pytest.mark.parametrize(
    ("charged", "at", "length"),
    [
        ((), 5.0, 1),
        ((1.0,), 5.0, 2),
        ((1.0,), 11.0, 2),  # as late as the longest pause
        ((1.0,), 11.1, 1),  # later: workers that ran for so long are in no crash loop
        (((1.0, 4.0),), 15.0, 2),  # the pause between does not count
        (((1.0, 4.0),), 15.1, 1),
        ((1.0, (5.0, 2.0), (9.0, 4.0)), 14.0, 4),
        ((1.0, (50.0, 0.0), (55.0, 2.0)), 60.0, 3),  # one before the loop does not count
    ],
)
def test_failures_of_a_crash_loop_follow_each_other_closely(
    charged: tuple[tuple[float, float] | float, ...], at: float, length: int
) -> None:
    """Each is at most `pause_max_s` after the pause of the one before."""
    assert restart_policy.failures_in_a_row(PACED, history(*charged), at) == length


@pytest.mark.parametrize(
    ("before", "shortest", "longest"),
    [(0, 0.0, 0.0), (1, 2.0, 4.0), (2, 4.0, 8.0), (3, 5.0, 10.0), (4, 5.0, 10.0), (90, 5.0, 10.0)],
)
def test_pauses_double_within_their_bounds(before: int, shortest: float, longest: float) -> None:
    """No pause before the first restart; then a random one from a range that doubles each time, up to 10 s."""
    past = history(*(float(at) for at in range(before)))
    found = [restart_policy.pause_s(PACED, past, float(before), (jitter,)) for jitter in (0.0, 0.5, 1.0)]
    assert found == [shortest, (shortest + longest) / 2, longest]


@pytest.mark.parametrize(
    ("rules", "pause_s"),
    [
        (Policy(max_restarts=9), 0.0),  # no pause is configured
        (Policy(max_restarts=1, pause_min_s=2.0, pause_max_s=10.0), 0.0),  # no restart follows
        (Policy(max_restarts=9, pause_min_s=7.0, pause_max_s=7.0), 7.0),  # a range of one value
        (Policy(max_restarts=9, pause_min_s=2.0, pause_max_s=3.0), 3.0),  # the first range is capped, too
    ],
)
def test_the_bounds_of_a_pause(rules: Policy, pause_s: float) -> None:
    """The pause after the second failure, with the largest random number."""
    assert restart_policy.pause_s(rules, history(1.0), 2.0, (1.0,)) == pause_s


def test_random_numbers_are_used_in_turn() -> None:
    """One for each charge, then from the first again."""
    drawn = [restart_policy.pause_s(PACED, history(*map(float, range(n))), float(n), (0.0, 1.0)) for n in (3, 4, 5)]
    assert drawn == [10.0, 5.0, 10.0]


# -- preemption --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exit_code", "stopped_by", "left", "may_be"),
    [
        (-15, 0, 0, True),
        (143, 0, 0, True),  # a script that handles SIGTERM and exits as shells do
        (-2, 0, 0, True),
        (-15, 15, 0, False),  # this agent sent it
        (-15, 0, 1, False),  # a restart is left, and must not wait
        (-9, 0, 0, False),
        (15, 0, 0, False),
        (1, 0, 0, False),
    ],
)
def test_a_stop_signal_from_elsewhere_may_be_preemption(
    exit_code: int, stopped_by: int, left: int, may_be: bool
) -> None:
    """If it ended a worker, was not sent by this agent, and no restart is left."""
    rules = Policy(max_restarts=left)
    assert restart_policy.may_be_preemption(rules, History(), 1.0, exit_code, stopped_by) is may_be


# -- what kind of failure ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lived_s", "ready", "importing", "startup"),
    [
        (None, None, False, True),  # could not be started at all
        (0.1, None, True, True),
        (9.0, None, False, False),  # it has worked since, for all that is known
        (29.9, None, True, True),
        (30.0, None, True, False),
        (9.0, False, False, True),  # other workers report that they are ready, and this one has not
        (30.0, False, False, False),
        (0.1, True, False, False),
        (0.1, True, True, False),
    ],
)
def test_a_failure_in_start_up_is_early_and_within_the_imports_or_before_the_worker_is_ready(
    lived_s: float | None, ready: bool | None, importing: bool, startup: bool
) -> None:
    """Early is within 30 s; a script that does not report that it is ready starts up until its imports are done."""
    assert restart_policy.in_startup(Policy(), lived_s, ready, importing=importing) is startup


@pytest.mark.parametrize(
    ("codes", "exit_code", "forbidden"),
    [
        (None, 93, True),
        (None, 1, False),
        (None, -93, False),  # a signal is no exit code of the script
        ({3, 4}, 4, True),
        ({3, 4}, 93, False),
        (set(), 93, False),
    ],
)
def test_only_listed_exit_codes_forbid_a_restart(codes: set[int] | None, exit_code: int, forbidden: bool) -> None:
    """93, unless others are configured."""
    rules = Policy() if codes is None else Policy(no_restart_codes=frozenset(codes))
    assert restart_policy.forbids_restart(rules, exit_code) is forbidden
