"""The agent's machine, one decision at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_agent.agent import exit_status
from elastic_agent.agent.lifecycle import events, machine
from elastic_agent.agent.lifecycle.state import Node, Phase, Place, RoundTally, Rules, StoreOutage, Verdict
from elastic_agent.agent.lifecycle.stop_ladder import Ladder, Rung
from elastic_agent.rendezvous.driver import events as store_events
from elastic_agent.rendezvous.failures import charges
from elastic_agent.rendezvous.records import Member, NodeState, RoundPhase
from elastic_agent.rendezvous.store import StoreElsewhere, StoreError, StoreForeign, StoreReplaced
from support.builders import announcement, record

RULES = Rules(node="a", name="a")
RUNNING = announcement(RoundPhase.RUNNING, 1, (Member("a", "a", 0, 0, 1),), version=2)
VERDICT = Verdict(0, "done")


def test_a_late_wake_up_does_not_give_up_the_store() -> None:
    """A wake-up 50 s late means that this agent was frozen: it allows the store 5 s more, then exits."""
    node = Node(phase=Phase.WORKING, tally=RoundTally(1, frozenset({0})), outage=StoreOutage(10.0, "no answer"))
    late = machine.step(node, events.DeadlineReached(), 60.0, RULES)
    assert late.node.phase is Phase.WORKING
    assert late.effects == (events.WakeAt(65.0),)
    gone = machine.step(late.node, events.DeadlineReached(), 65.0, RULES)
    assert gone.node.verdict is not None
    assert gone.node.verdict.exit_code == exit_status.STORE_LOST


def test_a_port_that_a_missed_round_may_have_used_is_not_offered_again() -> None:
    """The store answers again before another port is ready; workers elsewhere may have read the old one."""
    node = Node(place=Place("h"))
    over = replace(RUNNING, phase=RoundPhase.OVER, master_addr="h", master_port=1)
    published: list[tuple[int, NodeState]] = []
    for event in (
        store_events.StoreOpened(False, "h"),
        events.PlacePrepared(1, 1),
        store_events.StoreWentAway("no answer"),
        store_events.RoundSeen(over),
        store_events.StoreCameBack(),
        events.PlacePrepared(1, 2),
    ):
        step = machine.step(node, event, 1.0, RULES)
        node = step.node
        published += [
            (each.record.port, each.record.state) for each in step.effects if isinstance(each, events.Publish)
        ]
    assert published == [(1, NodeState.WAITING), (2, NodeState.WAITING)]


def serving() -> Node:
    """A host whose last record is acknowledged, while other nodes still need its store."""
    ending = Node(phase=Phase.ENDING, hosting=True, latest_round=RUNNING, verdict=VERDICT, conclude_at=3.0)
    return machine.step(ending, store_events.RecordWritten(1), 0.0, RULES).node


def test_a_host_that_only_serves_survives_a_broken_connection_of_its_own() -> None:
    """Other nodes may still reach its store, so it serves on when its own connection is back within the grace."""
    away = machine.step(serving(), store_events.StoreWentAway("no answer within 5 s"), 10.0, RULES)
    assert away.effects == (events.WakeAt(10.0 + RULES.store_grace_s),)
    back = machine.step(away.node, store_events.StoreCameBack(), 12.0, RULES)
    later = machine.step(back.node, events.DeadlineReached(), 10.0 + RULES.store_grace_s, RULES)
    assert later.node.phase is Phase.ENDING


def test_a_host_that_cannot_reach_its_own_store_for_the_grace_stops_serving() -> None:
    """It could not read that the others have ended. A late wake-up allows 5 s more."""
    away = machine.step(serving(), store_events.StoreWentAway("no answer within 5 s"), 10.0, RULES).node
    assert machine.step(away, events.DeadlineReached(), 13.0, RULES).node.phase is Phase.ENDING
    until = 10.0 + RULES.store_grace_s
    barely = machine.step(away, events.DeadlineReached(), until + 0.3, RULES)
    assert (barely.node.phase, barely.effects) == (Phase.ENDING, (events.WakeAt(until + 5.3),))
    late = machine.step(away, events.DeadlineReached(), 500.0, RULES)
    assert late.node.phase is Phase.ENDING
    assert late.effects == (events.WakeAt(505.0),)
    assert machine.step(late.node, events.DeadlineReached(), 505.0, RULES).node.phase is Phase.ENDED


def test_an_early_wake_up_is_asked_for_again() -> None:
    """Clocks round: a wake-up 1 ms early must end neither the wait for an acknowledgement nor the store's grace."""
    guest = Node(phase=Phase.ENDING, latest_round=RUNNING, verdict=VERDICT, conclude_at=3.0)
    early = machine.step(guest, events.DeadlineReached(), 2.999, RULES)
    assert (early.node.phase, early.effects) == (Phase.ENDING, (events.WakeAt(3.0),))
    until = 10.0 + RULES.store_grace_s
    away = machine.step(serving(), store_events.StoreWentAway("no answer within 5 s"), 10.0, RULES).node
    assert machine.step(away, events.DeadlineReached(), until - 0.001, RULES).effects == (events.WakeAt(until),)


def test_a_host_that_has_given_up_its_store_ends() -> None:
    """It can no longer read that the others have ended, so it exits 3 s after its last record."""
    node = Node(phase=Phase.JOINING, hosting=True, place=Place(ready=True), outage=StoreOutage(30.0, "no answer"))
    given_up = machine.step(node, events.DeadlineReached(), 30.0, RULES).node
    assert given_up.phase is Phase.ENDING
    assert machine.step(given_up, events.DeadlineReached(), 33.0, RULES).node.phase is Phase.ENDED


def test_a_late_wake_up_does_not_give_up_killed_workers() -> None:
    """Their exit may be queued, unread: the agent waits 5 s more, then gives up."""
    killed = Ladder(Rung.KILLED, 20.0, 0.5)
    node = Node(phase=Phase.STOPPING, tally=RoundTally(1, frozenset({0})), ladder=killed)
    late = machine.step(node, events.DeadlineReached(), 500.0, RULES)
    assert late.node.phase is Phase.STOPPING
    assert late.effects == (events.WakeAt(505.0),)
    assert machine.step(late.node, events.WorkersGone(), 500.1, RULES).node.phase is Phase.JOINING
    given_up = machine.step(late.node, events.DeadlineReached(), 505.0, RULES).node
    assert given_up.phase is Phase.ENDING
    assert given_up.verdict is not None
    assert "workers still run 10 s after SIGKILL" in given_up.verdict.because


def test_workers_that_exited_0_stay_finished_when_the_nursery_is_lost() -> None:
    """The nursery only waited for the processes that they had left behind; it is started again."""
    node = Node(phase=Phase.STOPPING, finished=True, tally=RoundTally(1))
    after = machine.step(node, events.NurseryLost("signal 9"), 0.0, RULES)
    assert after.node.phase is Phase.FINISHED
    assert events.RestartNursery() in after.effects


def test_a_lost_nursery_breaks_the_round() -> None:
    """The node publishes a failure in its record, and joins the next round."""
    node = Node(phase=Phase.WORKING, tally=RoundTally(1, frozenset({0, 1})), latest_round=RUNNING)
    after = machine.step(node, events.NurseryLost("signal 9"), 0.0, RULES)
    published = [effect.record for effect in after.effects if isinstance(effect, events.Publish)]
    assert [(each.state, each.round) for each in published] == [(NodeState.BROKEN, 1)]
    assert published[0].failure is not None
    assert after.node.phase is Phase.JOINING


def test_a_lost_store_of_the_workers_breaks_the_round_and_charges_nobody() -> None:
    """The workers are stopped on all nodes; the failure is the host's, named in the record."""
    node = Node(phase=Phase.WORKING, tally=RoundTally(1, frozenset({0, 1})), latest_round=RUNNING)
    after = machine.step(node, events.WorkerStoreLost("it was killed by signal 9"), 0.0, RULES)
    published = [effect.record for effect in after.effects if isinstance(effect, events.Publish)]
    assert [(each.state, each.round) for each in published] == [(NodeState.BROKEN, 1)]
    failure = published[0].failure
    assert failure is not None
    assert not charges(failure)
    assert "the process that serves the workers' store died (it was killed by signal 9)" in failure.message
    assert after.node.phase is Phase.STOPPING
    assert events.SignalWorkers(15) in after.effects


def test_a_worker_that_stands_still_breaks_the_round_and_is_charged() -> None:
    """Its node stops all its workers, as for any failure; the message and the stacks are the failure's."""
    node = Node(phase=Phase.WORKING, tally=RoundTally(1, frozenset({0, 1})), latest_round=RUNNING)
    after = machine.step(node, events.HangFound(node.round, 1, "stands still for 9 s", "stacks"), 0.0, RULES)
    published = [effect.record for effect in after.effects if isinstance(effect, events.Publish)]
    assert [each.state for each in published] == [NodeState.BROKEN]
    failure = published[0].failure
    assert failure is not None
    assert charges(failure)
    assert (failure.local_rank, failure.message, failure.said) == (1, "stands still for 9 s", "stacks")
    assert after.node.phase is Phase.STOPPING
    assert events.SignalWorkers(15) in after.effects


@pytest.mark.parametrize(("number", "local_rank"), [(2, 0), (1, 2)], ids=["another round", "it has exited"])
def test_a_hang_that_is_over_changes_nothing(number: int, local_rank: int) -> None:
    """Between the finding and the order the round may have ended, or the worker."""
    node = Node(phase=Phase.WORKING, tally=RoundTally(1, frozenset({0, 1})), latest_round=RUNNING)
    after = machine.step(node, events.HangFound(number, local_rank, "stands still"), 0.0, RULES)
    assert (after.node, after.effects) == (node, ())


def test_a_host_that_keeps_losing_its_workers_store_is_left() -> None:
    """The third time in a row, as with any failure of the host."""
    node = Node(phase=Phase.WORKING, tally=RoundTally(1, frozenset({0})), latest_round=RUNNING)
    verdicts = []
    for at in range(3):
        lost = machine.step(node, events.WorkerStoreLost("signal 9"), float(at), RULES).node
        verdicts.append(lost.verdict.exit_code if lost.verdict is not None else None)
        node = replace(node, budget=lost.budget)
    assert verdicts == [None, None, exit_status.HOST_FAILED]


@pytest.mark.parametrize("phase", [Phase.JOINING, Phase.STOPPING, Phase.FINISHED, Phase.ENDING])
def test_a_lost_store_of_the_workers_changes_nothing_where_none_runs(phase: Phase) -> None:
    """Its round is over here; a node that has finished mentions it, for the others' sake."""
    node = Node(phase=phase, tally=RoundTally(1), verdict=VERDICT if phase is Phase.ENDING else None)
    after = machine.step(node, events.WorkerStoreLost("signal 9"), 0.0, RULES)
    assert (after.node.phase, after.effects) == (phase, ())
    assert ("workers of other nodes fail if they still need it" in after.because) == (phase is Phase.FINISHED)


def test_a_node_that_has_had_no_round_begins_again_where_its_job_goes_on() -> None:
    """What it had joined is none. With a round behind it, its workers are killed as by any other store in the place of
    its own."""
    found = store_events.StoreFailed(StoreElsewhere("the job goes on at h:1"))
    joined = replace(Node(), phase=Phase.JOINING, hosting=True, leading=True, requested=2)
    after = machine.step(joined, found, 1.0, RULES)
    assert after.effects == (events.OpenStore(),)
    assert after.node == Node(because="the job goes on at h:1; joining it there", requested=2)
    later = machine.step(after.node, events.PlacePrepared(1, 5), 1.0, RULES)
    assert later.node is after.node
    worked = machine.step(Node(phase=Phase.WORKING, tally=RoundTally(1, frozenset({0}))), found, 1.0, RULES)
    assert events.KillWorkers() in worked.effects
    waits = machine.step(replace(joined, tally=RoundTally(1)), found, 1.0, RULES)
    assert waits.node.phase is Phase.ENDING


def test_workers_get_no_grace_where_another_store_is_in_the_place_of_this_nodes() -> None:
    """Their job is gone, and the new one's workers may start; also where a first thread had reported less, and they
    were being stopped. Of a store that only broke they have their grace."""
    node = Node(phase=Phase.WORKING, tally=RoundTally(1, frozenset({0})))
    broke = machine.step(node, store_events.StoreFailed(StoreForeign("broken")), 1.0, RULES)
    assert events.KillWorkers() not in broke.effects
    for before in (node, broke.node):
        after = machine.step(before, store_events.StoreFailed(StoreReplaced("another one")), 1.0, RULES)
        assert events.KillWorkers() in after.effects
        assert after.node.verdict is not None
        assert after.node.verdict.exit_code == exit_status.STORE_LOST


def test_a_node_that_leaves_while_the_store_is_away_exits_as_it_was_asked_to() -> None:
    """Its workers save first, and the store is given up meanwhile: whoever sent SIGTERM expects its status."""
    rules = replace(RULES, settle_s=60.0, grace_s=80.0, store_grace_s=30.0)
    working = Node(phase=Phase.WORKING, record=record("a", 1, NodeState.WORKING, 1))
    away = machine.step(working, store_events.StoreWentAway("no answer within 5 s"), 0.0, rules).node
    leaving = machine.step(away, events.SignalReceived(15), 10.0, rules).node
    assert leaving.verdict is None
    given_up = machine.step(leaving, events.DeadlineReached(), 30.0, rules).node
    assert given_up.verdict is not None
    assert given_up.verdict.exit_code == 143
    assert "signal 15; the store at" in given_up.verdict.because
    failed = machine.step(leaving, store_events.StoreFailed(StoreError("gone")), 20.0, rules).node
    assert failed.verdict is not None
    assert failed.verdict.exit_code == 143
