"""What a node says about its store, and about other agents on its host."""

from __future__ import annotations

from elastic_agent.agent.lifecycle import on_store
from elastic_agent.agent.lifecycle.state import Node, Phase, Rules
from elastic_agent.rendezvous.driver.events import NeighboursEnded, RecordWritten
from elastic_agent.rendezvous.records import Member, NodeState, RoundPhase
from support.builders import announcement, record

RULES = Rules(node="a", name="host:1")
MEMBERS = (Member("a", "host:1", 0, 0, 1), Member("b", "host:2", 1, 1, 1), Member("c", "host:3", 2, 2, 1))


def joining(phase: RoundPhase = RoundPhase.OVER, members: tuple[Member, ...] = MEMBERS) -> Node:
    seen = announcement(phase, 1, members, version=2)
    return Node(phase=Phase.STOPPING, record=record("a", 1, NodeState.STOPPING, 1), latest_round=seen, because="so far")


def test_of_agents_that_have_ended_on_this_host_only_members_of_the_job_are_named() -> None:
    """Others, of earlier jobs under this run id, concern nobody; the record lists them all the same."""
    node, effects = on_store.on_neighbours_ended(joining(), NeighboursEnded(("old:7", "host:2")), 0.0, RULES)
    assert node.because == "no process is left on this host of host:2, so nobody need wait for it"
    assert effects
    node, effects = on_store.on_neighbours_ended(joining(), NeighboursEnded(("old:7", "old:8")), 0.0, RULES)
    assert node.because == "so far"
    assert effects
    node, _ = on_store.on_neighbours_ended(joining(), NeighboursEnded(("host:3", "host:2")), 0.0, RULES)
    assert node.because == "no process is left on this host of host:3, host:2, so nobody need wait for them"


def test_a_host_that_is_asked_to_stop_before_the_first_round_says_that_it_serves_on() -> None:
    """Nobody could know otherwise why it does not end, and how to end it."""
    node = Node(phase=Phase.ENDING, hosting=True, latest_round=announcement(RoundPhase.GATHERING, 1, (), version=1))
    after, effects = on_store.on_written(node, RecordWritten(1), 0.0, RULES)
    assert after.because == "serving the store until the other nodes have ended; another signal stops that"
    assert effects == ()
