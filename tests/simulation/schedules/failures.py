"""Schedules in which thousands of workers fail or are stopped: what exits cost that are compared with each other shows
in none that a seed draws."""

from __future__ import annotations

from elastic_agent.agent.lifecycle.restart_policy import Policy

from ..world.job import Job
from ..world.workers import Habit
from .faults import Fault
from .scenario import Founder, Pace, Scenario


def all_fail(nodes: int, workers: int, store: str) -> Scenario:
    """A worker of one node fails, and of it one of each other node; their peers take their time to stop. `workers`: of
    each node."""
    job = Job(min_nodes=nodes, max_nodes=nodes, restarts=Policy(max_restarts=1), grace_s=6.0, join_timeout_s=40.0)
    founders = tuple(Founder(f"n{index}", index / 1000, workers) for index in range(nodes))
    first = Fault(0, 2.0, "worker_fails", 0.0, 0.0)
    return Scenario(1, job, Habit(work_s=4.0), Pace(0.001, 0.002, 4.0), 1.0, False, store, 0.0, founders, (first,))
