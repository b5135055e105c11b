"""The coordinator's machine, one decision at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_agent.rendezvous.coordinator import charging, events, machine
from elastic_agent.rendezvous.coordinator.nodes import Seen
from elastic_agent.rendezvous.coordinator.state import Rendezvous, RoundEnd, Rules
from elastic_agent.rendezvous.failures import Ending, EndKind
from elastic_agent.rendezvous.records import NodeState, Outcome, Round, RoundPhase
from support.builders import FAILURE, FINAL, after_records, record

BEGUN = Rendezvous(epoch=1)
"""A coordinator in its first term that has read nothing yet."""


def test_a_stale_record_changes_nothing() -> None:
    """A record may be read again or late; only one with a greater `seq` counts."""
    rules = Rules(own="a", max_nodes=2)
    state = after_records(BEGUN, 0.0, rules, record("a", seq=5))
    for seq in (5, 4):
        step = machine.step(state, events.NodeSeen(record("a", seq, NodeState.ENDED)), 0.0, rules)
        assert step.state.nodes == state.nodes
        assert step.state.phase is state.phase


def test_an_early_or_repeated_wake_up_is_harmless() -> None:
    """A DeadlineReached before its time, or a second one, decides and announces nothing."""
    rules = Rules(own="a", max_nodes=2)
    state = after_records(BEGUN, 0.0, rules, record("a"))
    for _ in range(3):
        step = machine.step(state, events.DeadlineReached(), 0.9, rules)
        assert not [effect for effect in step.effects if isinstance(effect, events.Announce)]
        state = step.state
    assert state.phase is RoundPhase.LAST_CALL


def test_versions_count_by_one() -> None:
    """Each announcement has the next version, so that a reader can wait for it."""
    rules = Rules(own="a", max_nodes=2)
    state = after_records(BEGUN, 0.0, rules, record("a"))
    assert state.version == 1
    assert after_records(state, 0.1, rules, record("b")).version == 2


def test_a_node_that_has_not_answered_for_its_place_delays_the_next_round() -> None:
    """It may be about to start workers of that round, so the next one waits for its record."""
    rules = Rules(own="a", max_nodes=2, min_nodes=1)
    state = after_records(BEGUN, 0.0, rules, record("a"), record("b"))
    assert state.phase is RoundPhase.RUNNING
    state = after_records(state, 1.0, rules, record("a", 2, NodeState.WORKING, 1))
    state = after_records(state, 2.0, rules, record("a", 3, NodeState.BROKEN, 1, FAILURE))
    state = after_records(state, 3.0, rules, record("a", 4, NodeState.WAITING, 1, FAILURE))
    assert (state.phase, state.number) == (RoundPhase.OVER, 1)
    state = after_records(state, 4.0, rules, record("b", 2, NodeState.WAITING, 1))
    assert (state.phase, state.number) == (RoundPhase.RUNNING, 2)


def test_a_job_that_closes_before_its_last_ending_is_settled_charges_no_node() -> None:
    """Too few nodes remain, so the job closes LAST_WORDS_S after the failure, before its cause is known."""
    rules = Rules(own="a", max_nodes=3, min_nodes=3)
    state = after_records(BEGUN, 0.0, rules, *(record(node) for node in "abc"))
    state = after_records(state, 1.0, rules, *(record(node, 2, NodeState.WORKING, 1) for node in "abc"))
    state = after_records(state, 2.0, rules, record("c", 3, NodeState.FINISHED, 1))
    broken = record("a", 3, NodeState.BROKEN, 1, FAILURE)
    state = after_records(state, 3.0, rules, broken)
    state = machine.step(state, events.DeadlineReached(), 3.0 + charging.LAST_REPORTS_S / 2, rules).state
    assert state.phase is RoundPhase.OVER
    state = machine.step(state, events.DeadlineReached(), 3.0 + charging.LAST_REPORTS_S, rules).state
    assert (state.phase, state.outcome) == (RoundPhase.CLOSED, Outcome.FAILED)
    assert state.end.ending is not None
    assert (state.end.ending.failure, state.end.ending.charged) == (FAILURE, "")


def test_the_last_settled_ending_is_announced_until_the_next_is_settled() -> None:
    """A node that missed a whole round still reads whether it was charged for the one before."""
    ending = Ending(1, EndKind.FAILURE, "failed", "a", FAILURE)
    state = Rendezvous(epoch=1, announced=Round(3, 1, 2, RoundPhase.RUNNING, "here", ended=ending), number=2)
    view = replace(state, end=RoundEnd(Ending(2, EndKind.DEPARTURE, "left"), settled=False)).view(4, "here")
    assert view.ended == ending


def test_the_coordinator_does_not_retire_before_its_own_first_record() -> None:
    """Other nodes may join and end before its own node has published a record."""
    rules = Rules(own="a")
    step = machine.step(BEGUN, events.NodeSeen(record("b", 1, NodeState.ENDED)), 0.0, rules)
    assert step.state.phase is RoundPhase.GATHERING
    assert events.Retire() not in step.effects


def test_a_node_never_waits_while_it_may_have_workers() -> None:
    """A node that has not answered for an earlier round is no candidate for the next."""
    for state in NodeState:
        for lost in (False, True):
            for placed in (0, 1, 2):
                seen = Seen(record("a", 1, state, 1), 0, 0.0, 0.0, lost=lost, placed=placed)
                assert not (seen.waiting and seen.may_have_workers)


def test_a_record_of_a_round_to_come_does_not_break_the_coordinator() -> None:
    """No agent publishes one, but any client of the store can write it: it gives up no place, whatever its state."""
    for other in (NodeState.WAITING, NodeState.STOPPING):
        rules = Rules(own="a", min_nodes=1, max_nodes=2)
        state = after_records(BEGUN, 0.0, rules, record("b", 1, other, 9), record("a"))
        assert after_records(state, 1.0, rules, record("b", 2, other, 9)).number == 1


# -- failures that forbid a restart, and pauses ------------------------------------------------------------------------

TWO = Rules(own="a", min_nodes=1, max_nodes=2, exit_barrier_s=30.0)


def running(rules: Rules = TWO) -> Rendezvous:
    """Round 1, as its members have started their workers."""
    names = "abc"[: rules.max_nodes]
    state = machine.step(Rendezvous(), events.Elected(1), 0.0, rules).state
    state = after_records(state, 0.0, rules, *(record(each) for each in names))
    return after_records(state, 1.0, rules, *(record(each, 2, NodeState.WORKING, 1) for each in names))


@pytest.mark.parametrize("order", ["final first", "final last", "after the other answered"])
def test_a_failure_that_forbids_a_restart_ends_the_job_in_any_order(order: str) -> None:
    """It is the cause and charges no node, and the job closes without waiting for other records."""
    final, other = record("a", 3, NodeState.BROKEN, 1, FINAL), record("b", 3, NodeState.BROKEN, 1, FAILURE)
    if order == "after the other answered":
        state = after_records(running(), 2.0, TWO, other, record("b", 4, NodeState.WAITING, 1), final)
    else:
        state = after_records(running(), 2.0, TWO, *((final,) if order == "final first" else (other, final)))
    assert (state.phase, state.outcome) == (RoundPhase.CLOSED, Outcome.FAILED)
    assert state.end.ending is not None
    assert (state.end.ending.failure, state.end.ending.charged, state.end.ending.kind) == (FINAL, "", EndKind.FAILURE)
    assert "exit code 93 forbids a restart there" in state.because


@pytest.mark.parametrize("last", [NodeState.LEAVING, NodeState.ENDED])
def test_a_failure_that_forbids_a_restart_counts_although_its_node_leaves(last: NodeState) -> None:
    """The node was asked to leave at the same moment; the others must not restart."""
    state = after_records(running(), 2.0, TWO, record("b", 3, last, 1, FINAL))
    assert (state.phase, state.outcome) == (RoundPhase.CLOSED, Outcome.FAILED)


def test_the_next_round_waits_for_a_node_that_pauses_however_long() -> None:
    """Neither the join timeout nor the last call runs while its record says that a worker failed."""
    state = after_records(
        running(), 2.0, TWO, record("b", 3, NodeState.BROKEN, 1, FAILURE), record("a", 3, NodeState.WAITING, 1)
    )
    late = machine.step(state, events.DeadlineReached(), 10_000.0, TWO)
    assert (late.state.phase, late.state.number) == (RoundPhase.OVER, 1)
    assert after_records(late.state, 10_001.0, TWO, record("b", 4, NodeState.WAITING, 1)).phase is RoundPhase.RUNNING


def test_a_pause_does_not_outlast_the_finalisation_barrier() -> None:
    """A finished node waits for the barrier and no longer, also while another node pauses."""
    rules = replace(TWO, max_nodes=3)
    state = after_records(running(rules), 2.0, rules, record("c", 3, NodeState.FINISHED, 1))
    over = machine.step(state, events.NodeSeen(record("b", 3, NodeState.BROKEN, 1, FAILURE)), 3.0, rules)
    assert over.state.phase is RoundPhase.OVER
    watched = machine.step(over.state, events.BeatsSeen({}), 31.9, rules)
    assert events.WakeAt(32.0) in watched.effects
    asked = machine.step(watched.state, events.DeadlineReached(), 32.0, rules)
    assert events.ReadBeats in map(type, asked.effects)  # a node may have joined whose record is unread
    closed = machine.step(asked.state, events.BeatsSeen({}), 32.1, rules).state
    assert (closed.phase, closed.outcome) == (RoundPhase.CLOSED, Outcome.UNFINISHED)


@pytest.mark.parametrize("phase", [RoundPhase.GATHERING, RoundPhase.LAST_CALL])
def test_a_lost_node_that_is_back_with_workers_does_not_outlast_the_finalisation_barrier(phase: RoundPhase) -> None:
    """A finished node waits for the barrier and no longer, also while the next round waits for a node to stop its
    workers."""
    rules = replace(TWO, max_nodes=3)
    records = record("c", 3, NodeState.FINISHED, 1), record("a", 3, NodeState.WAITING, 1)
    back = replace(after_records(running(rules), 2.0, rules, *records), phase=phase, number=2, since=3.0)
    early = machine.step(back, events.BeatsSeen({}), 31.9, rules).state
    assert early.phase is phase
    asked = machine.step(early, events.DeadlineReached(), 32.5, rules)
    closed = machine.step(asked.state, events.BeatsSeen({}), 32.6, rules).state
    assert (closed.phase, closed.outcome) == (RoundPhase.CLOSED, Outcome.UNFINISHED)


# -- a static rendezvous: --node-rank decides --------------------------------------------------------------------------


class Static:
    """A coordinator on node a, which has rank 0, of a static job of three nodes."""

    def __init__(self) -> None:
        self.rules = Rules(own="a", min_nodes=3, max_nodes=3, static=True)
        self.state = BEGUN
        self.now = 0.0
        self.counts: dict[str, int] = {}
        self.join("a", 0)

    def join(self, node: str, rank: int) -> Static:
        self.state = after_records(self.state, self.now, self.rules, record(node, preferred_rank=rank))
        return self

    def lasts(self, seconds: float, *alive: str) -> Static:
        """So long, nodes that are alive send heartbeats, which are read."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + 0.5)
            for node in alive:
                self.counts[node] = self.counts.get(node, 0) + 1
            self.state = machine.step(self.state, events.BeatsSeen({**self.counts}), self.now, self.rules).state
        return self


def test_a_dead_claimant_of_a_static_rank_harms_nobody() -> None:
    """Node b is killed while nodes gather and started again within its lease: its old claim ends with its lease."""
    job = Static().join("b", 1).lasts(2.0, "b").join("b again", 1)
    assert job.state.outcome is None
    assert "b and b again both have --node-rank 1" in job.state.because
    job.join("c", 2).lasts(6.0, "b again", "c")
    assert job.state.phase is RoundPhase.RUNNING
    assert [member.node for member in job.state.members] == ["a", "b again", "c"]


def test_living_claimants_of_a_static_rank_end_the_job() -> None:
    """Both are alive a lease and a heartbeat after the first reading, and not before: the job is misconfigured."""
    job = Static().join("b", 1).join("c", 1).lasts(6.0, "b", "c")
    assert job.state.phase is RoundPhase.GATHERING
    assert job.lasts(0.5, "b", "c").state.outcome is Outcome.MISCONFIGURED
    assert job.state.because == "b and c both have --node-rank 1; give each node its own"


def test_a_static_rank_that_does_not_exist_counts_once_its_node_is_known_to_live() -> None:
    """A node that was killed for its wrong rank, and started again with the right one, is forgotten."""
    job = Static().join("b", 7).lasts(1.0, "b").join("c", 1).lasts(5.0, "c").join("d", 2)
    assert [member.node for member in job.state.members] == ["a", "c", "d"]
    assert Static().join("b", 7).join("c", 1).lasts(6.5, "b", "c").state.outcome is Outcome.MISCONFIGURED


def test_a_heartbeat_that_arrives_late_after_a_pause_does_not_make_a_claimant_live() -> None:
    """Node b claims a rank that does not exist, and dies. Its last heartbeat is read some time after the pause of the
    coordinator or its store: b must show others for a lease and a heartbeat from the pause on."""
    job = Static().join("b", 7).lasts(1.0, "b").join("c", 1)
    job.now += 10.0
    job.lasts(0.5, "c").lasts(0.5, "b", "c").lasts(5.5, "c")
    assert job.state.nodes["b"].lost
    assert job.state.phase is RoundPhase.GATHERING


def test_claimants_are_not_judged_while_the_coordinator_is_paused() -> None:
    """What it did not read proves nothing: after a pause each claimant must show another heartbeat."""
    job = Static().join("b", 1).lasts(1.0, "b").join("c", 1)
    job.now += 60.0
    assert job.lasts(0.5, "c").state.phase is RoundPhase.GATHERING
    assert job.lasts(6.0, "c").state.nodes["b"].lost
    assert job.state.phase is RoundPhase.GATHERING
