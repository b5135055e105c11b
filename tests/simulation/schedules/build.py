"""From a scenario to a world in which it happens."""

from __future__ import annotations

import random
from collections.abc import Callable

from ..world.job import Delays
from ..world.world import World
from . import faults
from .scenario import Founder, Pace, Scenario

PAGE_MEMBERS = (0, 1, 0, 2, 0)
"""`Conditions.page_members`, by seed: not drawn, as seeds that were found must go on to mean the same."""


class RandomDelays(Delays):
    """Within the bounds of a pace."""

    def __init__(self, rng: random.Random, pace: Pace) -> None:
        self._random = rng.random
        self._local_s, self.network_s, self._dying_s = pace.local_s, pace.network_s, pace.dying_s

    def local(self) -> float:
        return self._random() * self._local_s

    def network(self) -> float:
        return self._random() * self.network_s

    def dying(self) -> float:
        return self._random() * self._dying_s


def world(scenario: Scenario, log: Callable[[float, str], None] | None = None, after: World | None = None) -> World:
    """The world of a scenario, with all its nodes and faults scheduled. `log` takes a time and a line of the trace.
    `after`: the world of its job, which has ended, if it is the same command again."""
    rng = random.Random(scenario.seed ^ (0x5EED if after is None else 0xA6A1))
    delays = RandomDelays(rng, scenario.pace)
    made = World(scenario.job, rng, delays, log, store=scenario.store, skew_s=scenario.skew_s, after=after)
    made.conditions.echo_chance = scenario.echo_chance
    made.conditions.page_members = PAGE_MEMBERS[scenario.seed % len(PAGE_MEMBERS)]
    if scenario.late_bytes:
        made.conditions.late_bytes = random.Random(scenario.seed ^ 0x1A7E)
    made.conditions.reads_first = scenario.reads_first
    made.conditions.hosts = scenario.hosts
    with made.playing():
        for founder in scenario.founders:
            if founder.at_s:
                made.at(founder.at_s, _joins, made, scenario, founder)
            else:
                _joins(made, scenario, founder)
    for fault in scenario.faults:
        faults.schedule(made, scenario, fault)
    return made


def _joins(world: World, scenario: Scenario, founder: Founder) -> None:
    world.checkers.last_fault = world.now
    world.join(founder.name, founder.nproc, scenario.habit, founder.preferred_rank)
