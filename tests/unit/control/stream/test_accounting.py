"""Which events of an agent begin which bucket of its workers' seconds, and whom an end of a round costs."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_agent.agent.lifecycle.state import Phase
from elastic_agent.agent.report import AgentEvent
from elastic_agent.agent.steps.seen import Shown, WorkersSeen
from elastic_agent.control.accounting import TOLD_MAX, Accounting
from elastic_agent.rendezvous.failures import STOOD_STILL, Ending, EndKind, WorkerFailure
from elastic_agent.rendezvous.records import Member

HANG = WorkerFailure("b:1", "b", 0, 0, -9, 1, sign_because=STOOD_STILL)
MEMBERS = (Member("0a", "a:1", 0, 0, 1), Member("0b", "b:1", 1, 1, 1))


def moved(at_s: float, phase: Phase, round_number: int, **more: Any) -> AgentEvent:
    return AgentEvent("b:1", phase, "so", round_number, "so", at_s, **more)


def seen(at_s: float, number: int, shown: Shown, *, began_s: float, started_s: float, **more: Any) -> WorkersSeen:
    return WorkersSeen(at_s, number, 1, 0, began_s, {0: started_s}, more.get("exited", {}), (shown,))


def played(*happened: AgentEvent | WorkersSeen, until_s: float) -> dict[str, float]:
    """Seconds by bucket, without the empty ones."""
    account = Accounting(0.0)
    for each in happened:
        account.follow(each)
    found = account.message(until_s, "b:1")
    assert sum(each.length_s for each in found.buckets) == pytest.approx(until_s)
    return {each.bucket: each.length_s for each in found.buckets if each.length_s}


@pytest.mark.parametrize(
    ("waits", "bucket"),
    [("nodes", "waiting for nodes"), ("place", "waiting for nodes"), ("pause", "paused"), ("", "re-forming")],
)
def test_what_a_joining_node_waits_for_is_its_bucket(waits: str, bucket: str) -> None:
    assert played(moved(1.0, Phase.JOINING, 0, waits=waits), until_s=4.0) == {"starting": 1.0, bucket: 3.0}


def test_a_spare_counts_as_many_workers_as_it_has_room_for() -> None:
    """Before it has a place, no round shows how many they are; in one, the round does."""
    account = Accounting(0.0)
    account.follow(moved(1.0, Phase.JOINING, 0, waits="place"))
    found = account.message(4.0, "b:1", 8)
    assert (found.workers, sum(each.length_s for each in found.buckets)) == (8, 32.0)
    account.follow(seen(6.0, 1, Shown(), began_s=5.0, started_s=5.5))
    assert account.message(8.0, "b:1", 8).workers == 1


def test_a_hang_costs_from_the_last_step_on_and_a_round_that_is_finished_costs_nothing() -> None:
    """Two rounds: the first is ended as its worker stands still; in the second it exits 0, and waits for others."""
    run = Shown(began_s=5.0, useful_s=2.0)
    again = Shown(began_s=18.0, useful_s=2.0)
    assert played(
        moved(1.0, Phase.JOINING, 0, waits="nodes"),
        moved(3.0, Phase.WORKING, 1),
        seen(10.0, 1, run, began_s=3.0, started_s=4.0),
        moved(10.0, Phase.STOPPING, 1, failure=HANG),
        seen(11.0, 1, run, began_s=3.0, started_s=4.0, exited={0: (11.0, -9)}),
        moved(12.0, Phase.JOINING, 1, waits="pause"),
        moved(14.0, Phase.JOINING, 1, waits=""),
        moved(17.0, Phase.WORKING, 2),
        seen(20.0, 2, again, began_s=17.0, started_s=17.5, exited={0: (20.0, 0)}),
        moved(20.0, Phase.STOPPING, 2, finished=True),
        moved(21.0, Phase.FINISHED, 2, finished=True),
        moved(24.0, Phase.ENDING, 2),
        until_s=25.0,
    ) == {
        "starting": 1.0 + 1.0 + 0.5,
        "waiting for nodes": 2.0,
        "importing": 1.0 + 0.5,
        "useful steps": 2.0 + 2.0,
        "hanging": 4.0,
        "re-forming": 1.0 + 3.0,
        "paused": 2.0,
        "waiting for peers": 5.0,
    }


def test_of_many_ends_of_rounds_the_dear_ones_are_told_and_the_sum_of_the_others() -> None:
    """So an account does not grow with the number of rounds, and its sums are right all the same."""
    account, ended, at_s, cost_s = Accounting(0.0), None, 0.0, 0.0
    for number in range(1, 1 + 2 * TOLD_MAX):
        account.follow(moved(at_s, Phase.WORKING, number, members=MEMBERS[1:], ended=ended))
        account.follow(seen(at_s, number, Shown(), began_s=at_s, started_s=at_s))
        ended = Ending(number, EndKind.DEPARTURE, "a:1 was lost")
        account.follow(moved(at_s + 1.0, Phase.JOINING, number, members=MEMBERS[1:], ended=ended))
        at_s, cost_s = at_s + 1.0 + number, cost_s + number
    lost = account.message(at_s, "b:1").lost
    assert [each.round for each in lost] == [*range(TOLD_MAX + 1, 1 + 2 * TOLD_MAX), 0]
    assert lost[-1].kind == "departure"
    assert sum(each.length_s for each in lost) == pytest.approx(cost_s)


def test_a_round_that_a_node_left_is_charged_to_the_node_that_is_missing_in_the_next() -> None:
    """Who left is only known with the next round; the start, and its imports, have cost nobody."""
    left = Ending(1, EndKind.DEPARTURE, "a:1 was lost")
    account = Accounting(0.0)
    for each in (
        moved(1.0, Phase.WORKING, 1, members=MEMBERS),
        seen(2.0, 1, Shown(), began_s=1.0, started_s=1.5),
        moved(4.0, Phase.JOINING, 1, members=MEMBERS, ended=left),
        moved(6.0, Phase.WORKING, 2, members=MEMBERS[1:], ended=left),
    ):
        account.follow(each)
    lost = account.message(6.0, "b:1").lost
    assert [(each.round, each.kind, each.node, each.because) for each in lost] == [
        (0, "start", "", ""),
        (1, "departure", "a:1", "a:1 was lost"),
    ]
    assert lost[1].length_s == pytest.approx(2.0)
