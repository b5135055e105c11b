"""How jobs and nodes end that are asked to leave as their workers finish."""

from __future__ import annotations

import random

import pytest

from elastic_agent.agent.lifecycle.restart_policy import Policy
from simulation.script import Script
from simulation.world.job import Delays, Job
from simulation.world.workers import Habit, Nursery
from simulation.world.world import World


def test_a_job_whose_last_nodes_leave_as_their_workers_finish_has_succeeded() -> None:
    """Each record says both at once: it is not thrown away as that of a node that stands for nothing any more."""
    script = Script()
    script.perform("job 2:2 settle=10")
    for name in "ab":
        script.world.join(name, 1, Habit(saves_s=5.0), None)
    steps = ["wait 5", "leave a", "leave b", "workers a finish", "workers b finish", "wait 20"]
    lines = [line for step in steps for line in script.perform(step)]
    assert any("round 1 closed succeeded" in line for line in lines)
    assert not any("round 2" in line or "abandoned" in line for line in lines)


def _linger_long(nursery: Nursery) -> None:
    nursery.leftovers, nursery.leftovers_stubborn = True, False
    nursery.later(1000.0, nursery._leftovers_end, nursery.round)


@pytest.mark.parametrize("asked_first", [True, False])
def test_a_node_that_leaves_does_not_wait_for_what_its_workers_left_behind(
    monkeypatch: pytest.MonkeyPatch, asked_first: bool
) -> None:
    """Whichever comes first, the request or the end of the workers."""
    monkeypatch.setattr(Nursery, "_linger", _linger_long)
    lines: list[str] = []
    job = Job(min_nodes=1, max_nodes=1, leftover_s=300.0, settle_s=10.0)
    world = World(job, random.Random(0), Delays(), lambda now, line: lines.append(line))
    world.join("a", 1, Habit(lingers=1.0, saves_s=5.0), None)
    world.run(40.0)
    node = world.nodes["a"]
    if asked_first:
        node.signal()
    node.nursery.exit(node.nursery.live[0], 0)
    if not asked_first:
        node.signal()
    world.run(50.0)
    assert any(line.startswith("a exits") for line in lines)


def test_a_failure_elsewhere_ends_the_time_of_what_finished_workers_left_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The node would count as lost, the failure cost no restart, and what is left run beside the next round."""
    monkeypatch.setattr(Nursery, "_linger", _linger_long)
    lines: list[str] = []
    job = Job(min_nodes=1, max_nodes=2, restarts=Policy(1), leftover_s=600.0)
    world = World(job, random.Random(0), Delays(), lambda now, line: lines.append(line))
    for name in "ab":
        world.join(name, 1, Habit(lingers=1.0), None)
    world.run(40.0)
    finished, fails = world.nodes["a"].nursery, world.nodes["b"].nursery
    finished.exit(finished.live[0], 0)
    world.run(45.0)
    fails.exit(fails.live[0], 1)
    world.run(60.0)
    assert not finished.leftovers
    assert any(line.startswith("coordinator: round 2 running") for line in lines)
    assert not any("was lost" in line for line in lines)
    assert world.nodes["b"].state.restarts_used == 1
