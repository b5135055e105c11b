"""Who is still alive: counters, aged on one clock, by an observer that doubts itself first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elastic_agent.rendezvous.coordinator import leases
from elastic_agent.rendezvous.coordinator.events import BeatsSeen
from elastic_agent.rendezvous.coordinator.state import Rendezvous, Rules, Seen
from elastic_agent.rendezvous.records import NodeRecord, NodeState

RULES = Rules(own="host", beat_s=1.0, lease_s=5.0)


def beginning(state: NodeState = NodeState.WORKING) -> Rendezvous:
    """The host and one other node, just heard of."""
    nodes = {
        name: Seen(NodeRecord(name, name, each, 1), 0, 0.0, 0.0)
        for name, each in (("host", NodeState.WORKING), ("b", state))
    }
    return Rendezvous(nodes=nodes)


def read(state: Rendezvous, count: int, start: float, end: float, every_s: float = 0.5) -> Rendezvous:
    """Readings at a steady pace that find the same count."""
    now = start
    while now <= end:
        state = leases.age(state, BeatsSeen({"b": count}), now, RULES)
        now += every_s
    return state


def test_a_lease_runs_out_after_its_length() -> None:
    """Not before, and not later than one reading after."""
    state = read(beginning(), 1, 0.0, 4.9)
    assert not state.nodes["b"].lost
    assert read(state, 1, 5.0, 5.0).nodes["b"].lost


def test_a_changed_counter_renews_the_lease() -> None:
    """Any change will do: a heartbeat is a counter and no time."""
    state = read(read(beginning(), 7, 0.0, 4.0), 3, 4.5, 9.0)
    assert not state.nodes["b"].lost


def test_our_own_node_needs_no_lease() -> None:
    """It shares our fate: if it is gone, so are we."""
    assert not read(beginning(), 1, 0.0, 60.0).nodes["host"].lost


def test_a_node_without_a_counter_loses_its_lease_too() -> None:
    """One that published a record and died before its first heartbeat."""
    state = beginning()
    for now in range(20):
        state = leases.age(state, BeatsSeen({}), now / 2, RULES)
    assert state.nodes["b"].lost


def test_an_observer_that_was_late_starts_every_lease_anew() -> None:
    """The host was frozen, and so was its store: the silence says nothing about others."""
    state = read(beginning(), 1, 0.0, 2.0)
    state = leases.age(state, BeatsSeen({"b": 1}), 60.0, RULES)
    assert not state.nodes["b"].lost
    assert not read(state, 1, 60.5, 64.5).nodes["b"].lost
    assert read(state, 1, 60.5, 65.0).nodes["b"].lost


def test_an_observer_that_stood_still_for_a_moment_takes_it_off_nobodys_lease() -> None:
    """Too short to start anew, yet not the others' silence: but for one heartbeat, it does not count."""
    state = read(beginning(), 1, 0.0, 1.5)
    state = leases.age(state, BeatsSeen({"b": 1}), 3.75, RULES)
    assert not read(state, 1, 4.25, 6.0).nodes["b"].lost
    assert read(state, 1, 4.25, 6.25).nodes["b"].lost


def test_an_observer_that_is_always_late_still_finds_the_dead() -> None:
    """A store so slow that every reading comes late makes leases longer, not endless."""
    assert read(beginning(), 1, 0.0, 13.0, every_s=2.4).nodes["b"].lost


def test_a_lost_node_is_heard_again_by_its_heartbeat() -> None:
    """One that was only frozen may have nothing new to say; it must not wait for ever uncounted."""
    state = read(beginning(), 1, 0.0, 6.0)
    assert state.nodes["b"].lost
    assert list(leases.watched(state, RULES)) == ["b"]
    assert not read(state, 2, 6.5, 6.5).nodes["b"].lost


def test_a_lost_node_stays_lost_when_the_observer_is_late() -> None:
    """A late reading starts leases anew; it does not raise the dead."""
    state = read(beginning(), 1, 0.0, 6.0)
    assert leases.age(state, BeatsSeen({"b": 1}), 60.0, RULES).nodes["b"].lost


def test_an_ended_node_is_not_watched() -> None:
    """Its last word is said, and its silence means nothing."""
    assert not leases.watched(beginning(NodeState.ENDED), RULES)
    assert leases.next_reading(beginning(NodeState.ENDED), RULES) is None


def test_the_next_reading_comes_twice_per_beat() -> None:
    """So that a lease is never aged by more than half a beat too much."""
    state = leases.age(beginning(), BeatsSeen({"b": 1}), 3.0, RULES)
    assert leases.next_reading(state, RULES) == 3.5


def test_the_next_reading_is_brought_forward_to_where_a_lease_ends() -> None:
    """A departure is noticed when the lease ends, not up to half a beat later."""
    rules = Rules(own="host", beat_s=4.0, lease_s=5.0)
    state = leases.age(beginning(), BeatsSeen({"b": 1}), 0.0, rules)
    state = leases.age(state, BeatsSeen({"b": 1}), 2.0, rules)
    state = leases.age(state, BeatsSeen({"b": 1}), 4.0, rules)
    assert leases.next_reading(state, rules) == 5.0


@given(st.lists(st.floats(0.05, 0.6), min_size=20, max_size=60), st.integers(1, 4))
def test_a_node_that_beats_is_never_lost(gaps_s: list[float], beats_per_s: int) -> None:
    """Whatever the rhythm of the readings, as long as the counter grows within the lease."""
    state, now = beginning(), 0.0
    for gap_s in gaps_s:
        now += gap_s
        state = leases.age(state, BeatsSeen({"b": int(now * beats_per_s / 2) + 1}), now, RULES)
        assert not state.nodes["b"].lost
