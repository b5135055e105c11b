"""Seeded simulation of whole jobs: the production machines with a simulated network, clock and processes.

SEED=7 plays one seed with its trace (`-s` shows it), SEEDS=20000 plays that many.
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
import os
import random

import pytest

from elastic_agent.agent.lifecycle import machine
from elastic_agent.agent.lifecycle.restart_policy import Policy
from elastic_agent.agent.lifecycle.state import Phase
from elastic_agent.rendezvous.coordinator import machine as coordinator
from elastic_agent.rendezvous.records import Outcome
from simulation import campaign, run
from simulation.checks import coverage, invariants
from simulation.checks.coverage import Reached
from simulation.mutants import search
from simulation.mutants.catalogue import MUTANTS
from simulation.mutants.escapes import ESCAPES
from simulation.mutants.planting import Misplaced, Mutant
from simulation.schedules import draw, files
from simulation.schedules.failures import all_fail
from simulation.schedules.scenario import Founder, Pace, Scenario
from simulation.world.job import Delays, Job
from simulation.world.workers import Habit
from simulation.world.world import World

SEEDS = int(os.environ.get("SEEDS", str(coverage.ENOUGH)))
ONE = os.environ.get("SEED", "")
COUNTED = pytest.mark.skipif(SEEDS < coverage.ENOUGH or bool(ONE), reason="too few seeds to reach every situation")


@pytest.fixture(scope="module")
def reached() -> Reached:
    """What all seeds together reached; fails at the first that breaks an invariant."""
    if ONE:
        return run.play(int(ONE), lambda now, what: print(f"{now:9.3f}  {what}")).reached
    played = campaign.play(0, SEEDS)
    assert not played.failed, "\n".join(played.failed)
    return played.reached


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_every_seed_keeps_every_invariant_and_ends(reached: Reached) -> None:
    """No fault of a job breaks an invariant after any event, and once faults stop every agent ends."""
    assert reached.counts


@COUNTED
def test_seeds_reach_every_situation(reached: Reached) -> None:
    """A run that never reaches a situation does not test it."""
    assert not coverage.missing(reached)


@COUNTED
def test_every_change_of_phase_is_reached(reached: Reached) -> None:
    """A listed change of phase that no seed reaches is untested; one that is not listed raises at once."""
    # Needs a second server, which knows that the job is elsewhere: test_c10d_one_endpoint.py has it.
    elsewhere = {(Phase.JOINING, Phase.CONNECTING), (Phase.STOPPING, Phase.CONNECTING)}
    assert reached.agent_edges == set(machine.EDGES) - elsewhere
    assert reached.coordinator_edges == set(coordinator.EDGES)


def test_every_promise_is_checked() -> None:
    """Each of S1-S14 and L1-L9 has invariants that are checked, and no two invariants are the same sentence."""
    assert set(invariants.ANSWERS) == {f"S{n}" for n in range(1, 15)} | {f"L{n}" for n in range(1, 10)}
    sentences = [value for name, value in vars(invariants).items() if name.isupper() and isinstance(value, str)]
    assert len(set(sentences)) == len(sentences)
    assert {each for answers in invariants.ANSWERS.values() for each in answers} <= set(sentences)


def _trace(scenario: Scenario) -> list[str]:
    lines: list[str] = []
    run.play_scenario(scenario, lambda now, what: lines.append(f"{now:.6f} {what}"))
    return lines


def _some_of_each_store() -> list[Scenario]:
    drawn = [draw.scenario(seed) for seed in range(60)]
    return [scenario for store in set(draw.STORES) for scenario in [s for s in drawn if s.store == store][:6]]


def test_a_seed_replays_exactly() -> None:
    """The same seed leads to the same trace, line by line, or a failure could not be examined."""
    for scenario in _some_of_each_store():
        assert _trace(scenario) == _trace(scenario)


def test_clocks_may_be_off_by_anything() -> None:
    """No node's clock is compared with another's: however far they are apart, the trace is the same."""
    for scenario in _some_of_each_store():
        traces = [_trace(dataclasses.replace(scenario, skew_s=skew_s)) for skew_s in (0.0, 86400.0 * 365)]
        assert [line.split(" ", 1)[1] for line in traces[0]] == [line.split(" ", 1)[1] for line in traces[1]]


def test_many_nodes_at_once_cost_few_writes() -> None:
    """N joins cost O(N) small writes and a handful of announcements, not N of them."""
    size = 64
    world = World(Job(min_nodes=size, max_nodes=size), random.Random(0), Delays())
    for index in range(size):
        world.join(f"n{index}")
    world.run(10.0)
    assert {node.state.phase for node in world.nodes.values()} == {Phase.WORKING}
    assert max(node.state.seq for node in world.nodes.values()) == 2
    assert world.rendezvous is not None
    assert world.rendezvous.version == 2


@pytest.mark.parametrize("store", ["c10d", "etcd"])
def test_a_job_of_128_nodes_fails_and_restarts_through_the_drivers(store: str) -> None:
    """1,024 workers fail or are stopped, and all run again. What the coordinator spends, and what is written, stays
    within bounds that do not depend on the number of exits."""
    world = run.play_scenario(all_fail(128, 8, store))
    assert world.rendezvous is not None
    assert (world.rendezvous.outcome, world.rendezvous.number) == (Outcome.SUCCEEDED, 2)
    costs = world.checkers.costs
    assert 0 < costs.largest_announcement < 2 * 1024  # its 128 members are on pages
    assert 0 < costs.largest_record < 1024
    assert 0.0 < costs.spent_s < costs.allowed_s


@pytest.mark.parametrize("name", files.FOUND)
def test_schedules_that_were_found_stay_mended(name: str) -> None:
    """Each of these once led to a violation, and the machines, the drivers or the invariants were mended."""
    run.play_scenario(files.FOUND[name])


def test_schedules_are_files_and_back() -> None:
    """What is read from a file is what is written to it, for the schedules kept and for any that a seed draws."""
    for name, scenario in files.FOUND.items():
        path = files.path_of(name)
        assert path.read_text() == files.text(name, scenario)
        assert files.read(path) == (name, scenario)
    for scenario in map(draw.scenario, range(200)):
        assert files.parse(files.text("any", scenario)) == ("any", scenario)


def test_a_job_may_last_as_long_as_its_budgets() -> None:
    """Once faults stop, every agent ends in time, counted from the last failure of a worker: a job of many nodes may go
    through many rounds before the first of them has no restart left."""
    job = Job(max_nodes=8, restarts=Policy(max_restarts=50), grace_s=6.0, join_timeout_s=15.0, exit_barrier_s=4.0)
    habit = Habit(work_s=1.0, start_fails=0.5, ignores_term=1.0)
    founders = tuple(Founder(f"n{index}", 0.0, 2, None) for index in range(job.max_nodes))
    quick = Pace(0.001, 0.002, 0.01)
    world = run.play_scenario(Scenario(0, job, habit, quick, 0.0, False, "", 0.0, founders, ()))
    assert world.rendezvous is not None
    assert world.rendezvous.outcome is Outcome.FAILED
    assert world.rendezvous.number > 50
    assert world.checkers.last_failure > 250.0


PAGED = 0
"""A seed whose job, with many nodes, has a round of more than 64."""


def test_a_seed_is_played_with_as_many_nodes_as_asked_for() -> None:
    """Behind the production drivers, where things grow with the nodes: announcements on pages, reads in parts."""
    asked = draw.scenario(9, 1000)
    assert (asked.job.max_nodes, asked.seed, asked.store in ("c10d", "etcd")) == (1000, 9, True)
    assert len(asked.founders) >= 999
    world = run.play(PAGED, nodes=80)
    assert world.reached.counts["a node read its place from a page"] >= 80
    failed = run.SeedFailed(asked, 0.0, ValueError("boom"))
    assert "python -m tests.simulation --seed 9 --nodes 1000" in str(failed)


def test_a_failing_seed_is_made_small() -> None:
    """A violation is printed without faults and nodes that it does not need: this bug needs no fault and few nodes."""
    bug = next(each for each in MUTANTS if each.name == "rank offsets count nodes")
    with bug.planted():
        failed = next(failed for seed in range(100) if (failed := _violation(seed)) and failed.scenario.faults)
        small = run.smallest(failed)
    assert small.what == failed.what
    assert not small.scenario.faults
    assert str(failed) in str(small) or "as small as it gets" in str(small)


def _violation(seed: int) -> run.SeedFailed | None:
    try:
        run.play(seed)
    except run.SeedFailed as failed:
        return failed
    return None


def test_every_bug_can_be_planted() -> None:
    """Every bug has its place in the code and changes something there; no two have one name."""
    for bug in MUTANTS:
        with bug.planted():
            pass
        if isinstance(bug, Mutant):
            held, changed = map(ast.dump, bug.changed())
            assert held != changed, bug.name
    assert len({bug.name for bug in MUTANTS}) == len(MUTANTS)
    assert set(ESCAPES) <= {bug.name for bug in MUTANTS}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_most_planted_bugs_are_found_at_once() -> None:
    """25 need no more than a few seeds; `make mutants` searches for all."""
    found = (bug.name for bug in MUTANTS if search.search(bug, seeds=20).failed is not None)
    caught = list(itertools.islice(found, 25))
    assert len(caught) == 25, caught


QUICK = (
    "all exits are compared with each other at each event",
    "the log of notifications is never compacted",
    "a follower writes at each wait",
    "rank offsets count nodes",
    "no node is charged",
    "closed on a connection error",
    "a broken session is used again",
)


@pytest.mark.parametrize("bug", [each for each in MUTANTS if each.name in QUICK], ids=lambda bug: bug.name)
def test_planted_bugs_are_found(bug: Mutant | Misplaced) -> None:
    """An invariant that no bug can break checks nothing: seven bugs here, all of them in `make mutants`."""
    assert search.search(bug, seeds=1000).failed is not None
