"""Play seeds. A seed's job runs until every agent has ended; then its outcome is judged, and a failure made small."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator

from .checks import invariants
from .checks.checkers import Violation
from .checks.costs import InDoubt
from .schedules import build, draw
from .schedules.scenario import Pace, Scenario
from .stores.shared import SharedEtcd
from .world.world import World

MOST_EVENTS = 400_000
"""More events than the job of any seed has, but for one of many nodes; with more it repeats itself without time
passing."""
MOST_EVENTS_A_NODE = 40_000

DRAIN_S = 400.0
"""After the last agent ended, until the last message that was under way must have been dropped."""


class SeedFailed(AssertionError):
    """An invariant broke, or a machine raised. The message has the command that replays it."""

    def __init__(self, scenario: Scenario, at: float, error: Exception) -> None:
        again = f"PYTHONPATH=.typing python -m tests.simulation --seed {scenario.seed}"
        again = f"{again} --nodes {scenario.nodes}" if scenario.nodes else f"make sim SEED={scenario.seed}, or {again}"
        super().__init__(f"seed {scenario.seed} at {at:.3f} s: {error}\nsee it with its trace: {again}")
        self.scenario = scenario
        self.what = (
            f"{type(error).__name__}: {str(error).split(';')[0]}" if isinstance(error, Violation) else repr(error)
        )
        """Which invariant broke, without details: what stays the same while the failure is made small."""


def play(seed: int, log: Callable[[float, str], None] | None = None, nodes: int = 0) -> World:
    """One job, to its end; `nodes` as in `draw.scenario`. Raises SeedFailed."""
    return play_scenario(draw.scenario(seed, nodes), log)


def play_scenario(scenario: Scenario, log: Callable[[float, str], None] | None = None) -> World:
    """As `play`, of a scenario that may be a part of its seed's."""
    if log is None:
        try:
            return _play(scenario, None, time.perf_counter)
        except InDoubt:
            pass
    return _play(scenario, log, time.thread_time)


def _play(scenario: Scenario, log: Callable[[float, str], None] | None, clock: Callable[[], float]) -> World:
    world = build.world(scenario, log)
    world.clock = clock
    try:
        _to_the_end(world)
        ended = world.shared_store
        if scenario.again and isinstance(ended, SharedEtcd) and ended.outcome is not None:
            first, world = world, build.world(scenario, log, world)
            world.clock = clock
            _to_the_end(world)
            world.reached.merge(first.reached)
    except InDoubt:
        raise
    except Exception as error:
        raise SeedFailed(scenario, world.now, error) from error
    return world


def _to_the_end(world: World) -> None:
    with world.playing():
        _run(world)


def _run(world: World) -> None:
    job, truth = world.job, world.checkers
    world.most_events = max(MOST_EVENTS, MOST_EVENTS_A_NODE * job.max_nodes)
    world.run(draw.FAULTS_END_S + 25.0)
    patience_s = 3 * (job.join_timeout_s + job.exit_barrier_s + job.grace_s + 40.0)
    # Counted anew from each failure of a worker: failures use budgets up, and how many may happen is another invariant.
    while not world.over and world.now < (ends := max(truth.last_fault, truth.last_failure) + patience_s):
        world.run(ends, until_over=True)
    left = [f"{n.ident} is {n.state.phase.value}: {n.state.because}" for n in world.nodes.values() if not n.done]
    world.checkers.need(world.over, invariants.ENDING, "; ".join(left))
    world.run(world.now + DRAIN_S)
    world.checkers.need(not world.waiting, invariants.DRAINED, f"{world.waiting} events are still to come")


def smallest(failed: SeedFailed) -> SeedFailed:
    """The same failure with as few faults and nodes as still lead to it: they are dropped one by one."""
    while (smaller := next(_still_failing(failed), None)) is not None:
        failed = smaller
    lines = "\n".join(failed.scenario.lines())
    small = SeedFailed(failed.scenario, 0.0, failed)
    small.args = (f"{failed}\nas small as it gets:\n{lines}",)
    small.what = failed.what
    return small


def _still_failing(failed: SeedFailed) -> Iterator[SeedFailed]:
    for less in _with_less(failed.scenario):
        try:
            play_scenario(less)
        except SeedFailed as smaller:
            if smaller.what == failed.what:
                yield smaller


def _with_less(scenario: Scenario) -> Iterator[Scenario]:
    """Everything that is this scenario with one thing fewer, or simpler."""
    for drop in reversed(scenario.faults):
        yield dataclasses.replace(scenario, faults=tuple(each for each in scenario.faults if each is not drop))
    for gone in scenario.founders[:0:-1]:
        yield dataclasses.replace(scenario, founders=tuple(each for each in scenario.founders if each is not gone))
    if scenario.again:
        yield dataclasses.replace(scenario, again=False)
    if scenario.echo_chance:
        yield dataclasses.replace(scenario, echo_chance=0.0)
    quick = Pace(0.001, 0.002, 0.01)
    if scenario.pace != quick:
        yield dataclasses.replace(scenario, pace=quick)
