"""The search for planted bugs: schedules are played until an invariant breaks, or a machine or the store refuses."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from elastic_agent.agent.lifecycle import machine as agent
from elastic_agent.rendezvous.c10d import keys as c10d_keys
from elastic_agent.rendezvous.c10d import notifications, opening
from elastic_agent.rendezvous.c10d import store as c10d
from elastic_agent.rendezvous.coordinator import fencing as coordinator_fencing
from elastic_agent.rendezvous.coordinator import machine as coordinator
from elastic_agent.rendezvous.coordinator import standing, takeover
from elastic_agent.rendezvous.driver import connection, driver, events, fencing, health, inbound, term, threads
from elastic_agent.rendezvous.etcd import election

from .. import run
from ..checks.checkers import Violation
from ..checks.coverage import MANY
from ..schedules import draw, files
from ..schedules.failures import all_fail
from ..schedules.scenario import Scenario
from ..stores.driver_link import DriverDied
from .planting import Misplaced, Mutant

DRIVERS = {
    module.__name__
    for module in (
        driver,
        events,
        term,
        threads,
        connection,
        election,
        health,
        c10d,
        c10d_keys,
        opening,
        notifications,
        inbound,
        takeover,
        standing,
        fencing,
        coordinator_fencing,
    )
}
"""Modules whose bugs can only show in worlds with production drivers."""

SEEDS = 4000
"""A bug must be found within so many, or by a schedule in `schedules/found`."""


SLOW = all_fail(128, 8, "")
"""Where a bug costs time."""


class By(Enum):
    """What caught a bug."""

    INVARIANT = "an invariant broke"
    REFUSAL = "a machine or the store refused"


@dataclass
class Search:
    """The result of a search for a bug."""

    failed: run.SeedFailed | None = None
    """The first violation that the bug led to; None if there was none."""
    by: By | None = None
    played: int = 0
    crashed: run.SeedFailed | None = None
    """The first seed in which the changed code raised an error of its own: the search goes on."""


def search(mutant: Mutant | Misplaced, seeds: int = SEEDS) -> Search:
    """Play until the bug is caught, first the schedules in which that is likely and cheap.

    Raises SeedFailed where the seed that catches it fails without the bug, too: that says nothing about the bug."""
    drawn = _drawn(seeds)
    if isinstance(mutant, Mutant) and mutant.slow:
        drawn = [SLOW]
    below = isinstance(mutant, Mutant) and mutant.function().__module__ in DRIVERS
    came = Search()
    with mutant.planted():
        for scenario in sorted(drawn, key=lambda scenario: bool(scenario.store) != below):
            came.played += 1
            try:
                run.play_scenario(scenario)
            except run.SeedFailed as failed:
                came.by = _caught(failed)
                if came.by is not None:
                    came.failed = failed
                    break
                came.crashed = came.crashed or failed
    if came.failed is not None:
        run.play_scenario(came.failed.scenario)
    return came


def _caught(failed: run.SeedFailed) -> By | None:
    """What caught the bug; None if the changed code raised an error of its own, which says nothing about the checks."""
    error = failed.__cause__
    if isinstance(error, Violation):
        return By.INVARIANT
    fenced = isinstance(error, DriverDied) and error.__cause__ is None
    return By.REFUSAL if fenced or isinstance(error, (agent.IllegalEvent, coordinator.IllegalEvent)) else None


@functools.lru_cache(maxsize=2)
def _drawn(seeds: int) -> list[Scenario]:
    """Without the largest jobs: each takes as long as a hundred others."""
    drawn = [*files.FOUND.values(), *(draw.scenario(seed) for seed in range(seeds))]
    return [scenario for scenario in drawn if scenario.job.max_nodes < MANY]


def report(mutants: Sequence[Mutant | Misplaced], escapes: Mapping[str, str]) -> int:
    """Plant each and print what caught it; returns 0 if exactly the `escapes` were not caught."""
    caught: dict[By, int] = dict.fromkeys(By, 0)
    escaped: list[str] = []
    wrong = 0
    for mutant in mutants:
        began = time.process_time()
        came = search(mutant)
        if came.failed is not None and came.by is not None:
            caught[came.by] += 1
            wrong += mutant.name in escapes
            by = f"{came.by.value} in seed {came.failed.scenario.seed} ({came.played} played): {came.failed.what}"
        else:
            why = escapes.get(mutant.name, "")
            wrong += not why
            crashed = f"; crashed: {came.crashed.what}" if came.crashed is not None else ""
            escaped.append(f"{mutant.name}: {why or 'WHY?'}{crashed}")
            by = f"escaped {came.played} seeds{crashed}"
        sys.stdout.write(f"{time.process_time() - began:6.1f} s  {mutant}: {by}\n")
        sys.stdout.flush()
    kinds = ", ".join(f"{by.value} {number} times" for by, number in caught.items())
    sys.stdout.write(f"planted {len(mutants)}, caught {sum(caught.values())} ({kinds}), escaped {len(escaped)}\n")
    sys.stdout.writelines(f"escaped: {each}\n" for each in escaped)
    return 1 if wrong else 0
