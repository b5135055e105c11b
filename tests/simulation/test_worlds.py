"""Two worlds: workers of two rounds at once, in jobs whose nodes are cut off, frozen or suspended."""

from __future__ import annotations

from elastic_agent.agent.lifecycle.restart_policy import Policy
from simulation import run
from simulation.schedules.faults import Fault
from simulation.schedules.scenario import Founder, Pace, Scenario
from simulation.world.job import Job
from simulation.world.workers import Habit

ALONE = Scenario(
    seed=0,
    job=Job(min_nodes=1, max_nodes=1, restarts=Policy(max_restarts=1), last_call_timeout_s=1.0, join_timeout_s=60.0),
    habit=Habit(work_s=60.0),
    pace=Pace(0.001, 0.002, 0.01),
    store="etcd",
    founders=(Founder("n0", 0.0, 1), Founder("n1", 1.0, 1)),
    faults=(Fault(0, 5.0, "cut", 0.0, 0.0, 25.0),),
)
"""The only member of a round is cut off from the store, and a spare waits."""


def test_workers_of_two_rounds_are_seen() -> None:
    """A node that is cut off works on for store_grace beside the round that began without it: a known defect."""
    assert run.play_scenario(ALONE).checkers.worlds.met
