"""The two machines as tables: total, closed, pure, and drawn in docs/state-machines.md as they are."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any, get_args

import pytest

from elastic_agent.agent.lifecycle import events, machine
from elastic_agent.agent.lifecycle.state import Node, Phase, Place, Verdict
from elastic_agent.agent.lifecycle.state import Rules as AgentRules
from elastic_agent.rendezvous.agreements import Act
from elastic_agent.rendezvous.coordinator import events as coordinator_events
from elastic_agent.rendezvous.coordinator import machine as coordinator
from elastic_agent.rendezvous.coordinator.state import Rendezvous, Rules
from elastic_agent.rendezvous.driver import events as store_events
from elastic_agent.rendezvous.records import Member, RoundPhase
from elastic_agent.rendezvous.store import StoreError
from project import diagrams
from support.builders import FAILURE, announcement

RULES = AgentRules(node="a", name="a")
RUNNING = announcement(RoundPhase.RUNNING, 1, (Member("a", "a", 0, 0, 1),), version=2)
EVENTS: dict[type[Any], Any] = {
    store_events.StoreOpened: store_events.StoreOpened(False, "h"),
    store_events.StoreFailed: store_events.StoreFailed(StoreError("no")),
    store_events.StoreWentAway: store_events.StoreWentAway("no"),
    store_events.StoreCameBack: store_events.StoreCameBack(),
    store_events.RoundSeen: store_events.RoundSeen(RUNNING),
    store_events.RecordWritten: store_events.RecordWritten(1),
    store_events.LeadershipChanged: store_events.LeadershipChanged(leads=True),
    store_events.NeighboursEnded: store_events.NeighboursEnded(("host:12",)),
    store_events.OthersEnded: store_events.OthersEnded(),
    store_events.StoreHandedOver: store_events.StoreHandedOver(),
    events.PlacePrepared: events.PlacePrepared(1, 1),
    events.PlaceFailed: events.PlaceFailed("no"),
    events.WorkerExited: events.WorkerExited(0, None),
    events.StartFailed: events.StartFailed(FAILURE),
    events.WorkersFenced: events.WorkersFenced(),
    events.WorkersGone: events.WorkersGone(),
    events.LeftoversNamed: events.LeftoversNamed(1, ("7 (sleep 9)",)),
    events.NurseryLost: events.NurseryLost("gone"),
    events.WorkerStoreLost: events.WorkerStoreLost("gone"),
    events.HangFound: events.HangFound(1, 0, "rank 0 stands still"),
    events.SignalReceived: events.SignalReceived(15),
    events.ForwardAsked: events.ForwardAsked(10),
    events.SignalNotForwarded: events.SignalNotForwarded(0, 10),
    events.LeaveAsked: events.LeaveAsked("drained"),
    events.ActAsked: events.ActAsked(Act.SAVE, "label", "asked"),
    events.BoundFound: events.BoundFound(1, 1),
    events.BoundAwaited: events.BoundAwaited(1, (0,)),
    events.Acted: events.Acted(1),
    events.DeadlineReached: events.DeadlineReached(),
}
"""One of each type."""

PAIRS = [(phase, event) for phase in Phase for event in get_args(events.Event)]
VERDICT = Verdict(0, "done")


def node_in(phase: Phase) -> Node:
    """A node in this phase."""
    node = Node(phase=phase, place=Place(ready=True))
    return replace(node, verdict=VERDICT) if phase in (Phase.ENDING, Phase.ENDED) else node


@pytest.mark.parametrize(
    ("phase", "event"), PAIRS, ids=lambda value: getattr(value, "name", getattr(value, "__name__", ""))
)
def test_every_agent_event_is_handled_or_named_illegal(phase: Phase, event: type[Any]) -> None:
    """Each pair of phase and event is in exactly one of the tables, and no step changes the state it was given."""
    assert ((phase, event) in machine.TRANSITIONS) != ((phase, event) in machine.ILLEGAL)
    node = node_in(phase)
    before = dataclasses.asdict(node)
    if (phase, event) in machine.ILLEGAL:
        with pytest.raises(machine.IllegalEvent, match=phase.value):
            machine.step(node, EVENTS[event], 0.0, RULES)
    else:
        machine.step(node, EVENTS[event], 0.0, RULES)
    assert dataclasses.asdict(node) == before


def test_every_agent_event_is_in_this_file() -> None:
    """An event that is added to the union must be added to EVENTS."""
    assert set(EVENTS) == set(get_args(events.Event))


def test_every_coordinator_event_is_handled_in_every_phase() -> None:
    """The coordinator is level-triggered: any record of any node may come at any time."""
    assert set(coordinator.TRANSITIONS) == {(p, e) for p in RoundPhase for e in get_args(coordinator_events.Event)}


def test_an_unknown_event_is_illegal_and_changes_nothing() -> None:
    """An event that is in no table raises IllegalEvent, and the caller's state stays."""
    state = Rendezvous()
    with pytest.raises(coordinator.IllegalEvent, match="gathering"):
        coordinator.step(state, "no event", 0.0, Rules(own="a"))  # type: ignore[arg-type]
    assert state == Rendezvous()


def test_an_unlisted_change_of_phase_is_illegal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that changes the phase where EDGES has no edge raises IllegalEvent."""
    monkeypatch.setattr(machine, "EDGES", {})
    with pytest.raises(machine.IllegalEvent, match="went from connecting to joining"):
        machine.step(Node(), store_events.StoreOpened(False, "h"), 0.0, RULES)


def test_closed_and_ended_are_final() -> None:
    """No edge leaves the last phase of either machine."""
    assert not [edge for edge in coordinator.EDGES if edge[0] is RoundPhase.CLOSED]
    assert not [edge for edge in machine.EDGES if edge[0] is Phase.ENDED]


def test_diagrams_equal_the_tables() -> None:
    """docs/state-machines.md is what `python -m tests.project.diagrams` draws from the tables."""
    assert diagrams.PAGE.read_text() == diagrams.page()
