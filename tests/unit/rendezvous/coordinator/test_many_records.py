"""Records of many nodes in one event: the same as one after the other, for the price of one decision."""

from __future__ import annotations

import time

from elastic_agent.rendezvous.coordinator import events, machine
from elastic_agent.rendezvous.coordinator.state import Rendezvous, Rules
from elastic_agent.rendezvous.records import NodeRecord, NodeState, RoundPhase
from support.builders import record

NODES = 1000


def elected(rules: Rules) -> Rendezvous:
    return machine.step(Rendezvous(), events.Elected(1), 0.0, rules).state


def test_many_records_in_one_event_lead_to_what_one_after_the_other_does() -> None:
    rules = Rules("n0", 5, 5)
    records = [record(f"n{number}", 1, NodeState.WAITING) for number in range(5)]
    one_by_one = elected(rules)
    for each in records:
        one_by_one = machine.step(one_by_one, events.NodeSeen(each), 1.0, rules).state
    at_once = machine.step(elected(rules), events.NodesSeen(tuple(records)), 1.0, rules).state
    assert at_once.phase is one_by_one.phase is RoundPhase.RUNNING
    assert (at_once.members, at_once.nodes) == (one_by_one.members, one_by_one.nodes)


def test_the_state_before_is_left_as_it_was() -> None:
    """Whoever holds it, as the control service does, goes on reading it."""
    rules = Rules("n0", 5, 5)
    before = machine.step(elected(rules), events.NodesSeen((record("n0", 1, NodeState.WAITING),)), 1.0, rules).state
    held = dict(before.nodes)
    machine.step(before, events.NodesSeen(tuple(record(f"n{at}", 2, NodeState.WAITING) for at in range(4))), 2.0, rules)
    assert before.nodes == held


def test_a_restart_of_a_thousand_nodes_costs_the_coordinator_little() -> None:
    """All report and start again, twenty in each read: some tenths of a second of processor time on a slow machine. One
    decision for each record takes ten times as long, and grows with the square."""
    rules = Rules("n0", NODES, NODES)
    state = elected(rules)

    def publish(state: Rendezvous, round_number: int, node_state: NodeState, seq: int) -> Rendezvous:
        records = [record(f"n{at}", seq, node_state, round_number) for at in range(NODES)]
        for first in range(0, NODES, 20):
            state = machine.step(state, events.NodesSeen(tuple(records[first : first + 20])), 1.0, rules).state
        return state

    state = publish(publish(state, 0, NodeState.WAITING, 1), 1, NodeState.WORKING, 2)
    gone = NodeRecord("n5", "n5", NodeState.STOPPING, 3, 1, because="asked to")
    began = time.thread_time()
    state = machine.step(state, events.NodesSeen((gone,)), 1.0, rules).state
    assert state.phase is RoundPhase.OVER
    state = publish(publish(state, 1, NodeState.WAITING, 4), 2, NodeState.WORKING, 5)
    assert (state.phase, state.number) == (RoundPhase.RUNNING, 2)
    assert time.thread_time() - began < 0.4
