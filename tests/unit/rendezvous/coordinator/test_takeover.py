"""Taking over, one decision at a time: what a new coordinator finds in the store, and what follows from it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_agent.rendezvous.coordinator import machine
from elastic_agent.rendezvous.coordinator.events import (
    Announce,
    BeatsSeen,
    DeadlineReached,
    Deposed,
    Elected,
    NodeSeen,
    ReadBeats,
    Retire,
    WakeAt,
)
from elastic_agent.rendezvous.coordinator.state import Rendezvous, Rules
from elastic_agent.rendezvous.failures import EndKind
from elastic_agent.rendezvous.records import NodeRecord, NodeState, Outcome, Round, RoundPhase
from support.builders import FAILURE, record
from support.rigs.coordinators import LEASE_S, Coordinator, Store, running
from unit.rendezvous.test_codec import nodes as any_node
from unit.rendezvous.test_codec import rounds as any_round


def test_the_first_coordinator_begins_the_job() -> None:
    """Without an announcement it starts round 1, with the nodes that had joined before it was elected."""
    store = Store({"b": record("b")})
    first = Coordinator(store, "a", 7)
    assert (first.state.number, first.state.phase, first.state.epoch) == (1, RoundPhase.GATHERING, 7)
    assert first.publish(record("a")).state.phase is RoundPhase.LAST_CALL


def test_a_successor_repeats_the_newest_announcement() -> None:
    """With the next version and its own epoch, and nothing else changed."""
    first = running("a", "b", "c")
    newest = first.store.announced
    second = first.successor("b", max_nodes=3)
    assert newest is not None
    assert second.store.announced == replace(newest, version=newest.version + 1, epoch=2)


def test_a_running_round_goes_on() -> None:
    """A takeover alone ends no round."""
    second = running("a", "b", "c").successor("b").read("a", "c")
    assert (second.state.phase, second.state.number) == (RoundPhase.RUNNING, 1)


def test_the_node_of_the_old_coordinator_is_lost_at_once() -> None:
    """Its lease has already run out, so the successor ends its round at the first reading."""
    second = running("a", "b", "c").successor("b").read("c")
    ending = second.state.end.ending
    assert second.state.phase is RoundPhase.OVER
    assert ending is not None
    assert (ending.kind, ending.charged) == (EndKind.DEPARTURE, "")
    assert "a was lost" in ending.because
    second.publish(*(record(name, 3, NodeState.WAITING, 1) for name in ("b", "c")))
    assert (second.state.phase, second.state.number) == (RoundPhase.RUNNING, 2)


def test_no_node_is_lost_while_the_store_was_away() -> None:
    """All leases may have run out then; nodes that run have another one soon."""
    second = running("a", "b", "c").successor("b").read(steady_s=LEASE_S - 0.1)
    assert second.state.phase is RoundPhase.RUNNING
    assert second.read("a", "c").state.phase is RoundPhase.RUNNING


def test_a_node_that_joined_while_the_leases_were_read_is_not_lost() -> None:
    """Its lease was not asked for, so its absence from the answer means nothing."""
    first = Coordinator(Store(), "a", 1).publish(record("a"))
    first.publish(record("b"))
    first.step(BeatsSeen({}, LEASE_S))
    assert not first.state.nodes["b"].lost


def test_a_repeated_record_makes_the_coordinator_read_the_leases() -> None:
    """The store reports a change of this node that is not its record, so its lease may have ended."""
    first = running("a", "b", "c").read("b", "c")
    first.step(NodeSeen(first.store.records["c"]))
    assert any(isinstance(effect, ReadBeats) for effect in first.effects)


def test_a_lost_node_that_has_a_lease_again_is_counted_in() -> None:
    """It was frozen, or cut off from the store."""
    first = running("a", "b", "c").read("b")
    assert first.state.nodes["c"].lost
    assert not first.read("b", "c").state.nodes["c"].lost


def test_members_keep_their_ranks_when_the_coordinator_changes_between_rounds() -> None:
    """While the next round gathers the announcement still has the members of the last."""
    first = running("a", "b", "c", min_nodes=3).read("b").publish(record("b", 3, NodeState.WAITING, 1))
    first.publish(record("a", 3, NodeState.WAITING, 1))
    assert first.state.phase is RoundPhase.GATHERING
    second = first.successor("b", min_nodes=3).read("a", "c")
    second.publish(record("c", 3, NodeState.WAITING, 1))
    assert second.state.phase is RoundPhase.RUNNING
    assert [member.node for member in second.state.members] == ["a", "b", "c"]


def test_a_failure_that_was_not_settled_is_settled_by_the_successor() -> None:
    """The node of the failure is charged when all have answered, as without a takeover."""
    broken = record("c", 3, NodeState.BROKEN, 1, FAILURE)
    first = running("a", "b", "c").publish(broken)
    assert first.state.phase is RoundPhase.OVER
    second = first.successor("b").read("a", "c")
    assert (second.state.phase, second.state.end.settled) == (RoundPhase.OVER, False)
    second.publish(*(record(name, 3, NodeState.WAITING, 1) for name in "ab"))
    second.publish(record("c", 4, NodeState.WAITING, 1, FAILURE))
    assert (second.state.number, second.state.restarts) == (2, 1)
    assert second.state.end.ending is not None
    assert second.state.end.ending.charged == "c"


def test_a_failure_may_echo_the_loss_of_the_coordinators_node() -> None:
    """The failure was read before the coordinator's node was lost; the loss is the cause, and no node is charged."""
    first = running("a", "b", "c").publish(record("c", 3, NodeState.BROKEN, 1, FAILURE))
    second = first.successor("b").publish(record("b", 3, NodeState.WAITING, 1)).read("c")
    second.publish(record("c", 4, NodeState.WAITING, 1, FAILURE))
    assert (second.state.number, second.state.restarts) == (2, 0)
    assert second.state.end.ending is not None
    assert second.state.end.ending.kind is EndKind.DEPARTURE


def test_a_failure_that_was_not_announced_is_found_in_the_records() -> None:
    """The coordinator ended between reading and announcing it."""
    first = running("a", "b", "c")
    first.store.records["c"] = record("c", 3, NodeState.BROKEN, 1, FAILURE)
    second = first.successor("b")
    assert second.state.phase is RoundPhase.OVER
    assert second.state.end.ending is not None
    assert second.state.end.ending.failure == FAILURE


def test_a_charge_is_still_announced_after_a_takeover() -> None:
    """A node that has not read how the last round ended reads it from the successor."""
    first = running("a", "b", "c", min_nodes=3).publish(record("c", 3, NodeState.BROKEN, 1, FAILURE))
    first.publish(*(record(name, 3, NodeState.STOPPING, 1) for name in "ab"))
    first.publish(*(record(name, 4, NodeState.WAITING, 1) for name in "ab")).publish(
        record("c", 4, NodeState.LEAVING, 1)
    )
    first.publish(record("c", 5, NodeState.ENDED, 1))
    assert first.state.phase is RoundPhase.GATHERING
    announced = first.successor("b", min_nodes=3).store.announced
    assert announced is not None
    assert announced.ended == first.state.end.ending


def test_the_finalisation_barrier_begins_anew() -> None:
    """Clocks of two hosts cannot be compared. Nodes that had finished stay finished."""
    first = running("a", "b", "c", exit_barrier_s=60.0).publish(record("c", 3, NodeState.FINISHED, 1))
    second = first.successor("b", exit_barrier_s=60.0)
    assert second.state.barrier_until == 1060.0
    second.publish(*(record(name, 3, NodeState.FINISHED, 1) for name in "ab"))
    assert second.state.outcome is Outcome.SUCCEEDED


def test_a_closed_job_stays_closed() -> None:
    """With the announced outcome, and it retires when all other nodes have ended."""
    first = running("a", "b", "c").publish(*(record(name, 3, NodeState.FINISHED, 1) for name in "abc"))
    assert first.state.phase is RoundPhase.CLOSED
    second = first.successor("b").read()
    assert (second.state.phase, second.state.outcome) == (RoundPhase.CLOSED, Outcome.SUCCEEDED)
    second.publish(*(record(name, 4, NodeState.ENDED, 1) for name in "bc"))
    assert Retire() in second.effects


def test_a_job_whose_record_says_that_it_ended_is_closed() -> None:
    """A node that joins after all others ended and their keys were deleted announces the outcome of the record."""
    state = machine.step(
        Rendezvous(), Elected(9, None, (record("z"),), version=12, outcome=Outcome.FAILED), 0.0, Rules(own="z")
    )
    assert (state.state.phase, state.state.outcome) == (RoundPhase.CLOSED, Outcome.FAILED)
    announced = [effect.round for effect in state.effects if isinstance(effect, Announce)]
    assert [each.version for each in announced] == [13]


def test_a_member_that_has_not_answered_for_its_place_delays_the_next_round() -> None:
    """It may be about to start workers of the last round, so the successor waits for its record."""
    first = Coordinator(Store(), "a", 1, max_nodes=3)
    first.publish(*(record(name) for name in "abc"))
    first.publish(*(record(name, 2, NodeState.WORKING, 1) for name in "ab"))
    second = first.successor("b").read("c")
    second.publish(record("b", 3, NodeState.WAITING, 1))
    assert second.state.phase is RoundPhase.OVER
    second.publish(record("c", 2, NodeState.WAITING, 1))
    assert (second.state.phase, second.state.number) == (RoundPhase.RUNNING, 2)


def test_a_node_counts_as_waiting_once_it_has_answered_for_the_last_round() -> None:
    """A lost node that comes back may have had a place in a round whose members are no longer announced."""
    first = (
        running("a", "b", "c", min_nodes=3).read("b").publish(*(record(name, 3, NodeState.WAITING, 1) for name in "ab"))
    )
    assert first.state.phase is RoundPhase.GATHERING
    first.store.records["c"] = record("c")
    second = first.successor("b", min_nodes=3).read("a", "c")
    assert second.state.phase is RoundPhase.GATHERING
    assert second.publish(record("c", 2, NodeState.WAITING, 1)).state.phase is RoundPhase.RUNNING


def test_a_member_without_a_record_counts_as_lost() -> None:
    """A record that was deleted costs the node its place; its next record counts again."""
    first = running("a", "b", "c")
    del first.store.records["c"]
    second = first.successor("b").read("a")
    assert second.state.phase is RoundPhase.OVER
    assert second.publish(record("c", 9, NodeState.WAITING, 1)).state.nodes["c"].waiting


def test_a_deposed_coordinator_is_silent() -> None:
    """No event has an effect until it is elected again."""
    first = running("a", "b", "c").step(Deposed())
    for event in (NodeSeen(record("c", 3, NodeState.BROKEN, 1, FAILURE)), BeatsSeen({}, 60.0), DeadlineReached()):
        assert first.step(event).effects == ()
    assert not first.state.leading
    again = first.step(Elected(5, first.store.announced, tuple(first.store.records.values())))
    assert (again.state.phase, again.state.epoch) == (RoundPhase.RUNNING, 5)


@pytest.mark.parametrize("times", [1, 2, 5])
def test_waiting_times_begin_anew_and_are_never_shorter(times: int) -> None:
    """Each takeover may lengthen a gathering by the join timeout, and never shortens it."""
    first = Coordinator(Store(), "a", 1, join_timeout_s=100.0)
    coordinator = first.publish(record("a"))
    for _ in range(times):
        coordinator = coordinator.successor("a", join_timeout_s=100.0)
        assert coordinator.state.since == 1000.0
        assert coordinator.state.phase is RoundPhase.GATHERING
    coordinator.read("a")
    coordinator.now = 1100.0
    assert coordinator.step(DeadlineReached()).read("a").state.outcome is Outcome.JOIN_TIMED_OUT


def test_a_newer_record_of_an_earlier_round_leaves_the_place_open() -> None:
    """It was published before the node read of its place, so the node may still start workers."""
    made = Coordinator(Store(), "a", 1, max_nodes=2).publish(record("a"), record("b"))
    assert made.state.phase is RoundPhase.RUNNING
    assert made.publish(record("b", 2)).state.nodes["b"].may_have_workers


def test_the_join_timeout_waits_for_an_answer_of_the_store() -> None:
    """A coordinator that was frozen or cut off reads once more at the join timeout, and counts nodes that joined in the
    meantime."""
    frozen = Coordinator(Store(), "a", 1, join_timeout_s=100.0).publish(record("a"))
    frozen.now = 100.0
    frozen.step(DeadlineReached())
    assert ReadBeats(()) in frozen.effects
    frozen.now = 500.0
    assert frozen.step(DeadlineReached()).state.outcome is None
    assert frozen.publish(record("b"), record("c")).read("a", "b", "c").state.phase is RoundPhase.RUNNING


def test_an_answer_to_an_earlier_read_does_not_end_the_join_timeout() -> None:
    """It was queued, unread, while the coordinator was frozen."""
    late = Coordinator(Store(), "a", 1, min_nodes=3, join_timeout_s=100.0).publish(record("a"), record("b"))
    late.now = 300.0
    assert late.read("a", "b").state.outcome is None
    late.now = 301.0
    assert late.read("a", "b").state.outcome is Outcome.JOIN_TIMED_OUT


def test_the_end_of_the_barrier_waits_for_an_answer_of_the_store() -> None:
    """A node may have finished within the finalisation barrier while the coordinator was frozen."""
    frozen = running("a", "b").publish(record("a", 3, NodeState.FINISHED, 1))
    until = frozen.state.barrier_until
    assert until is not None
    frozen.read("a", "b")
    frozen.now = until + 50.0
    assert frozen.step(DeadlineReached()).state.outcome is None
    last = record("b", 3, NodeState.FINISHED, 1)
    assert frozen.publish(last).read("a", "b").state.outcome is Outcome.SUCCEEDED


@given(any_round, st.lists(any_node, max_size=4), st.lists(st.text(max_size=3), max_size=3))
def test_any_announcement_and_any_records_can_be_taken_over(
    newest: Round, records: list[NodeRecord], alive: list[str]
) -> None:
    """Any client on the network may have written them: no exception, and only known effects.

    Records of rounds to come are left out; see test_a_record_of_a_round_to_come_does_not_break_the_coordinator.
    """
    known = tuple(replace(each, round=min(each.round, newest.number)) for each in records)
    rules = Rules(own="own", min_nodes=1, max_nodes=4)
    made = machine.step(Rendezvous(), Elected(2, newest, known), 0.0, rules)
    for event in (BeatsSeen(dict.fromkeys(alive, 0), 60.0), DeadlineReached()):
        made = machine.step(made.state, event, 1.0, rules)
    assert all(isinstance(effect, Announce | ReadBeats | WakeAt | Retire) for effect in made.effects)


def test_a_successor_gives_no_place_to_a_node_that_died_before_its_term() -> None:
    """The store holds the record of a spare whose lease is over: the first reading shows that, and no round begins
    before it is answered."""
    first = running("a", "b", "c", min_nodes=2).publish(record("d"))
    second = first.successor("b", min_nodes=2, max_nodes=3)
    second.publish(record("c", 3, NodeState.BROKEN, 1, FAILURE))
    second.publish(*(record(name, 4, NodeState.WAITING, 1) for name in "bc"))
    second.publish(record("a", 3, NodeState.ENDED, 1))
    assert second.state.phase is RoundPhase.GATHERING
    assert second.state.because == "reading which of the nodes that wait for a place are alive"
    second.read("b", "c")
    assert second.state.nodes["d"].lost
    second.now += 60.0
    second.step(DeadlineReached())
    assert {member.node for member in second.state.members} == {"b", "c"}
