"""Taking over, decision by decision: what a new coordinator knows of what the one before it had announced."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_agent.rendezvous.coordinator import machine
from elastic_agent.rendezvous.coordinator.events import (
    Announce,
    BeatsSeen,
    DeadlineReached,
    Deposed,
    Effect,
    Elected,
    Event,
    NodeSeen,
    ReadBeats,
    Retire,
    WakeAt,
)
from elastic_agent.rendezvous.coordinator.state import Rendezvous, Rules
from elastic_agent.rendezvous.failures import EndKind, WorkerFailure
from elastic_agent.rendezvous.records import NodeRecord, NodeState, Outcome, Round, RoundPhase
from unit.rendezvous.test_codec import nodes as any_node
from unit.rendezvous.test_codec import rounds as any_round

FAILURE = WorkerFailure(node="a", host="h", rank=0, local_rank=0, pid=1, exit_code=1)
LEASE_S = 5.0


@dataclass
class Store:
    """What would be in the store: each node's newest record, and the newest word."""

    records: dict[str, NodeRecord] = field(default_factory=dict)
    word: Round | None = None


class Coordinator:
    """One node's coordinator machine on that store."""

    def __init__(self, store: Store, own: str, epoch: int, now: float = 0.0, **rules: float) -> None:
        self.store = store
        self.rules = Rules(own=own, **{"min_nodes": 2, "max_nodes": 3, **rules})  # type: ignore[arg-type]
        self.state = Rendezvous()
        self.effects: tuple[Effect, ...] = ()
        self.now = now
        self.tell(Elected(epoch, store.word, tuple(store.records.values())))

    def tell(self, *events: Event) -> Coordinator:
        for event in events:
            made = machine.step(self.state, event, self.now, self.rules)
            self.state, self.effects = made.state, made.effects
            for effect in made.effects:
                if isinstance(effect, Announce):
                    self.store.word = effect.round
        return self

    def hear(self, *records: NodeRecord) -> Coordinator:
        """Nodes publish these; the coordinator sees them."""
        for record in records:
            self.store.records[record.node] = record
            self.tell(NodeSeen(record))
        return self

    def read(self, *alive: str, steady_s: float = LEASE_S) -> Coordinator:
        """It reads the leases, of which these hold."""
        return self.tell(BeatsSeen({node: 0 if node in alive else -1 for node in self.state.nodes}, steady_s))

    def successor(self, own: str, **rules: float) -> Coordinator:
        """This one is no more; that node takes over, a long time later by its own clock."""
        return Coordinator(self.store, own, self.state.epoch + 1, 1000.0, **rules)


def record(
    node: str,
    seq: int = 1,
    state: NodeState = NodeState.WAITING,
    round: int = 0,  # noqa: A002  # as the record calls it
    failure: WorkerFailure | None = None,
    restarts_left: int = 1,
) -> NodeRecord:
    made = NodeRecord(node, node, state, seq, round=round, failure=failure, restarts_left=restarts_left)
    return replace(made, addr=f"{node}.example", port=29000, finished=state is NodeState.FINISHED)


def running(*names: str, **rules: float) -> Coordinator:
    """A coordinator on node a, and a round 1 that all members work in."""
    made = Coordinator(Store(), "a", 1, max_nodes=len(names), **rules)
    made.hear(*(record(name) for name in names))
    assert made.state.phase is RoundPhase.RUNNING
    return made.hear(*(record(name, 2, NodeState.WORKING, 1) for name in names))


def test_the_first_coordinator_begins_the_job() -> None:
    """Nothing was announced; who came before it was elected is counted in."""
    store = Store({"b": record("b")})
    first = Coordinator(store, "a", 7)
    assert (first.state.number, first.state.phase, first.state.epoch) == (1, RoundPhase.GATHERING, 7)
    assert first.hear(record("a")).state.phase is RoundPhase.LAST_CALL


def test_a_successor_says_the_newest_word_again_in_its_own_name() -> None:
    """Everybody hears of the new epoch, and of nothing else."""
    first = running("a", "b", "c")
    word = first.store.word
    second = first.successor("b", max_nodes=3)
    assert word is not None
    assert second.store.word == replace(word, version=word.version + 1, epoch=2)


def test_a_running_round_goes_on() -> None:
    """A takeover ends no round: only the loss of a node does."""
    second = running("a", "b", "c").successor("b").read("a", "c")
    assert (second.state.phase, second.state.number) == (RoundPhase.RUNNING, 1)


def test_the_old_coordinators_node_is_lost_with_its_lease() -> None:
    """Its lease is gone, which is why another was elected: its round ends at once, without ageing anything."""
    second = running("a", "b", "c").successor("b").read("c")
    ending = second.state.end.ending
    assert second.state.phase is RoundPhase.OVER
    assert ending is not None
    assert (ending.kind, ending.charged) == (EndKind.DEPARTURE, "")
    assert "a was lost" in ending.because
    second.hear(*(record(name, 3, NodeState.WAITING, 1) for name in ("b", "c")))
    assert (second.state.phase, second.state.number) == (RoundPhase.RUNNING, 2)


def test_no_lease_counts_as_ended_while_the_store_stood_still() -> None:
    """All leases may have run out then; whoever lives has another soon."""
    second = running("a", "b", "c").successor("b").read(steady_s=LEASE_S - 0.1)
    assert second.state.phase is RoundPhase.RUNNING
    assert second.read("a", "c").state.phase is RoundPhase.RUNNING


def test_a_node_that_came_while_the_leases_were_read_is_not_lost() -> None:
    """Nobody asked for its lease, so that it was not among them says nothing."""
    first = Coordinator(Store(), "a", 1).hear(record("a"))
    first.hear(record("b"))
    first.tell(BeatsSeen({}, LEASE_S))
    assert not first.state.nodes["b"].lost


def test_the_end_of_a_lease_is_looked_at_at_once() -> None:
    """The store says that something about this node has changed: the coordinator reads the leases."""
    first = running("a", "b", "c").read("b", "c")
    first.tell(NodeSeen(first.store.records["c"]))
    assert any(isinstance(effect, ReadBeats) for effect in first.effects)


def test_a_lost_node_that_has_a_lease_again_is_counted_in() -> None:
    """It was frozen."""
    first = running("a", "b", "c").read("b")
    assert first.state.nodes["c"].lost
    assert not first.read("b", "c").state.nodes["c"].lost


def test_members_keep_their_ranks_when_the_coordinator_changes_between_rounds() -> None:
    """While the next round gathers the newest word still names the members of the last."""
    first = running("a", "b", "c", min_nodes=3).read("b").hear(record("b", 3, NodeState.WAITING, 1))
    first.hear(record("a", 3, NodeState.WAITING, 1))
    assert first.state.phase is RoundPhase.GATHERING
    second = first.successor("b", min_nodes=3).read("a", "c")
    second.hear(record("c", 3, NodeState.WAITING, 1))
    assert second.state.phase is RoundPhase.RUNNING
    assert [member.node for member in second.state.members] == ["a", "b", "c"]


def test_a_failure_that_was_not_settled_is_settled_by_the_successor() -> None:
    """Whoever failed first is charged when all have answered, as if nothing had happened."""
    broken = record("c", 3, NodeState.BROKEN, 1, FAILURE)
    first = running("a", "b", "c").hear(broken)
    assert first.state.phase is RoundPhase.OVER
    second = first.successor("b").read("a", "c")
    assert (second.state.phase, second.state.end.settled) == (RoundPhase.OVER, False)
    second.hear(*(record(name, 3, NodeState.WAITING, 1) for name in "ab"))
    second.hear(record("c", 4, NodeState.WAITING, 1, FAILURE))
    assert (second.state.number, second.state.restarts) == (2, 1)
    assert second.state.end.ending is not None
    assert second.state.end.ending.charged == "c"


def test_a_failure_is_the_echo_of_the_coordinators_own_death() -> None:
    """The coordinator's node died, a peer failed of it, and nobody saw it in that order: nobody is charged."""
    first = running("a", "b", "c").hear(record("c", 3, NodeState.BROKEN, 1, FAILURE))
    second = first.successor("b").hear(record("b", 3, NodeState.WAITING, 1)).read("c")
    second.hear(record("c", 4, NodeState.WAITING, 1, FAILURE))
    assert (second.state.number, second.state.restarts) == (2, 0)
    assert second.state.end.ending is not None
    assert second.state.end.ending.kind is EndKind.DEPARTURE


def test_a_failure_that_nobody_announced_is_found_in_the_records() -> None:
    """The coordinator died between seeing it and saying so."""
    first = running("a", "b", "c")
    first.store.records["c"] = record("c", 3, NodeState.BROKEN, 1, FAILURE)
    second = first.successor("b")
    assert second.state.phase is RoundPhase.OVER
    assert second.state.end.ending is not None
    assert second.state.end.ending.failure == FAILURE


def test_a_charge_is_still_announced_after_a_takeover() -> None:
    """A node that has not yet heard what the last round cost it hears it from the successor."""
    first = running("a", "b", "c", min_nodes=3).hear(record("c", 3, NodeState.BROKEN, 1, FAILURE))
    first.hear(*(record(name, 3, NodeState.STOPPING, 1) for name in "ab"))
    first.hear(*(record(name, 4, NodeState.WAITING, 1) for name in "ab")).hear(record("c", 4, NodeState.LEAVING, 1))
    first.hear(record("c", 5, NodeState.ENDED, 1))
    assert first.state.phase is RoundPhase.GATHERING
    word = first.successor("b", min_nodes=3).store.word
    assert word is not None
    assert word.ended == first.state.end.ending


def test_the_finalisation_barrier_begins_anew() -> None:
    """No clock reaches from one host to another; those who finished stay finished."""
    first = running("a", "b", "c", exit_barrier_s=60.0).hear(record("c", 3, NodeState.FINISHED, 1))
    second = first.successor("b", exit_barrier_s=60.0)
    assert second.state.barrier_until == 1060.0
    second.hear(*(record(name, 3, NodeState.FINISHED, 1) for name in "ab"))
    assert second.state.outcome is Outcome.SUCCEEDED


def test_a_closed_job_stays_closed() -> None:
    """With the outcome that was announced, whoever is gone by then."""
    first = running("a", "b", "c").hear(*(record(name, 3, NodeState.FINISHED, 1) for name in "abc"))
    assert first.state.phase is RoundPhase.CLOSED
    second = first.successor("b").read()
    assert (second.state.phase, second.state.outcome) == (RoundPhase.CLOSED, Outcome.SUCCEEDED)
    second.hear(*(record(name, 4, NodeState.ENDED, 1) for name in "bc"))
    assert Retire() in second.effects


def test_a_job_whose_record_says_that_it_ended_is_closed() -> None:
    """A node that comes when all others have ended and all has been cleared begins nothing, and says what was last."""
    state = machine.step(
        Rendezvous(), Elected(9, None, (record("z"),), version=12, outcome=Outcome.FAILED), 0.0, Rules(own="z")
    )
    assert (state.state.phase, state.state.outcome) == (RoundPhase.CLOSED, Outcome.FAILED)
    announced = [effect.round for effect in state.effects if isinstance(effect, Announce)]
    assert [word.version for word in announced] == [13]


def test_a_member_that_never_spoke_of_its_place_holds_the_next_round_up() -> None:
    """It may be about to start workers of the last round; the successor cannot know, and waits for its word."""
    first = Coordinator(Store(), "a", 1, max_nodes=3)
    first.hear(*(record(name) for name in "abc"))
    first.hear(*(record(name, 2, NodeState.WORKING, 1) for name in "ab"))
    second = first.successor("b").read("c")
    second.hear(record("b", 3, NodeState.WAITING, 1))
    assert second.state.phase is RoundPhase.OVER
    second.hear(record("c", 2, NodeState.WAITING, 1))
    assert (second.state.phase, second.state.number) == (RoundPhase.RUNNING, 2)


def test_a_node_counts_as_waiting_once_it_speaks_of_the_last_round() -> None:
    """It was lost and came back, and may have a place in a round of which the successor knows no members any more."""
    first = (
        running("a", "b", "c", min_nodes=3).read("b").hear(*(record(name, 3, NodeState.WAITING, 1) for name in "ab"))
    )
    assert first.state.phase is RoundPhase.GATHERING
    first.store.records["c"] = record("c")
    second = first.successor("b", min_nodes=3).read("a", "c")
    assert second.state.phase is RoundPhase.GATHERING
    assert second.hear(record("c", 2, NodeState.WAITING, 1)).state.phase is RoundPhase.RUNNING


def test_a_member_without_a_record_is_as_good_as_lost() -> None:
    """Somebody spoiled it: that costs its place, and no more."""
    first = running("a", "b", "c")
    del first.store.records["c"]
    second = first.successor("b").read("a")
    assert second.state.phase is RoundPhase.OVER
    assert second.hear(record("c", 9, NodeState.WAITING, 1)).state.nodes["c"].waiting


def test_a_deposed_coordinator_is_silent() -> None:
    """Whatever it learns, until it is elected again."""
    first = running("a", "b", "c").tell(Deposed())
    for event in (NodeSeen(record("c", 3, NodeState.BROKEN, 1, FAILURE)), BeatsSeen({}, 60.0), DeadlineReached()):
        assert first.tell(event).effects == ()
    assert not first.state.leading
    again = first.tell(Elected(5, first.store.word, tuple(first.store.records.values())))
    assert (again.state.phase, again.state.epoch) == (RoundPhase.RUNNING, 5)


@pytest.mark.parametrize("times", [1, 2, 5])
def test_waiting_times_begin_anew_and_are_never_shorter(times: int) -> None:
    """Each takeover may make a gathering longer by the join timeout, and never ends it sooner."""
    first = Coordinator(Store(), "a", 1, join_timeout_s=100.0)
    coordinator = first.hear(record("a"))
    for _ in range(times):
        coordinator = coordinator.successor("a", join_timeout_s=100.0)
        assert coordinator.state.since == 1000.0
        assert coordinator.state.phase is RoundPhase.GATHERING
    coordinator.read("a")
    coordinator.now = 1100.0
    assert coordinator.tell(DeadlineReached()).read("a").state.outcome is Outcome.JOIN_TIMED_OUT


def test_a_place_is_not_forgotten_for_a_record_that_does_not_speak_of_it() -> None:
    """Said again before the node heard of the round: it may still start workers of it."""
    made = Coordinator(Store(), "a", 1, max_nodes=2).hear(record("a"), record("b"))
    assert made.state.phase is RoundPhase.RUNNING
    assert made.hear(record("b", 2)).state.nodes["b"].may_have_workers


def test_who_hears_nothing_does_not_say_who_is_missing() -> None:
    """A coordinator that stood still, or that no answer reaches, looks once more when the join timeout has come: those
    who came meanwhile are there."""
    deaf = Coordinator(Store(), "a", 1, join_timeout_s=100.0).hear(record("a"))
    deaf.now = 100.0
    deaf.tell(DeadlineReached())
    assert ReadBeats(()) in deaf.effects
    deaf.now = 500.0
    assert deaf.tell(DeadlineReached()).state.outcome is None
    assert deaf.hear(record("b"), record("c")).read("a", "b", "c").state.phase is RoundPhase.RUNNING


def test_an_answer_from_before_does_not_say_who_is_missing() -> None:
    """It lay unread while the coordinator stood still."""
    late = Coordinator(Store(), "a", 1, min_nodes=3, join_timeout_s=100.0).hear(record("a"), record("b"))
    late.now = 300.0
    assert late.read("a", "b").state.outcome is None
    late.now = 301.0
    assert late.read("a", "b").state.outcome is Outcome.JOIN_TIMED_OUT


def test_who_hears_nothing_does_not_say_who_has_not_finished() -> None:
    """The end of the finalisation barrier waits for an answer of the store, too."""
    deaf = running("a", "b").hear(record("a", 3, NodeState.FINISHED, 1))
    until = deaf.state.barrier_until
    assert until is not None
    deaf.read("a", "b")
    deaf.now = until + 50.0
    assert deaf.tell(DeadlineReached()).state.outcome is None
    last = record("b", 3, NodeState.FINISHED, 1)
    assert deaf.hear(last).read("a", "b").state.outcome is Outcome.SUCCEEDED


@given(any_round, st.lists(any_node, max_size=4), st.lists(st.text(max_size=3), max_size=3))
def test_no_word_and_no_record_breaks_a_successor(word: Round, records: list[NodeRecord], alive: list[str]) -> None:
    """Anybody on the network may have written them; what comes of it is a decision like any other."""
    rules = Rules(own="own", min_nodes=1, max_nodes=4)
    made = machine.step(Rendezvous(), Elected(2, word, tuple(records)), 0.0, rules)
    for event in (BeatsSeen(dict.fromkeys(alive, 0), 60.0), DeadlineReached()):
        made = machine.step(made.state, event, 1.0, rules)
    assert all(isinstance(effect, Announce | ReadBeats | WakeAt | Retire) for effect in made.effects)
