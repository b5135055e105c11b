"""The nodes that the coordinator knows: which have a trait, without a look at all of them."""

from __future__ import annotations

import sys
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_agent.proto.frozen import replace
from elastic_agent.rendezvous.coordinator import events, machine
from elastic_agent.rendezvous.coordinator.nodes import TRAITS, Nodes, Seen, traits
from elastic_agent.rendezvous.coordinator.state import Rendezvous, Rules
from elastic_agent.rendezvous.records import NodeState, RoundPhase
from support.builders import FAILURE, record

SEEN = st.builds(
    lambda node, state, number, placed, lost, failed, reported: Seen(
        record(node, 1, state, number, FAILURE if failed else None, all_exits_reported=reported),
        arrival=ord(node), waiting_since=0.0, heard_at=0.0, lost=lost, placed=placed,
    ),
    st.sampled_from("abcdef"), st.sampled_from(NodeState), st.integers(0, 2), st.integers(0, 2), st.booleans(),
    st.booleans(), st.booleans(),
)  # fmt: skip


@given(st.lists(st.lists(SEEN, max_size=4), max_size=6))
def test_the_nodes_with_a_trait_are_those_that_a_look_at_all_of_them_finds(changes: list[list[Seen]]) -> None:
    """After each change, and in each earlier value still: others hold it."""
    held = [Nodes()]
    for changed in changes:
        held.append(held[-1].with_all(changed))
    expected: dict[str, Seen] = {}
    for nodes, changed in zip(held, [[], *changes], strict=True):
        expected |= {seen.record.node: seen for seen in changed}
        assert nodes == expected
        for trait in TRAITS:
            found = {node for node, seen in expected.items() if traits(seen) & trait}
            assert set(nodes.those(trait)) == found
            assert [seen.record.node for seen in nodes.having(trait)] == sorted(found)


def test_a_heartbeat_changes_the_node_and_no_trait() -> None:
    before = Nodes([Seen(record("a"), 0, 0.0, 0.0)])
    after = before.with_all([replace(before["a"], count=7, heard_at=3.0)])
    assert (before["a"].count, after["a"].count) == (-1, 7)
    assert [after.those(trait) for trait in TRAITS] == [before.those(trait) for trait in TRAITS]


@pytest.mark.parametrize("phase", [RoundPhase.GATHERING, RoundPhase.RUNNING, RoundPhase.OVER])
def test_a_record_costs_as_many_calls_with_a_thousand_nodes_as_with_a_hundred(phase: RoundPhase) -> None:
    """While all nodes join, start and stop. Each record would cost a look at each node otherwise."""
    few, many = (calls_of_one_record(phase, nodes) for nodes in (100, 1000))
    assert many <= few + 10


def calls_of_one_record(phase: RoundPhase, nodes: int) -> int:
    """Calls of Python functions that a step with the record of one node makes, half of the nodes having published."""
    rules = Rules("n0", nodes, nodes, fences=True, hosted=True)
    state = machine.step(Rendezvous(), events.Elected(1), 0.0, rules).state
    number, seq = 0, 1
    for passed, now_in in ((RoundPhase.GATHERING, NodeState.WAITING), (RoundPhase.RUNNING, NodeState.WORKING)):
        if phase is passed:
            return calls(published(state, rules, seq, now_in, number, nodes // 2), rules, seq, now_in, number, nodes)
        state = published(state, rules, seq, now_in, number, nodes)
        number, seq = number + 1, seq + 1
    failed = events.NodeSeen(record("n5", seq, NodeState.BROKEN, 1, FAILURE))
    state = machine.step(state, failed, 1.0, rules).state
    assert state.phase is RoundPhase.OVER
    state = published(state, rules, seq + 1, NodeState.WAITING, 1, nodes // 2)
    return calls(state, rules, seq + 1, NodeState.WAITING, 1, nodes)


def published(state: Rendezvous, rules: Rules, seq: int, node_state: NodeState, number: int, upto: int) -> Rendezvous:
    records = tuple(record(f"n{at}", seq, node_state, number) for at in range(upto))
    return machine.step(state, events.NodesSeen(records), 1.0, rules).state


def calls(state: Rendezvous, rules: Rules, seq: int, node_state: NodeState, number: int, nodes: int) -> int:
    made = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal made
        made += event == "call"

    last = events.NodeSeen(record(f"n{nodes - 2}", seq, node_state, number))
    held = sys.getprofile()
    sys.setprofile(count)
    try:
        machine.step(state, last, 1.0, rules)
    finally:
        sys.setprofile(held)
    return made
