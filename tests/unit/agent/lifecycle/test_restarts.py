"""The agent's machine around a failure: pauses of a crash loop, failures of the host, charges, preemption."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_agent.agent import exit_status
from elastic_agent.agent.lifecycle import events, machine
from elastic_agent.agent.lifecycle.restart_policy import HEALTHY_S, MAX_HOST_FAILURES, Charge, Policy
from elastic_agent.agent.lifecycle.state import Budget, Node, Phase, Place, RoundTally, Rules
from elastic_agent.rendezvous.driver.events import RoundSeen, StoreCameBack, StoreWentAway
from elastic_agent.rendezvous.failures import Ending, EndKind, Sign
from elastic_agent.rendezvous.records import Member, NodeState, Outcome, Round, RoundPhase
from support.builders import FAILURE, FINAL, announcement, history

MEMBERS = (Member("a", "a", 0, 0, 2), Member("b", "b", 1, 2, 2))
RULES = Rules(node="a", name="a", restarts=Policy(max_restarts=100, pause_min_s=4.0, pause_max_s=4.0), max_nodes=2)
WORKING = Node(
    phase=Phase.WORKING,
    tally=RoundTally(2, running=frozenset({0, 1})),
    budget=Budget(history(97.0), settled_round=1),
)


def announced(phase: RoundPhase, number: int = 2, ended: Ending | None = None, version: int = 9) -> Round:
    return announcement(phase, number, MEMBERS, ended=ended, version=version)


def play(node: Node, *happened: tuple[float, events.Event], rules: Rules = RULES) -> tuple[Node, list[events.Effect]]:
    """The node after these events, each with its time, and the effects of the last."""
    effects: tuple[events.Effect, ...] = ()
    for now, event in happened:
        made = machine.step(node, event, now, rules)
        node, effects = made.node, made.effects
    return node, list(effects)


FAILS = (100.0, events.WorkerExited(0, FAILURE))
GONE = (100.5, events.WorkersGone())
CHARGED = Ending(2, EndKind.FAILURE, "failed", "a", FAILURE)
ECHO = Ending(2, EndKind.DEPARTURE, "b was lost; then failed", "", FAILURE)


# -- pauses ------------------------------------------------------------------------------------------------------------


def test_a_pause_counts_from_the_failure() -> None:
    """The time in which workers stop is part of it; an early wake-up changes nothing."""
    node, effects = play(WORKING, FAILS, GONE)
    assert node.phase is Phase.JOINING
    assert [type(each) for each in effects] == [events.Publish, events.WakeAt]
    assert effects[1] == events.WakeAt(104.0)
    assert "pausing 3.5 s" in node.because
    node, effects = play(node, (103.9, events.DeadlineReached()))
    assert effects == [events.WakeAt(104.0)]
    assert play(node, (104.0, events.DeadlineReached()))[1] == [events.PreparePlace()]


def test_no_pause_follows_a_stop_that_lasted_longer() -> None:
    """The pause was over when the workers had exited, so the node prepares a place at once."""
    assert play(WORKING, FAILS, (104.5, events.WorkersGone()))[1] == [events.PreparePlace()]


def test_a_node_that_pauses_keeps_its_record_of_the_failure() -> None:
    """The coordinator waits for such a node, and begins no round that the node would end by joining."""
    node, _ = play(WORKING, FAILS, GONE)
    assert node.record is not None
    assert (node.record.state, node.record.round) == (NodeState.BROKEN, 2)


@pytest.mark.parametrize(
    ("ended", "phase", "goes_on"),
    [
        (None, RoundPhase.OVER, False),  # the cause is not settled
        (Ending(1, EndKind.ARRIVAL, "an earlier one"), RoundPhase.OVER, False),
        (CHARGED, RoundPhase.OVER, False),
        (ECHO, RoundPhase.OVER, True),
        (replace(CHARGED, charged="b"), RoundPhase.OVER, True),
        (ECHO, RoundPhase.GATHERING, True),
    ],
)
def test_a_pause_ends_when_the_failure_is_not_charged(ended: Ending | None, phase: RoundPhase, goes_on: bool) -> None:
    """No other announcement ends it: neither an arrival, nor a departure, nor an unsettled ending."""
    node, _ = play(WORKING, FAILS, GONE)
    after, effects = play(node, (101.0, RoundSeen(announced(phase, ended=ended))))
    assert (events.PreparePlace() in effects) is goes_on
    assert (after.paused_until is None) is goes_on


@pytest.mark.parametrize(
    ("event", "status"),
    [
        (events.SignalReceived(15), 143),
        (events.LeaveAsked("drained"), exit_status.PREEMPTED),
        (
            RoundSeen(replace(announced(RoundPhase.CLOSED), outcome=Outcome.FAILED)),
            exit_status.WORKER_FAILED,
        ),
    ],
)
def test_a_pause_does_not_delay_the_end_of_the_node(event: events.Event, status: int) -> None:
    """A stop signal, a request to leave and the end of the job end the node at once."""
    node, _ = play(WORKING, FAILS, GONE, (101.0, event))
    assert (node.phase, node.verdict and node.verdict.exit_code) == (Phase.ENDING, status)


def test_a_store_outage_does_not_change_a_pause() -> None:
    """The record is published again when the store is back, and the pause ends when it would have."""
    node, _ = play(WORKING, FAILS, GONE, (101.0, StoreWentAway("no answer")))
    back, effects = play(node, (102.0, StoreCameBack()))
    assert [effect.record.state for effect in effects if isinstance(effect, events.Publish)] == [NodeState.BROKEN]
    assert play(back, (104.0, events.DeadlineReached()))[1] == [events.PreparePlace()]


# -- failures of the host ----------------------------------------------------------------------------------------------

LOST = events.NurseryLost("signal 9")
NO_RESTARTS = replace(RULES, restarts=replace(RULES.restarts, max_restarts=0))
LOSING = replace(WORKING, budget=Budget(), latest_round=announced(RoundPhase.RUNNING))


def lose(node: Node, now: float) -> tuple[Node, list[events.Effect]]:
    """The nursery is lost with its workers; then the next round begins, unless the node ends."""
    lost, effects = play(node, (now, LOST), rules=NO_RESTARTS)
    if lost.verdict is None:
        lost = replace(
            lost, phase=Phase.WORKING, paused_until=None, tally=replace(lost.tally, failures=(), failed_at=None)
        )
    return lost, effects


def test_a_lost_nursery_is_restarted_at_once_and_the_second_time_after_a_pause() -> None:
    """Failures of the host make a crash loop of their own and charge nothing; this node has no restarts."""
    once, effects = lose(LOSING, 100.0)
    assert effects[0] == events.RestartNursery()
    assert events.PreparePlace() in effects
    _, effects = lose(once, 101.0)
    assert effects[0] == events.RestartNursery()
    assert events.PreparePlace() not in effects
    assert events.WakeAt(105.0) in effects


def test_the_pause_after_failures_of_the_host_does_not_end_when_they_are_not_charged() -> None:
    """They are never charged, and the host may still be failing."""
    twice, _ = play(lose(LOSING, 100.0)[0], (101.0, LOST), rules=NO_RESTARTS)
    assert twice.paused_until is not None
    free = Ending(2, EndKind.FAILURE, "worker failed", "")
    after, effects = play(twice, (101.5, RoundSeen(announced(RoundPhase.GATHERING, 3, free))), rules=NO_RESTARTS)
    assert after.paused_until == twice.paused_until
    assert effects == []
    assert after.restarts_used == 0


def test_a_node_leaves_a_host_that_fails_three_times_in_a_row() -> None:
    """It ends with status 71 and publishes that it has ended, so that the others go on without it."""
    node = LOSING
    for number in range(MAX_HOST_FAILURES - 1):
        node, _ = lose(node, 100.0 + number)
    sick, effects = play(node, (110.0, LOST), rules=NO_RESTARTS)
    assert sick.phase is Phase.ENDING
    assert sick.verdict is not None
    assert (sick.verdict.exit_code, sick.restarts_used) == (71, 0)
    assert "3 times in a row" in sick.verdict.because
    assert [effect.record.state for effect in effects if isinstance(effect, events.Publish)] == [NodeState.ENDED]
    assert events.RestartNursery() not in effects


def test_failures_of_the_host_far_apart_are_no_crash_loop() -> None:
    """After HEALTHY_S without one the count begins anew, however many there were."""
    node = LOSING
    for number in range(10):
        node, _ = lose(node, number * (HEALTHY_S + 1.0))
    assert node.verdict is None


@pytest.mark.parametrize("phase", [Phase.CONNECTING, Phase.JOINING])
def test_a_node_without_workers_leaves_too_when_its_nursery_cannot_run(phase: Phase) -> None:
    """A host that cannot start processes cannot start a nursery either."""
    node, counted = Node(phase=phase, tally=RoundTally(1)), 0
    while node.verdict is None:
        node, _ = play(node, (0.1 * counted, LOST), rules=NO_RESTARTS)
        counted += 1
    assert (counted, node.verdict.exit_code) == (MAX_HOST_FAILURES, 71)


def test_workers_that_cannot_be_forked_are_a_failure_of_the_host() -> None:
    """fork(2) is refused: no restart is charged, and the third time in a row the node leaves."""
    refused = replace(FAILURE, sign=Sign.HOST, message="Resource temporarily unavailable: cannot fork")
    node = LOSING
    for number in range(MAX_HOST_FAILURES):
        assert node.verdict is None
        node, _ = play(
            replace(node, phase=Phase.WORKING), (100.0 + number, events.StartFailed(refused)), rules=NO_RESTARTS
        )
    assert node.phase is Phase.STOPPING
    assert node.verdict is not None
    assert node.verdict.exit_code == 71
    assert "cannot fork" in node.verdict.because


def test_charge_local_does_not_charge_failures_of_the_host() -> None:
    """--charge local counts failures of workers, whichever was the cause; a lost nursery is none."""
    rules = replace(RULES, charge_local=True)
    lost = machine.step(LOSING, LOST, 100.0, rules).node
    free = Ending(2, EndKind.FAILURE, "worker failed", "")
    after = machine.step(lost, RoundSeen(announced(RoundPhase.GATHERING, 3, free)), 101.0, rules).node
    assert (after.budget.settled_round, after.restarts_used) == (2, 0)


# -- charges and reports -----------------------------------------------------------------------------------------------


def test_a_failure_is_charged_once_with_the_time_it_was_seen() -> None:
    """However late and however often the charge is announced."""
    node, _ = play(WORKING, FAILS, GONE, (150.0, RoundSeen(announced(RoundPhase.GATHERING, 3, CHARGED))))
    assert (node.restarts_used, node.budget.charges.recent[-1]) == (2, Charge(100.0, 4.0))
    again, _ = play(node, (151.0, RoundSeen(announced(RoundPhase.GATHERING, 3, CHARGED, version=10))))
    assert again.budget.charges == node.budget.charges


@pytest.mark.parametrize(("max_restarts", "stays"), [(2, True), (1, False)])
def test_a_node_that_was_lost_ends_if_it_is_charged_a_restart_that_it_does_not_have(
    max_restarts: int, stays: bool
) -> None:
    """The others went on without it, so the job is not closed for it."""
    rules = replace(RULES, restarts=Policy(max_restarts=max_restarts))
    back = RoundSeen(announced(RoundPhase.GATHERING, 3, CHARGED))
    node, _ = play(WORKING, FAILS, GONE, (150.0, back), rules=rules)
    assert (node.verdict is None) is stays
    if node.verdict is not None:
        assert node.phase is Phase.ENDING
        assert (node.verdict.exit_code, node.verdict.cause) == (exit_status.WORKER_FAILED, FAILURE)
        assert "round 2 is charged to this node, which has no restart left (max_restarts 1)" in node.verdict.because


def test_the_record_has_the_budget_as_of_the_failure() -> None:
    """Not as of its own time, 6 s later, when an old charge has left the window."""
    rules = replace(RULES, restarts=Policy(max_restarts=1, window_s=10.0))
    working = replace(WORKING, budget=replace(WORKING.budget, charges=history(90.0)))
    stopping = machine.step(working, events.WorkerExited(0, FAILURE), 99.0, rules).node
    gone = machine.step(stopping, events.WorkersGone(), 105.0, rules).node
    offered = machine.step(gone, events.PlacePrepared(2, 4000), 105.0, rules).node
    assert offered.record is not None
    assert (offered.record.state, offered.record.restarts_left) == (NodeState.WAITING, 0)


def test_endings_that_charge_another_node_or_none_leave_the_history_alone() -> None:
    """After an arrival, a departure or another node's failure there is no charge and no pause."""
    for kind in EndKind:
        over = announced(RoundPhase.OVER)
        ended = Ending(2, kind, "not ours", "b" if kind is EndKind.FAILURE else "")
        node, _ = play(
            WORKING,
            (100.0, RoundSeen(over)),
            (100.5, events.WorkersGone()),
            (100.5, events.PlacePrepared(2, 4000)),
            (101.0, RoundSeen(announced(RoundPhase.GATHERING, 3, ended, version=10))),
        )
        assert node.budget.charges == WORKING.budget.charges
        assert node.paused_until is None


def test_an_exit_code_that_forbids_a_restart_counts_beside_a_failure_and_not_after_a_stop() -> None:
    """Of two workers that failed together either may be seen first; a code after this agent's SIGTERM means nothing."""
    late = (100.01, events.WorkerExited(1, FINAL))
    node, effects = play(WORKING, FAILS, late)
    published = [effect.record for effect in effects if isinstance(effect, events.Publish)]
    assert [(each.state, each.failure) for each in published] == [(NodeState.BROKEN, FINAL)]
    assert play(node, (100.02, events.WorkerExited(1, FINAL)))[1] == []
    assert play(WORKING, (100.0, RoundSeen(announced(RoundPhase.OVER))), late)[1] == []


def test_a_changed_number_of_workers_is_reported() -> None:
    """The reason names both numbers where the next round has another than the last."""
    joining = Node(phase=Phase.JOINING, tally=RoundTally(1), place=Place(nproc=4))
    assert "room for 3 workers instead of 4" in play(joining, (0.0, events.PlacePrepared(3, 1)))[0].because
    assert "room for" not in play(joining, (0.0, events.PlacePrepared(4, 1)))[0].because
    assert "room for" not in play(replace(joining, tally=RoundTally()), (0.0, events.PlacePrepared(8, 1)))[0].because


# -- preemption --------------------------------------------------------------------------------------------------------


def test_a_node_that_waits_for_its_own_stop_signal_reacts_to_all_else() -> None:
    """Its workers have exited, so a signal, the end of the job and a lost store end it at once."""
    rules = replace(RULES, restarts=Policy(), store_grace_s=0.2)
    stopped = events.WorkerExited(0, replace(FAILURE, exit_code=-15))
    node = machine.step(replace(WORKING, budget=Budget()), stopped, 100.0, rules).node
    waiting = machine.step(node, events.WorkersGone(), 100.1, rules)
    assert waiting.effects == (events.WakeAt(101.0),)
    closed = replace(announced(RoundPhase.CLOSED), outcome=Outcome.FAILED)
    for happened, exit_code in ((events.SignalReceived(15), 143), (RoundSeen(closed), 1)):
        after = machine.step(waiting.node, happened, 100.2, rules).node
        assert after.phase is Phase.ENDING
        assert after.verdict is not None
        assert after.verdict.exit_code == exit_code
    away = machine.step(waiting.node, StoreWentAway("no answer"), 100.2, rules).node
    assert machine.step(away, events.DeadlineReached(), 100.5, rules).node.phase is Phase.ENDING
    later = machine.step(waiting.node, events.DeadlineReached(), 101.0, rules)
    assert later.node.phase is Phase.JOINING
    assert later.effects == (events.PreparePlace(),)
