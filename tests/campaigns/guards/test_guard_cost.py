"""The measurement of what all guards cost; `make guard-cost` makes it in full."""

from __future__ import annotations

from pathlib import Path

import pytest

from campaigns.guards import guard_cost
from campaigns.guards.guard_cost import Ran
from support.outside.web_server import web_server


def ran(step_s: float, more_s: float, agent_s: float) -> Ran:
    """A run of 10 s, with five pairs of epochs."""
    hidden, shown = (step_s, step_s, step_s), (step_s + more_s, step_s + more_s, step_s + more_s)
    return Ran([(hidden, shown)] * 5, 10.0, agent_s, training_s=5.0, agent_training_s=agent_s / 2)


@pytest.mark.parametrize(("more_s", "agent_s", "met"), [(4e-6, 1.01, True), (6e-6, 1.01, False), (0.0, 1.2, False)])
def test_the_goal_is_missed_by_the_workers_part_or_by_the_agents(more_s: float, agent_s: float, met: bool) -> None:
    """Half a percent of a step of 1 ms is 5 us, and of 10 s on two cores 0.1 s."""
    lines, found = guard_cost.table([ran(1e-3, 0.0, 1.0)] * 4, [ran(1e-3, more_s, agent_s)] * 4)
    assert found is met
    assert any(f"workers {1e5 * more_s:+.2f} % and agent {100 * (agent_s - 1) / 20:+.2f} %" in line for line in lines)


def test_more_than_20_us_a_step_misses_the_goal_however_long_steps_are() -> None:
    """21 us are a fifth of a percent of 10 ms."""
    lines, met = guard_cost.table([ran(1e-2, 0.0, 1.0)], [ran(1e-2, 21e-6, 1.0)])
    assert not met
    assert any("a step takes +21.0 us" in line for line in lines)


def test_the_share_of_a_job_that_lasts_leaves_the_start_out() -> None:
    """At rest the agent takes 1 ms a second more: 0.05 % of two cores."""
    rest = Ran([], 20.0, 1.0, 10.0, 0.02), Ran([], 20.0, 1.0, 10.0, 0.03)
    lines, met = guard_cost.table([ran(1e-3, 0.0, 1.0)], [ran(1e-3, 1e-6, 2.0)], rest)
    assert not met
    assert lines[-1] == "in a job that lasts, whose start does not count: 0.15 %"


def test_neighbouring_epochs_are_compared_in_either_order() -> None:
    """The first of four shows its steps, and the last does."""
    epochs = [(1.0,) * 3, (2.0,) * 3, (3.0,) * 3, (4.0,) * 3, (5.0,) * 3]
    assert guard_cost.pairs_of(epochs) == [(epochs[1], epochs[0]), (epochs[2], epochs[3])]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_digits_job_is_timed_with_all_guards_on(tmp_path: Path) -> None:
    """Of twelve epochs four are the warm-up: four pairs of neighbours of each of two ranks."""
    with web_server() as server:
        flags = guard_cost.guards(tmp_path, server)
        found = guard_cost.run(tmp_path, 12, flags, f"http://127.0.0.1:{server.port}")
        told = [body["title"] for body in server.bodies]
    assert len(found.pairs) == 8
    assert all(part > 0 for pair in found.pairs for epoch in pair for part in epoch)
    assert 0 < found.agent_training_s < found.agent_s
    assert 0 < found.training_s < found.wall_s
    assert told, "the agent told nobody of its end"
