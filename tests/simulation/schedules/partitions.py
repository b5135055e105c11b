"""Jobs whose nodes are cut off, frozen or suspended while workers run for long: two worlds could meet there."""

from __future__ import annotations

import random
from collections.abc import Iterator

from elastic_agent.agent.lifecycle.restart_policy import Policy

from ..world.job import Job
from ..world.workers import Habit
from .faults import Fault
from .scenario import Founder, Pace, Scenario

EVERY, WHICH = 16, 9
"""The seeds of such jobs: those that leave this remainder."""
APART = ("cut", "cut", "partition", "freeze", "suspend", "cut_peers", "cut_peers", "store_stalls", "stall")
HOSTS = (0, 0, 1, 2)
"""As `Scenario.hosts`."""
BESIDE = ("kill", "restart", "worker_fails", "arrive", "leave", "lose_replies")


def is_one(seed: int) -> bool:
    """Whether this seed stands for such a job."""
    return seed % EVERY == WHICH


def scenario(seed: int) -> Scenario:
    """What this seed stands for."""
    rng = random.Random(seed ^ 0x2A0B1D)
    max_nodes = rng.choice((1, 1, 2, 2, 3, 4, 5))
    job = Job(
        min_nodes=rng.randint(1, max_nodes),
        max_nodes=max_nodes,
        restarts=Policy(max_restarts=rng.choice((0, 1, 3))),
        grace_s=rng.choice((0.5, 3.0)),
        join_timeout_s=60.0,
        last_call_timeout_s=1.0,
        quiet_s=rng.choice((0.2, 2.0)),
        store_grace_s=rng.choice((6.0, 12.0, 30.0)),
        exit_barrier_s=rng.choice((4.0, 25.0)),
        connect_timeout_s=10.0,
    )
    spares = rng.choice((0, 1, 1, 2))
    return Scenario(
        seed=seed,
        job=job,
        habit=Habit(work_s=rng.choice((20.0, 60.0)), spread_s=1.0, ignores_term=rng.choice((0.0, 0.4))),
        pace=Pace(rng.choice((0.001, 0.01, 0.3)), rng.choice((0.002, 0.02, 0.3)), rng.choice((0.01, 0.5))),
        store="etcd" if seed // EVERY % 3 else "c10d",
        skew_s=rng.choice((0.0, 1000.0)),
        founders=tuple(Founder(f"n{index}", index * 0.2, 1) for index in range(max_nodes + spares)),
        faults=(*_faults(rng), *_again(seed)),
        hosts=random.Random(seed ^ 0x405).choice(HOSTS),
    )


def _again(seed: int) -> Iterator[Fault]:
    """In some of the jobs all agents are killed in the end, and the same command is started again on their hosts."""
    rng = random.Random(seed ^ 0xA6A1)
    if rng.random() < 0.2:
        yield Fault(9, rng.uniform(10.0, 60.0), "rerun", rng.random(), rng.random(), rng.uniform(0.5, 8.0))


def _faults(rng: random.Random) -> Iterator[Fault]:
    at_s = rng.uniform(3.0, 8.0)
    for number in range(rng.choice((1, 2, 2, 3, 4))):
        kind = rng.choice(APART if number < 2 or rng.random() < 0.6 else BESIDE)
        longest_s = 40.0 if kind != "store_stalls" else 60.0
        lasts_s = rng.choice((rng.uniform(0.5, 8.0), rng.uniform(4.0, longest_s)))
        yield Fault(number, at_s, kind, rng.random(), rng.random(), lasts_s)
        at_s += rng.choice((0.0, rng.uniform(0.0, 1.0), rng.uniform(0.0, 12.0)))
