"""Two worlds: workers of two rounds at once, in jobs whose nodes are cut off, frozen or suspended."""

from __future__ import annotations

import dataclasses

import pytest

from elastic_agent.agent.lifecycle.restart_policy import Policy
from simulation import run
from simulation.schedules.faults import Fault
from simulation.schedules.scenario import Founder, Pace, Scenario
from simulation.world.job import Job
from simulation.world.workers import Habit
from simulation.world.world import World

ALONE = Scenario(
    seed=0,
    job=Job(min_nodes=1, max_nodes=1, restarts=Policy(max_restarts=1), last_call_timeout_s=1.0, join_timeout_s=200.0),
    habit=Habit(work_s=60.0),
    pace=Pace(0.001, 0.002, 0.01),
    store="etcd",
    founders=(Founder("n0", 0.0, 1), Founder("n1", 1.0, 1)),
    faults=(Fault(0, 5.0, "cut", 0.0, 0.0, 25.0),),
)
"""The only member of a round is cut off from the store, and a spare waits."""


def test_workers_of_two_rounds_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a fence, a node that is cut off works on for store_grace beside the round that began without it."""
    monkeypatch.setattr(World, "fences", False)
    with pytest.raises(run.SeedFailed, match="no worker of one round runs beside a worker of another"):
        run.play_scenario(ALONE)


def test_a_spare_waits_for_the_only_node_of_a_round() -> None:
    """Nobody can say whether it is dead: the round on the spare begins when its workers have surely ended."""
    lines: list[str] = []
    alone = dataclasses.replace(ALONE, faults=(dataclasses.replace(ALONE.faults[0], lasts_s=100.0),))
    world = run.play_scenario(alone, lambda now, what: lines.append(f"{now:.0f} {what}"))
    assert world.checkers.rounds.newest == 2
    waits = "waiting up to 70 s until n0, which is dead or cut off, has surely ended its workers of round 1"
    assert any(waits in line for line in lines)
    (began,) = [float(line.split()[0]) for line in lines if "n1 starts ranks" in line]
    assert 75.0 <= began <= 90.0


def test_a_member_that_is_cut_off_ends_its_workers_before_the_next_round() -> None:
    """Its peer, which the store answers, has said by its record that it lets no worker of the round run on."""
    lines: list[str] = []
    pair = dataclasses.replace(ALONE, job=dataclasses.replace(ALONE.job, max_nodes=2))
    world = run.play_scenario(pair, lambda now, what: lines.append(f"{now:.3f} {what}"))
    assert world.reached.counts["workers were fenced"] == 1
    began = [float(line.split()[0]) for line in lines if "n1 starts ranks" in line]
    assert 5.0 + 0.65 * 5.0 - 1.0 < began[1] < 5.0 + 2 * 5.0


def test_an_outage_of_the_store_for_all_disturbs_nobody() -> None:
    """Shorter than store_grace: every witness lets the workers run on."""
    pair = dataclasses.replace(
        ALONE,
        job=dataclasses.replace(ALONE.job, min_nodes=2, max_nodes=2),
        faults=(Fault(0, 5.0, "store_stalls", 0.0, 0.0, 75.0),),
    )
    world = run.play_scenario(pair)
    assert world.checkers.rounds.newest == 1
    assert "workers were fenced" not in world.reached.counts
    assert world.reached.counts["a witness let workers run on"] > 10


@pytest.mark.parametrize(("hosts", "at_least_s", "at_most_s"), [(1, 5.0, 15.0), (0, 70.0, 90.0)])
def test_the_same_command_again_waits_for_what_no_agent_sees(hosts: int, at_least_s: float, at_most_s: float) -> None:
    """On one host its agents see that no process of those before is left; from other hosts nobody could."""
    lines: list[str] = []
    killed = dataclasses.replace(ALONE, hosts=hosts, faults=(Fault(0, 5.0, "rerun", 0.0, 0.0, 0.1),))
    world = run.play_scenario(killed, lambda now, what: lines.append(f"{now:.3f} {what}"))
    began = [float(line.split()[0]) for line in lines if " starts ranks" in line]
    assert at_least_s <= began[1] - 5.0 <= at_most_s
    assert ("an agent saw that no process of another was left" in world.reached.counts) == bool(hosts)
