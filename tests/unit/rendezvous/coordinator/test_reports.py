"""Nodes that send heartbeats but do not report what all others wait for: how long they may take, and what follows."""

from __future__ import annotations

from dataclasses import replace

from elastic_agent.rendezvous.coordinator import deadlines, events, machine
from elastic_agent.rendezvous.coordinator.state import Rendezvous, Rules
from elastic_agent.rendezvous.failures import EndKind
from elastic_agent.rendezvous.records import NodeState, Outcome, RoundPhase
from support.builders import FAILURE, after_records, record

RULES = Rules(own="a", min_nodes=1, max_nodes=2)
GRACE_S = 20.0
DUE_S = GRACE_S + deadlines.REPORT_MARGIN_S


def running(rules: Rules = RULES) -> Rendezvous:
    """Round 1 of a and b, begun at 1 s."""
    state = machine.step(Rendezvous(), events.Elected(1), 0.0, rules).state
    state = after_records(state, 1.0, rules, *(record(each, grace_s=GRACE_S) for each in "ab"))
    working = (record(each, 2, NodeState.WORKING, 1, grace_s=GRACE_S) for each in "ab")
    return after_records(state, 1.0, rules, *working)


def over(at: float = 10.0) -> Rendezvous:
    """The same round, ended by a failure on a, which has answered."""
    broken = record("a", 3, NodeState.BROKEN, 1, FAILURE, grace_s=GRACE_S)
    return after_records(running(), at, RULES, broken, record("a", 4, NodeState.WAITING, 1, FAILURE, grace_s=GRACE_S))


def beating(state: Rendezvous, since: float, until: float, rules: Rules = RULES, node: str = "b") -> Rendezvous:
    """The state after this node's heartbeats were read every half second, and each was a new one."""
    now, count = since, 0
    while now <= until:
        readings = replace(state.readings, asked_at=now, pending=True)
        count += 1
        counts = {node: 1000 * int(since) + count}
        state = machine.step(replace(state, readings=readings), events.BeatsSeen(counts), now, rules).state
        now += 0.5
    return state


def test_a_member_that_does_not_answer_within_its_grace_and_a_margin_is_lost() -> None:
    """Its own grace, from its record. The others go on without it, and its loss is given as the cause."""
    state = beating(over(), 10.0, 10.0 + DUE_S - 0.5)
    assert (state.phase, state.number) == (RoundPhase.OVER, 1)
    state = beating(state, 10.0 + DUE_S, 10.0 + DUE_S)
    assert (state.phase, state.number) == (RoundPhase.RUNNING, 2)
    assert [member.node for member in state.members] == ["a"]
    assert state.end.ending is not None
    assert state.end.ending.kind is EndKind.DEPARTURE
    assert state.end.ending.because.startswith(
        "b was lost: its agent sends heartbeats but did not report within 50 s (its grace of 20 s, and 30 s more); then"
    )


def test_a_job_with_a_long_lease_gives_slow_nodes_as_long_to_report() -> None:
    """As 1,000 nodes did that shared two processors: four of them took more than 30 s to take their places."""
    rules = replace(RULES, lease_s=DUE_S + 30.0, beat_s=10.0)
    state = machine.step(Rendezvous(), events.Elected(1), 0.0, rules).state
    state = after_records(state, 1.0, rules, *(record(each) for each in "ab"))
    state = after_records(state, 1.0, rules, record("a", 2, NodeState.WORKING, 1))
    state = beating(state, 1.0, rules.lease_s + 0.5, rules)
    assert (state.phase, state.nodes["b"].lost) == (RoundPhase.RUNNING, False)
    state = beating(state, rules.lease_s + 1.0, rules.lease_s + 1.0, rules)
    assert state.end.ending is not None
    assert f"did not report within {rules.lease_s:g} s (its grace of 0 s" in state.end.ending.because


def test_heartbeats_do_not_bring_it_back_but_a_record_does() -> None:
    """It has sent heartbeats all the time."""
    state = beating(over(), 10.0, 10.0 + DUE_S + 5.0)
    assert state.nodes["b"].lost
    state = after_records(state, 80.0, RULES, record("b", 3, NodeState.STOPPING, 1, grace_s=GRACE_S))
    assert not state.nodes["b"].lost


def test_a_member_that_reports_on_its_way_gets_its_grace_from_then_on() -> None:
    """It received the end of the round late, or its lease had run out in between."""
    state = after_records(beating(over(), 10.0, 50.0), 50.0, RULES, record("b", 3, NodeState.STOPPING, 1, grace_s=5.0))
    state = beating(state, 50.5, 84.5)
    assert (state.phase, state.number) == (RoundPhase.OVER, 1)
    assert beating(state, 85.0, 85.0).number == 2


def test_a_member_that_does_not_take_its_place_is_lost() -> None:
    """A round runs in which it should have started its workers."""
    state = machine.step(Rendezvous(), events.Elected(1), 0.0, RULES).state
    state = after_records(state, 1.0, RULES, *(record(each, grace_s=GRACE_S) for each in "ab"))
    state = after_records(state, 1.0, RULES, record("a", 2, NodeState.WORKING, 1, grace_s=GRACE_S))
    state = beating(state, 1.0, 1.0 + DUE_S - 0.5)
    assert state.phase is RoundPhase.RUNNING
    state = beating(state, 1.0 + DUE_S, 1.0 + DUE_S)
    assert state.phase is RoundPhase.OVER
    assert state.because.startswith("b was lost: its agent sends heartbeats but")


def test_a_member_that_works_owes_no_report() -> None:
    """A round may run for weeks."""
    state = beating(running(), 1.0, 5 * DUE_S)
    assert state.phase is RoundPhase.RUNNING
    assert not state.nodes["b"].lost


def test_a_node_that_pauses_owes_no_report() -> None:
    """It has said that its workers are gone and that it will come back."""
    pausing = record("b", 3, NodeState.BROKEN, 1, FAILURE, all_exits_reported=True, grace_s=GRACE_S)
    state = beating(after_records(over(), 11.0, RULES, pausing), 11.0, 11.0 + 5 * DUE_S)
    assert not state.nodes["b"].lost


def test_a_coordinator_that_was_paused_counts_anew() -> None:
    """It was frozen, or its store was: the answer may be there, unread."""
    state = beating(over(), 10.0, 20.0)
    state = beating(state, 20.0 + 10 * DUE_S, 20.0 + 11 * DUE_S - 0.5)
    assert state.phase is RoundPhase.OVER
    assert beating(state, 20.0 + 11 * DUE_S, 20.0 + 11 * DUE_S).number == 2


def test_a_closed_job_waits_no_longer_for_a_node_and_names_it_from_5_s_on() -> None:
    """Its host serves the store until every other node has ended or is lost."""
    done = (record(each, 3, NodeState.FINISHED, 1, grace_s=GRACE_S) for each in "ab")
    state = after_records(running(), 10.0, RULES, *done)
    assert (state.phase, state.outcome) == (RoundPhase.CLOSED, Outcome.SUCCEEDED)
    state = beating(after_records(state, 10.0, RULES, record("a", 4, NodeState.ENDED, 1)), 10.0, 15.0)
    told = machine.step(state, events.DeadlineReached(), 15.02, RULES)
    assert events.Tell("the job is over; waiting for b to end (5 s so far)") in told.effects
    assert not any(isinstance(effect, events.Announce) for effect in told.effects)
    state = beating(told.state, 15.5, 10.0 + DUE_S - 0.5)
    assert events.Retire() not in machine.step(state, events.DeadlineReached(), 10.0 + DUE_S - 0.4, RULES).effects
    state = beating(state, 10.0 + DUE_S, 10.0 + DUE_S)
    assert events.Retire() in machine.step(state, events.DeadlineReached(), 10.1 + DUE_S, RULES).effects
