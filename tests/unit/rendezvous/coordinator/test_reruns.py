"""Taking over a job that is run again: what the dead have finished or ended decides nothing."""

from __future__ import annotations

import pytest

from elastic_agent.rendezvous.coordinator.events import (
    DeadlineReached,
)
from elastic_agent.rendezvous.records import NodeRecord, NodeState, Outcome, RoundPhase
from support.builders import FAILURE, FINAL, record
from support.rigs.coordinators import LEASE_S, Coordinator, running


def rerun(first: Coordinator, *names: str, **rules: float) -> Coordinator:
    """All agents of `first` were killed. These nodes join; the first of them is elected."""
    first.store.records |= {name: record(name) for name in names}
    return first.successor(names[0], **rules)


def finished(name: str, number: int = 1) -> NodeRecord:
    return record(name, 3, NodeState.FINISHED, number)


def test_a_rerun_inherits_no_finalisation_barrier() -> None:
    """Of the first run one node had finished, and both are dead: the barrier that it began ends nothing."""
    first = running("a", "b", min_nodes=2).publish(finished("b"))
    second = rerun(first, "c", "d", max_nodes=2).read("c", "d")
    assert (second.state.phase, second.state.number, second.state.finishing) == (RoundPhase.RUNNING, 2, False)
    assert [member.node for member in second.state.members] == ["c", "d"]
    second.now += 1000.0
    second.step(DeadlineReached()).read("c", "d").read("c", "d")
    assert second.state.phase is RoundPhase.RUNNING


def test_a_rerun_does_not_succeed_by_what_the_dead_finished() -> None:
    """All nodes had finished, and were killed before that was announced: the job runs again."""
    first = running("a", "b", min_nodes=2)
    first.store.records |= {name: finished(name) for name in "ab"}
    second = rerun(first, "c", "d", max_nodes=2)
    assert second.state.phase is RoundPhase.RUNNING
    assert (second.read("c", "d").state.phase, second.state.number) == (RoundPhase.RUNNING, 2)


def test_a_rerun_does_not_fail_by_what_ended_the_dead() -> None:
    """A worker of the first run exited with a code that forbids a restart, and both agents were killed."""
    first = running("a", "b", min_nodes=2)
    first.store.records["b"] = record("b", 3, NodeState.BROKEN, 1, FINAL)
    second = rerun(first, "c", "d", max_nodes=2)
    assert second.state.phase is RoundPhase.OVER
    assert (second.read("c", "d").state.phase, second.state.number) == (RoundPhase.RUNNING, 2)


def test_the_first_round_of_a_rerun_has_a_last_call() -> None:
    """It begins as the first round of a job does, and counts no restarts: more nodes may be on their way."""
    first = running("a", "b", min_nodes=1).publish(record("b", 3, NodeState.BROKEN, 1, FAILURE))
    second = rerun(first, "c", min_nodes=1, max_nodes=3).read("c")
    assert (second.state.phase, second.state.number, second.state.restarts) == (RoundPhase.LAST_CALL, 2, 0)


@pytest.mark.parametrize("alive", [True, False])
def test_a_rerun_decides_once_it_is_known_who_is_alive(alive: bool) -> None:
    """A node of the first run that still has its lease may be dead: it counts as alive if it has it a lease later."""
    first = running("a", "b", min_nodes=2)
    first.store.records |= {name: finished(name) for name in "ab"}
    second = rerun(first, "c", "d", max_nodes=2).read("b", "c", "d")
    second.now += LEASE_S - 0.1
    second.read("b", "c", "d")
    assert second.state.phase is RoundPhase.RUNNING
    second.now += 0.2
    second.read(*("b" if alive else ""), "c", "d")
    assert second.state.outcome is (Outcome.SUCCEEDED if alive else None)
    assert second.state.number == (1 if alive else 2)


def test_whoever_may_be_alive_is_named() -> None:
    """Members of the last round, and nodes that have finished."""
    first = running("a", "b", min_nodes=2)
    first.store.records |= {name: finished(name) for name in "ab"}
    second = rerun(first, "c", "d", max_nodes=2)
    assert second.state.because == "waiting up to 5 s to see whether a node that had a part in round 1 is alive (a, b)"


def test_a_record_of_an_earlier_member_ends_the_doubt() -> None:
    """A node that only just came is elected, and a member of the round is alive: what it reports counts at once."""
    second = rerun(running("a", "b", min_nodes=1), "c", min_nodes=1).read("b", "c")
    second.publish(record("b", 3, NodeState.BROKEN, 1, FAILURE)).publish(record("b", 4, NodeState.WAITING, 1))
    second.read("b", "c")
    assert (second.state.phase, second.state.number) == (RoundPhase.RUNNING, 2)
    assert {member.node for member in second.state.members} == {"b", "c"}


def test_a_successor_in_a_rerun_inherits_no_finalisation_barrier() -> None:
    """The job began again, and then its coordinator was lost: what the dead of the first run finished is still in the
    store, and begins no barrier; unless one of them is alive after all."""
    first = running("a", "b", min_nodes=2).publish(finished("b"))
    second = rerun(first, "c", "d", "e", min_nodes=2).read("c", "d", "e")
    second.publish(*(record(name, 2, NodeState.WORKING, 2) for name in "cde"))
    assert (second.state.phase, second.state.number, second.state.finishing) == (RoundPhase.RUNNING, 2, False)
    third = second.successor("d", min_nodes=2)
    assert not third.state.finishing
    assert not third.read("c", "d", "e").state.finishing
    assert third.read("b", "c", "d", "e").state.finishing
    assert second.successor("b", min_nodes=2).state.finishing  # it reads no lease of its own


def test_a_finished_node_that_is_back_begins_the_barrier_again() -> None:
    """All of the first run were frozen, so the job began again; one that had finished goes on, and waits no longer than
    the barrier."""
    first = running("a", "b", min_nodes=2).publish(finished("b"))
    second = rerun(first, "c", "d", max_nodes=2).read("c", "d")
    assert second.state.barrier_until is None
    assert second.read("b", "c", "d").state.barrier_until == second.now + second.rules.exit_barrier_s


def test_a_finished_node_that_has_ended_leaves_no_barrier_behind() -> None:
    """One node finished and was asked to stop, the other is lost: a spare, which coordinates, begins the job again."""
    first = running("a", "b", min_nodes=1)
    first.store.records["a"] = record("a", 4, NodeState.ENDED, 1, finished=True)
    second = rerun(first, "c", min_nodes=1, max_nodes=2).read("c")
    assert (second.state.phase, second.state.number) == (RoundPhase.LAST_CALL, 2)
    assert second.read("c").state.barrier_until is None
