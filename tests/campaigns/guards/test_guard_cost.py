"""The measurement of what all guards cost; `make guard-cost` makes it in full."""

from __future__ import annotations

from pathlib import Path

import pytest

from campaigns.guards import guard_cost
from campaigns.guards.guard_cost import Ran
from support.outside.web_server import web_server


def ran(step_s: float, more_s: float, agent_s: float) -> Ran:
    return Ran([step_s + more_s] * 9, [step_s] * 9, step_s + more_s, step_s, 10.0, agent_s)


@pytest.mark.parametrize(("more_s", "agent_s", "met"), [(4e-6, 1.01, True), (6e-6, 1.01, False), (0.0, 1.2, False)])
def test_the_goal_is_missed_by_the_workers_part_or_by_the_agents(more_s: float, agent_s: float, met: bool) -> None:
    """Half a percent of a step of 1 ms is 5 us, and of 10 s on two cores 0.1 s."""
    lines, found = guard_cost.table([ran(1e-3, 0.0, 1.0)] * 4, [ran(1e-3, more_s, agent_s)] * 4)
    assert found is met
    assert any(f"{1e5 * more_s:+.2f} % (epochs beside epochs)" in line for line in lines)


def test_a_slowdown_that_no_part_explains_misses_the_goal() -> None:
    """Such as an agent that takes the processor at the wrong time: all steps of the runs with guards are slower."""
    lines, met = guard_cost.table([ran(1e-3, 0.0, 1.0)] * 4, [ran(1.1e-3, 0.0, 1.0)] * 4)
    assert not met
    assert lines[-1] == "runs beside runs miss the goal, beyond their noise"


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_digits_job_is_timed_with_all_guards_on(tmp_path: Path) -> None:
    """Every other epoch behind the warm-up shows its steps: four of eight, 22 lengths each, of two ranks."""
    with web_server() as server:
        flags = guard_cost.guards(tmp_path, server)
        found = guard_cost.run(tmp_path, 10, flags, f"http://127.0.0.1:{server.port}")
        told = [body["title"] for body in server.bodies]
    assert (len(found.shown_s), len(found.hidden_s)) == (176, 176)
    assert found.agent_s > 0
    assert told, "the agent told nobody of its end"
