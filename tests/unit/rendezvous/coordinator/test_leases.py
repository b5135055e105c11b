"""Which nodes are lost: heartbeat counters, aged on the clock of the coordinator, which may itself be late."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elastic_agent.rendezvous.coordinator import leases
from elastic_agent.rendezvous.coordinator.events import BeatsSeen
from elastic_agent.rendezvous.coordinator.nodes import Nodes, Seen
from elastic_agent.rendezvous.coordinator.state import Rendezvous, Rules
from elastic_agent.rendezvous.records import NodeState
from support.builders import record

RULES = Rules(own="a", beat_s=1.0, lease_s=5.0)


def two_nodes(state: NodeState = NodeState.WORKING) -> Rendezvous:
    """The coordinator's own node and node b in this state, both seen at time 0."""
    states = (("a", NodeState.WORKING), ("b", state))
    return Rendezvous(nodes=Nodes(Seen(record(name, state=each), 0, 0.0, 0.0) for name, each in states))


def read(state: Rendezvous, count: int, start: float, end: float, every_s: float = 0.5) -> Rendezvous:
    """The state after readings at a steady pace that all find this count."""
    now = start
    while now <= end:
        state = leases.age(state, BeatsSeen({"b": count}), now, RULES)
        now += every_s
    return state


def test_a_lease_runs_out_after_its_length() -> None:
    """Not before 5 s, and at the first reading from then on."""
    state = read(two_nodes(), 1, 0.0, 4.9)
    assert not state.nodes["b"].lost
    assert read(state, 1, 5.0, 5.0).nodes["b"].lost


def test_a_changed_counter_renews_the_lease() -> None:
    """Any change counts, a smaller number too: a heartbeat is a counter, not a time."""
    state = read(read(two_nodes(), 7, 0.0, 4.0), 3, 4.5, 9.0)
    assert not state.nodes["b"].lost


def test_the_coordinators_own_node_needs_no_lease() -> None:
    """If it were lost, nothing would read leases."""
    assert not read(two_nodes(), 1, 0.0, 60.0).nodes["a"].lost


def test_a_node_without_a_counter_is_lost_too() -> None:
    """It published a record and ended before its first heartbeat."""
    state = two_nodes()
    for now in range(20):
        state = leases.age(state, BeatsSeen({}), now / 2, RULES)
    assert state.nodes["b"].lost


def test_a_late_reading_starts_every_lease_anew() -> None:
    """The coordinator was frozen, and maybe the store with it, so unchanged counters prove nothing."""
    state = read(two_nodes(), 1, 0.0, 2.0)
    state = leases.age(state, BeatsSeen({"b": 1}), 60.0, RULES)
    assert not state.nodes["b"].lost
    assert not read(state, 1, 60.5, 64.5).nodes["b"].lost
    assert read(state, 1, 60.5, 65.0).nodes["b"].lost


def test_a_short_pause_of_the_coordinator_does_not_count_against_others() -> None:
    """A gap of 2.25 s between readings does not start leases anew, but only one heartbeat, 1 s, of it counts."""
    state = read(two_nodes(), 1, 0.0, 1.5)
    state = leases.age(state, BeatsSeen({"b": 1}), 3.75, RULES)
    assert not read(state, 1, 4.25, 6.0).nodes["b"].lost
    assert read(state, 1, 4.25, 6.25).nodes["b"].lost


def test_readings_that_are_always_late_still_find_a_lost_node() -> None:
    """A store so slow that every reading is late makes leases longer, not endless."""
    assert read(two_nodes(), 1, 0.0, 13.0, every_s=2.4).nodes["b"].lost


def test_a_heartbeat_brings_a_lost_node_back() -> None:
    """A node that was only frozen may have no new record to publish, so its heartbeat must count."""
    state = read(two_nodes(), 1, 0.0, 6.0)
    assert state.nodes["b"].lost
    assert list(leases.watched(state, RULES)) == ["b"]
    assert not read(state, 2, 6.5, 6.5).nodes["b"].lost


def test_late_bytes_of_an_older_heartbeat_bring_no_lost_node_back() -> None:
    """They set the counter back; the node's next heartbeat is beyond what was read before."""
    state = read(read(two_nodes(), 7, 0.0, 6.0), 6, 6.5, 7.0)
    assert state.nodes["b"].lost
    assert not read(state, 8, 7.5, 7.5).nodes["b"].lost


def test_a_node_over_whose_heartbeat_a_stranger_wrote_comes_back_with_its_second_one() -> None:
    """The stranger's number may be larger than the node ever counts: a rise from what it was set back to is enough."""
    lost = read(two_nodes(), 1_000_000, 0.0, 6.0)
    assert lost.nodes["b"].lost
    back = read(lost, 7, 6.5, 6.5)
    assert back.nodes["b"].lost
    assert not read(back, 8, 7.0, 7.0).nodes["b"].lost


def test_a_heartbeat_that_may_have_lain_unread_is_no_sign_of_life() -> None:
    """The coordinator was frozen for 58 s, in which node b may have died; what changes from then on is one."""
    state = read(two_nodes(), 1, 0.0, 2.0)
    thawed = leases.age(state, BeatsSeen({"b": 2}), 60.0, RULES)
    assert not leases.alive_since(thawed, ["b"], 10.0, RULES)
    assert leases.alive_since(read(thawed, 3, 60.5, 60.5), ["b"], 10.0, RULES)


def test_a_lease_that_the_store_may_have_prolonged_is_no_sign_of_life() -> None:
    """A store that elects another leader begins every lease anew, a dead node's too."""
    held = leases.age(two_nodes(), BeatsSeen({"b": 0}, steady_s=1.0), 20.0, RULES)
    assert not leases.alive_since(held, ["b"], 10.0, RULES)
    assert leases.alive_since(leases.age(held, BeatsSeen({"b": 0}, steady_s=5.0), 24.0, RULES), ["b"], 10.0, RULES)


def test_a_late_reading_does_not_bring_a_lost_node_back() -> None:
    """It starts the leases of the other nodes anew only."""
    state = read(two_nodes(), 1, 0.0, 6.0)
    assert leases.age(state, BeatsSeen({"b": 1}), 60.0, RULES).nodes["b"].lost


def test_an_ended_node_is_not_watched() -> None:
    """It publishes no more, and no reading is scheduled for it."""
    assert not leases.watched(two_nodes(NodeState.ENDED), RULES)
    assert leases.next_reading(two_nodes(NodeState.ENDED), RULES) is None


def test_readings_come_twice_per_heartbeat() -> None:
    """So a lease is aged by half a heartbeat too much at most."""
    state = leases.age(two_nodes(), BeatsSeen({"b": 1}), 3.0, RULES)
    assert leases.next_reading(state, RULES) == 3.5


def test_heartbeats_of_many_nodes_are_read_less_often_and_no_reading_is_taken_for_a_pause() -> None:
    """A reading of 1,000 nodes takes the coordinator's process 7 ms. Of a lease of few heartbeats half must be left."""
    seen = [Seen(record(name), 0, 0.0, 0.0) for name in ("a", *map(str, range(257)))]
    for beat_s, lease_s, apart_s in ((1.0, 5.0, 0.9), (5.0, 15.0, 3.0), (4.0, 5.0, 2.0)):
        rules = Rules(own="a", beat_s=beat_s, lease_s=lease_s)
        state = leases.age(Rendezvous(nodes=Nodes(seen)), BeatsSeen({}), 3.0, rules)
        assert leases.next_reading(state, rules) == 3.0 + apart_s
    fewer = leases.age(Rendezvous(nodes=Nodes(seen[:-1])), BeatsSeen({}), 3.0, RULES)
    assert leases.next_reading(fewer, RULES) == 3.5


def test_the_next_reading_is_no_later_than_the_end_of_a_lease() -> None:
    """A node is lost when its lease ends, not up to half a heartbeat later."""
    rules = Rules(own="a", beat_s=4.0, lease_s=5.0)
    state = leases.age(two_nodes(), BeatsSeen({"b": 1}), 0.0, rules)
    state = leases.age(state, BeatsSeen({"b": 1}), 2.0, rules)
    state = leases.age(state, BeatsSeen({"b": 1}), 4.0, rules)
    assert leases.next_reading(state, rules) == 5.0


@given(st.lists(st.floats(0.05, 0.6), min_size=20, max_size=60), st.integers(1, 4))
def test_a_node_that_beats_is_never_lost(gaps_s: list[float], beats_per_s: int) -> None:
    """Whenever the readings come, as long as its counter grows within the lease."""
    state, now = two_nodes(), 0.0
    for gap_s in gaps_s:
        now += gap_s
        state = leases.age(state, BeatsSeen({"b": int(now * beats_per_s / 2) + 1}), now, RULES)
        assert not state.nodes["b"].lost
