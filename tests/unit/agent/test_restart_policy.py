"""When failed workers are started again: one table for each clause of the policy, and what the machines make of it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from elastic_agent.agent import exit_status
from elastic_agent.agent.lifecycle import events, machine, restart_policy, verdicts
from elastic_agent.agent.lifecycle.restart_policy import HEALTHY_S, MAX_HOST_FAILURES, Charge, History, Policy
from elastic_agent.agent.lifecycle.state import Budget, Node, Phase, Place, RoundTally, Rules
from elastic_agent.rendezvous.coordinator import events as told
from elastic_agent.rendezvous.coordinator import machine as coordinator
from elastic_agent.rendezvous.coordinator.state import Rendezvous
from elastic_agent.rendezvous.coordinator.state import Rules as RendezvousRules
from elastic_agent.rendezvous.failures import Ending, EndKind, Sign, WorkerFailure
from elastic_agent.rendezvous.records import Member, NodeRecord, NodeState, Outcome, Round, RoundPhase


def history(*charges: tuple[float, float] | float) -> History:
    """Charges at these times, each with the pause that followed, none if not given."""
    recent = tuple(Charge(*charge) if isinstance(charge, tuple) else Charge(charge) for charge in charges)
    return History(len(recent), recent)


# -- the budget --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "window_s", "charged", "at", "left"),
    [
        (0, 0.0, (), 5.0, 0),
        (3, 0.0, (), 5.0, 3),
        (3, 0.0, (1.0, 2.0), 5.0, 1),
        (3, 0.0, (1.0, 2.0, 3.0), 1e9, 0),  # without a window nothing is ever forgiven
        (1, 10.0, (1.0,), 5.0, 0),
        (1, 10.0, (1.0,), 10.9, 0),
        (1, 10.0, (1.0,), 11.0, 1),  # just out of the window
        (2, 10.0, (1.0, 8.0), 12.0, 1),  # one is out, one still counts
        (0, 10.0, (), 5.0, 0),  # no window makes restarts where there are none
        (1, 10.0, (1.0, 2.0), 5.0, 0),  # never less than none, as it crosses hosts as a count
    ],
)
def test_the_budget_counts_the_charges_of_the_window(
    most: int, window_s: float, charged: tuple[float, ...], at: float, left: int
) -> None:
    """Of the whole job without one."""
    assert restart_policy.restarts_left(Policy(max_restarts=most, window_s=window_s), history(*charged), at) == left


def test_what_is_kept_of_the_past_is_bounded_and_enough() -> None:
    """A job that fails for years in a window keeps as many charges as decide anything, and counts all."""
    rules = Policy(max_restarts=40, window_s=1000.0)
    past = History()
    for at in range(500):
        past = past.add(Charge(float(at)), rules)
    assert (past.total, len(past.recent), past.recent[-1].at) == (500, 40, 499.0)
    assert restart_policy.restarts_left(rules, past, 500.0) == 0
    assert restart_policy.failures_in_a_row(Policy(), past, 1e6) == 1


# -- the pauses of a crash loop ----------------------------------------------------------------------------------------

PACED = Policy(max_restarts=100, pause_min_s=2.0, pause_max_s=10.0)


@pytest.mark.parametrize(
    ("charged", "at", "length"),
    [
        ((), 5.0, 1),
        ((1.0,), 5.0, 2),
        ((1.0,), 11.0, 2),  # as late as the longest pause
        ((1.0,), 11.1, 1),  # later: workers that last so long are in no loop
        (((1.0, 4.0),), 15.0, 2),  # the pause between does not count
        (((1.0, 4.0),), 15.1, 1),
        ((1.0, (5.0, 2.0), (9.0, 4.0)), 14.0, 4),
        ((1.0, (50.0, 0.0), (55.0, 2.0)), 60.0, 3),  # one before the loop does not count
    ],
)
def test_a_crash_loop_is_failures_that_follow_each_other_closely(
    charged: tuple[tuple[float, float] | float, ...], at: float, length: int
) -> None:
    """No later than `pause_max_s` after the pause of the one before."""
    assert restart_policy.failures_in_a_row(PACED, history(*charged), at) == length


@pytest.mark.parametrize(
    ("before", "shortest", "longest"),
    [(0, 0.0, 0.0), (1, 2.0, 4.0), (2, 4.0, 8.0), (3, 5.0, 10.0), (4, 5.0, 10.0), (90, 5.0, 10.0)],
)
def test_pauses_double_within_their_bounds(before: int, shortest: float, longest: float) -> None:
    """None before the first restart; never less than the least, never more than the most; random in between."""
    past = history(*(float(at) for at in range(before)))
    found = [restart_policy.pause_s(PACED, past, float(before), (jitter,)) for jitter in (0.0, 0.5, 1.0)]
    assert found == [shortest, (shortest + longest) / 2, longest]


@pytest.mark.parametrize(
    ("rules", "pause_s"),
    [
        (Policy(max_restarts=9), 0.0),  # not asked for
        (Policy(max_restarts=1, pause_min_s=2.0, pause_max_s=10.0), 0.0),  # no restart follows
        (Policy(max_restarts=9, pause_min_s=7.0, pause_max_s=7.0), 7.0),  # nothing to choose from
        (Policy(max_restarts=9, pause_min_s=2.0, pause_max_s=3.0), 3.0),  # the first range is cut, too
    ],
)
def test_where_no_pause_is_asked_for_or_left_to_chance(rules: Policy, pause_s: float) -> None:
    """The second failure, with the largest random number."""
    assert restart_policy.pause_s(rules, history(1.0), 2.0, (1.0,)) == pause_s


def test_random_numbers_are_used_in_turn() -> None:
    """One for each charge, and round again."""
    drawn = [restart_policy.pause_s(PACED, history(*map(float, range(n))), float(n), (0.0, 1.0)) for n in (3, 4, 5)]
    assert drawn == [10.0, 5.0, 10.0]


# -- who asked a worker to stop ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exit_code", "stopped_by", "left", "may_be"),
    [
        (-15, 0, 0, True),
        (143, 0, 0, True),  # a script that minds SIGTERM and says so as shells do
        (-2, 0, 0, True),
        (-15, 15, 0, False),  # we did it
        (-15, 0, 1, False),  # a restart is not to wait
        (-9, 0, 0, False),
        (15, 0, 0, False),
        (1, 0, 0, False),
    ],
)
def test_a_stop_signal_from_elsewhere_may_be_preemption(
    exit_code: int, stopped_by: int, left: int, may_be: bool
) -> None:
    """Where the job would end of it."""
    rules = Policy(max_restarts=left)
    assert restart_policy.may_be_preemption(rules, History(), 1.0, exit_code, stopped_by) is may_be


def test_who_waits_for_its_own_stop_signal_hears_of_everything_else() -> None:
    """Its workers are gone, so whatever ends it ends it at once: a request, the rendezvous, the store."""
    rules = replace(RULES, restarts=Policy(), store_grace_s=0.2)
    stopped = events.WorkerExited(0, replace(FAILURE, exit_code=-15))
    node = machine.step(replace(WORKING, budget=Budget()), stopped, 100.0, rules).node
    waiting = machine.step(node, events.WorkersGone(), 100.1, rules)
    assert waiting.effects == (events.WakeAt(101.0),)
    closed = replace(word(RoundPhase.CLOSED), outcome=Outcome.FAILED)
    for happened, exit_code in ((events.SignalReceived(15), 143), (events.RoundSeen(closed), 1)):
        after = machine.step(waiting.node, happened, 100.2, rules).node
        assert after.phase is Phase.ENDING
        assert after.verdict is not None
        assert after.verdict.exit_code == exit_code
    away = machine.step(waiting.node, events.StoreWentAway("no answer"), 100.2, rules).node
    assert machine.step(away, events.DeadlineReached(), 100.5, rules).node.phase is Phase.ENDING
    later = machine.step(waiting.node, events.DeadlineReached(), 101.0, rules)
    assert later.node.phase is Phase.JOINING
    assert later.effects == (events.PreparePlace(),)


# -- what kind of failure ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lived_s", "ready", "startup"),
    [
        (None, False, True),  # could not be started at all
        (0.0, False, True),
        (29.9, False, True),
        (30.0, False, False),
        (0.1, True, False),  # it has said that it is ready
        (99.0, True, False),
    ],
)
def test_a_failure_in_start_up_comes_early_and_before_the_script_said_ready(
    lived_s: float | None, ready: bool, startup: bool
) -> None:
    """Only the script knows better than the clock."""
    assert restart_policy.in_startup(Policy(), lived_s, ready) is startup


@pytest.mark.parametrize(
    ("codes", "exit_code", "forbidden"),
    [
        (None, 93, True),
        (None, 1, False),
        (None, -93, False),  # a signal is no word of the script's
        ({3, 4}, 4, True),
        ({3, 4}, 93, False),
        (set(), 93, False),
    ],
)
def test_only_listed_exit_codes_forbid_a_restart(codes: set[int] | None, exit_code: int, forbidden: bool) -> None:
    """93, unless others are chosen."""
    rules = Policy() if codes is None else Policy(no_restart_codes=frozenset(codes))
    assert restart_policy.forbids_restart(rules, exit_code) is forbidden


# -- the agent ---------------------------------------------------------------------------------------------------------

FAILURE = WorkerFailure(node="a", host="h", rank=0, local_rank=0, pid=1, exit_code=1)
FINAL = replace(FAILURE, rank=1, local_rank=1, exit_code=93, final=True)
MEMBERS = (Member("a", "a", 0, 0, 2), Member("b", "b", 1, 2, 2))
RULES = Rules(node="a", name="a", restarts=replace(PACED, pause_min_s=4.0, pause_max_s=4.0), max_nodes=2)
WORKING = Node(
    phase=Phase.WORKING,
    tally=RoundTally(2, running=frozenset({0, 1})),
    budget=Budget(history(97.0), settled_round=1),
)


def word(phase: RoundPhase, number: int = 2, ended: Ending | None = None, version: int = 9) -> Round:
    return Round(version, 1, number, phase, "so it is", MEMBERS, ended=ended)


def play(node: Node, *happened: tuple[float, events.Event]) -> tuple[Node, list[events.Effect]]:
    """What the last of these events leads to."""
    effects: tuple[events.Effect, ...] = ()
    for now, event in happened:
        made = machine.step(node, event, now, RULES)
        node, effects = made.node, made.effects
    return node, list(effects)


FAILS = (100.0, events.WorkerExited(0, FAILURE))
GONE = (100.5, events.WorkersGone())
CHARGED = Ending(2, EndKind.FAILURE, "failed", "a", FAILURE)
ECHO = Ending(2, EndKind.DEPARTURE, "b was lost; then failed", "", FAILURE)


def test_a_pause_ends_so_long_after_the_failure() -> None:
    """Stopping the workers is part of it; wake-ups that come early change nothing."""
    node, effects = play(WORKING, FAILS, GONE)
    assert node.phase is Phase.JOINING
    assert [type(each) for each in effects] == [events.Publish, events.WakeAt]
    assert effects[1] == events.WakeAt(104.0)
    assert "pausing 3.5 s" in node.because
    node, effects = play(node, (103.9, events.DeadlineReached()))
    assert effects == [events.WakeAt(104.0)]
    assert play(node, (104.0, events.DeadlineReached()))[1] == [events.PreparePlace()]


def test_a_stop_that_lasts_longer_than_the_pause_is_pause_enough() -> None:
    """Nobody waits twice."""
    assert play(WORKING, FAILS, (104.5, events.WorkersGone()))[1] == [events.PreparePlace()]


def test_the_last_word_of_a_node_that_pauses_is_that_a_worker_failed() -> None:
    """So the coordinator waits for it, and begins no round that it would end again."""
    node, _ = play(WORKING, FAILS, GONE)
    assert node.record is not None
    assert (node.record.state, node.record.round) == (NodeState.BROKEN, 2)


@pytest.mark.parametrize(
    ("ended", "phase", "goes_on"),
    [
        (None, RoundPhase.OVER, False),  # whose fault it was is not settled
        (Ending(1, EndKind.ARRIVAL, "an earlier one"), RoundPhase.OVER, False),
        (CHARGED, RoundPhase.OVER, False),
        (ECHO, RoundPhase.OVER, True),
        (replace(CHARGED, charged="b"), RoundPhase.OVER, True),
        (ECHO, RoundPhase.GATHERING, True),
    ],
)
def test_a_pause_ends_with_the_news_that_the_failure_costs_nothing(
    ended: Ending | None, phase: RoundPhase, goes_on: bool
) -> None:
    """And with no other news: not with arrivals, departures or the next announcement of the same."""
    node, _ = play(WORKING, FAILS, GONE)
    after, effects = play(node, (101.0, events.RoundSeen(word(phase, ended=ended))))
    assert (events.PreparePlace() in effects) is goes_on
    assert (after.paused_until is None) is goes_on


@pytest.mark.parametrize(
    ("event", "status"),
    [
        (events.SignalReceived(15), 143),
        (events.LeaveAsked("drained"), exit_status.ASKED_TO_LEAVE),
        (events.RoundSeen(replace(word(RoundPhase.CLOSED), outcome=Outcome.FAILED)), exit_status.WORKER_FAILED),
    ],
)
def test_a_pause_keeps_nobody_from_ending(event: events.Event, status: int) -> None:
    """A request to stop and the end of the job are heard at once."""
    node, _ = play(WORKING, FAILS, GONE, (101.0, event))
    assert (node.phase, node.verdict and node.verdict.exit_code) == (Phase.ENDING, status)


def test_the_store_may_come_and_go_during_a_pause() -> None:
    """What was said is said again, and the pause is what it was."""
    node, _ = play(WORKING, FAILS, GONE, (101.0, events.StoreWentAway("no answer")))
    back, effects = play(node, (102.0, events.StoreCameBack()))
    assert [effect.record.state for effect in effects if isinstance(effect, events.Publish)] == [NodeState.BROKEN]
    assert play(back, (104.0, events.DeadlineReached()))[1] == [events.PreparePlace()]


LOST = events.NurseryLost("signal 9")
RULES_0 = replace(RULES, restarts=replace(RULES.restarts, max_restarts=0))
LOSING = replace(WORKING, budget=Budget(), latest_round=word(RoundPhase.RUNNING))


def spend(node: Node, *happened: tuple[float, events.Event]) -> tuple[Node, list[events.Effect]]:
    """As `play`, on a node that has no restarts at all."""
    effects: list[events.Effect] = []
    for now, event in happened:
        made = machine.step(node, event, now, RULES_0)
        node, effects = made.node, list(made.effects)
    return node, effects


def lose(node: Node, now: float) -> tuple[Node, list[events.Effect]]:
    """The nursery dies under its workers; then the next round begins, if there is one."""
    lost, effects = spend(node, (now, LOST))
    if lost.verdict is None:
        lost = replace(
            lost, phase=Phase.WORKING, paused_until=None, tally=replace(lost.tally, failures=(), failed_at=None)
        )
    return lost, effects


def test_a_nursery_that_dies_is_started_again_at_once_then_paused_for() -> None:
    """The machine's failures have a crash loop of their own, which takes no budget: none is left here."""
    once, effects = lose(LOSING, 100.0)
    assert effects[0] == events.RestartNursery()
    assert events.PreparePlace() in effects
    _, effects = lose(once, 101.0)
    assert effects[0] == events.RestartNursery()
    assert events.PreparePlace() not in effects
    assert events.WakeAt(105.0) in effects


def test_the_pause_of_a_sick_machine_is_not_called_off_by_costing_nothing() -> None:
    """That nobody is charged says that no script is to blame, not that the machine is well."""
    twice, _ = spend(lose(LOSING, 100.0)[0], (101.0, LOST))
    assert twice.paused_until is not None
    free = Ending(2, EndKind.FAILURE, "worker failed", "")
    after, effects = spend(twice, (101.5, events.RoundSeen(word(RoundPhase.GATHERING, 3, free))))
    assert after.paused_until == twice.paused_until
    assert effects == []
    assert after.restarts_used == 0


def test_a_machine_that_takes_its_workers_again_and_again_is_left() -> None:
    """Its node says goodbye, with a status of its own; the others go on without it."""
    node = LOSING
    for number in range(MAX_HOST_FAILURES - 1):
        node, _ = lose(node, 100.0 + number)
    sick, effects = spend(node, (110.0, LOST))
    assert sick.phase is Phase.ENDING
    assert sick.verdict is not None
    assert (sick.verdict.exit_code, sick.restarts_used) == (71, 0)
    assert "3 times in a row" in sick.verdict.because
    assert [effect.record.state for effect in effects if isinstance(effect, events.Publish)] == [NodeState.ENDED]
    assert events.RestartNursery() not in effects


def test_a_machine_that_kept_its_workers_for_long_enough_is_well_again() -> None:
    """So a job whose nursery dies now and then runs for ever."""
    node = LOSING
    for number in range(10):
        node, _ = lose(node, number * (HEALTHY_S + 1.0))
    assert node.verdict is None


@pytest.mark.parametrize("phase", [Phase.CONNECTING, Phase.JOINING])
def test_a_nursery_that_cannot_live_ends_somewhere_at_rest_too(phase: Phase) -> None:
    """No worker need run for it to die: without processes there is not even a nursery."""
    node, counted = Node(phase=phase, tally=RoundTally(1)), 0
    while node.verdict is None:
        node, _ = spend(node, (0.1 * counted, LOST))
        counted += 1
    assert (counted, node.verdict.exit_code) == (MAX_HOST_FAILURES, 71)


def test_workers_that_the_machine_cannot_start_are_its_failure() -> None:
    """fork(2) refused: no command is at fault, no budget pays, and the third time the node leaves."""
    refused = replace(FAILURE, sign=Sign.HOST, message="Resource temporarily unavailable: cannot fork")
    node = LOSING
    for number in range(MAX_HOST_FAILURES):
        assert node.verdict is None
        node, _ = spend(replace(node, phase=Phase.WORKING), (100.0 + number, events.StartFailed(refused)))
    assert node.phase is Phase.STOPPING
    assert node.verdict is not None
    assert node.verdict.exit_code == 71
    assert "cannot fork" in node.verdict.because


def test_whoever_counts_as_torchrun_does_is_not_charged_for_the_machine() -> None:
    """--charge local counts what a script did, and no script did this."""
    rules = replace(RULES, charge_local=True)
    lost = machine.step(LOSING, LOST, 100.0, rules).node
    free = Ending(2, EndKind.FAILURE, "worker failed", "")
    told_so = machine.step(lost, events.RoundSeen(word(RoundPhase.GATHERING, 3, free)), 101.0, rules).node
    assert (told_so.budget.settled_round, told_so.restarts_used) == (2, 0)


def test_a_charge_counts_from_its_failure_and_once() -> None:
    """However late and however often its node hears of it."""
    node, _ = play(WORKING, FAILS, GONE, (150.0, events.RoundSeen(word(RoundPhase.GATHERING, 3, CHARGED))))
    assert (node.restarts_used, node.budget.charges.recent[-1]) == (2, Charge(100.0, 4.0))
    again, _ = play(node, (151.0, events.RoundSeen(word(RoundPhase.GATHERING, 3, CHARGED, version=10))))
    assert again.budget.charges == node.budget.charges


def test_what_is_left_of_the_budget_is_told_as_of_the_failure() -> None:
    """The coordinator asks for it after the workers were stopped, when an old charge may just have left the window."""
    rules = replace(RULES, restarts=Policy(max_restarts=1, window_s=10.0))
    working = replace(WORKING, budget=replace(WORKING.budget, charges=history(90.0)))
    stopping = machine.step(working, events.WorkerExited(0, FAILURE), 99.0, rules).node
    gone = machine.step(stopping, events.WorkersGone(), 105.0, rules).node
    offered = machine.step(gone, events.PlacePrepared(2, 4000), 105.0, rules).node
    assert offered.record is not None
    assert (offered.record.state, offered.record.restarts_left) == (NodeState.WAITING, 0)


def test_membership_never_spends_and_never_paces() -> None:
    """A round ended by an arrival, a departure or another node's failure leaves the history as it was."""
    for kind in EndKind:
        over = word(RoundPhase.OVER)
        ended = Ending(2, kind, "not ours", "b" if kind is EndKind.FAILURE else "")
        node, _ = play(
            WORKING,
            (100.0, events.RoundSeen(over)),
            (100.5, events.WorkersGone()),
            (100.5, events.PlacePrepared(2, 4000)),
            (101.0, events.RoundSeen(word(RoundPhase.GATHERING, 3, ended, version=10))),
        )
        assert node.budget.charges == WORKING.budget.charges
        assert node.paused_until is None


def test_a_worker_that_forbids_a_restart_is_heard_beside_a_failure_but_not_when_it_was_told_to_stop() -> None:
    """Of two that died together either may be seen first; what exits so on our SIGTERM alone says nothing."""
    late = (100.01, events.WorkerExited(1, FINAL))
    node, effects = play(WORKING, FAILS, late)
    said = [effect.record for effect in effects if isinstance(effect, events.Publish)]
    assert [(each.state, each.failure) for each in said] == [(NodeState.BROKEN, FINAL)]
    assert play(node, (100.02, events.WorkerExited(1, FINAL)))[1] == []
    assert play(WORKING, (100.0, events.RoundSeen(word(RoundPhase.OVER))), late)[1] == []


def test_a_node_says_with_how_many_workers_it_comes_back() -> None:
    """Only where the number is another than before."""
    joining = Node(phase=Phase.JOINING, tally=RoundTally(1), place=Place(nproc=4))
    assert "room for 3 workers instead of 4" in play(joining, (0.0, events.PlacePrepared(3, 1)))[0].because
    assert "room for" not in play(joining, (0.0, events.PlacePrepared(4, 1)))[0].because
    assert "room for" not in play(replace(joining, tally=RoundTally()), (0.0, events.PlacePrepared(8, 1)))[0].because


# -- the coordinator ---------------------------------------------------------------------------------------------------

TWO = RendezvousRules(own="a", min_nodes=1, max_nodes=2, exit_barrier_s=30.0)


def record(
    node: str,
    seq: int,
    state: NodeState,
    failure: WorkerFailure | None = None,
    *,
    finished: bool = False,
) -> NodeRecord:
    number = 0 if seq == 1 else 1
    return NodeRecord(node, node, state, seq, number, failure=failure, restarts_left=5, finished=finished)


def tell(state: Rendezvous, now: float, *records: NodeRecord, rules: RendezvousRules = TWO) -> Rendezvous:
    for each in records:
        state = coordinator.step(state, told.NodeSeen(each), now, rules).state
    return state


def running(rules: RendezvousRules = TWO) -> Rendezvous:
    names = "abc"[: rules.max_nodes]
    state = coordinator.step(Rendezvous(), told.Elected(1), 0.0, rules).state
    state = tell(state, 0.0, *(record(each, 1, NodeState.WAITING) for each in names), rules=rules)
    return tell(state, 1.0, *(record(each, 2, NodeState.WORKING) for each in names), rules=rules)


@pytest.mark.parametrize("order", ["final first", "final last", "after the other answered"])
def test_a_failure_that_forbids_a_restart_ends_the_job_whatever_was_seen_first(order: str) -> None:
    """It is the cause then, and nobody is charged; nobody's answer is waited for."""
    final, other = record("a", 3, NodeState.BROKEN, FINAL), record("b", 3, NodeState.BROKEN, FAILURE)
    if order == "after the other answered":
        state = tell(running(), 2.0, other, record("b", 4, NodeState.WAITING), final)
    else:
        state = tell(running(), 2.0, *((final,) if order == "final first" else (other, final)))
    assert (state.phase, state.outcome) == (RoundPhase.CLOSED, Outcome.FAILED)
    assert state.end.ending is not None
    assert (state.end.ending.failure, state.end.ending.charged, state.end.ending.kind) == (FINAL, "", EndKind.FAILURE)
    assert "exit code 93 forbids a restart there" in state.because


@pytest.mark.parametrize("last", [NodeState.LEAVING, NodeState.ENDED])
def test_a_failure_that_forbids_a_restart_outlives_its_node(last: NodeState) -> None:
    """The node is asked to leave in the same moment: the others must not go on."""
    state = tell(running(), 2.0, record("b", 3, last, FINAL))
    assert (state.phase, state.outcome) == (RoundPhase.CLOSED, Outcome.FAILED)


def test_a_job_that_a_worker_forbade_to_restart_ends_with_a_status_of_its_own() -> None:
    """But not on a node that had finished."""
    ended = Ending(1, EndKind.FAILURE, "failed", "", FINAL)
    closed = replace(word(RoundPhase.CLOSED), ended=ended, outcome=Outcome.FAILED)
    assert verdicts.of_closed(Node(), closed).exit_code == exit_status.NO_RESTART == 93
    assert verdicts.of_closed(Node(finished=True), closed).exit_code == 0


def test_the_round_waits_for_a_node_that_pauses_however_long() -> None:
    """Neither a join timeout nor the last call runs while its last word is that a worker failed."""
    state = tell(running(), 2.0, record("b", 3, NodeState.BROKEN, FAILURE), record("a", 3, NodeState.WAITING))
    late = coordinator.step(state, told.DeadlineReached(), 10_000.0, TWO)
    assert (late.state.phase, late.state.number) == (RoundPhase.OVER, 1)
    assert tell(late.state, 10_001.0, record("b", 4, NodeState.WAITING)).phase is RoundPhase.RUNNING


def test_a_pause_does_not_outlast_the_finalisation_barrier() -> None:
    """Who finished waits for the barrier and no longer, also while the round of the others is over."""
    rules = replace(TWO, max_nodes=3)
    state = tell(running(rules), 2.0, record("c", 3, NodeState.FINISHED, finished=True), rules=rules)
    over = coordinator.step(state, told.NodeSeen(record("b", 3, NodeState.BROKEN, FAILURE)), 3.0, rules)
    assert over.state.phase is RoundPhase.OVER
    watched = coordinator.step(over.state, told.BeatsSeen({}), 31.9, rules)
    assert told.WakeAt(32.0) in watched.effects
    asked = coordinator.step(watched.state, told.DeadlineReached(), 32.0, rules)
    assert told.ReadBeats in map(type, asked.effects)  # a node may have joined whose record is unread
    closed = coordinator.step(asked.state, told.BeatsSeen({}), 32.1, rules).state
    assert (closed.phase, closed.outcome) == (RoundPhase.CLOSED, Outcome.UNFINISHED)


# -- the whole program -------------------------------------------------------------------------------------------------

SCRIPT = """
import os, sys
if sys.argv[1] == "ready":
    open(os.environ["ELASTIC_AGENT_READY_FILE"], "w").close()
sys.exit(3)
"""


@pytest.mark.parametrize(
    ("flags", "how", "startup"),
    [
        ((), "early", True),
        ((), "ready", False),
        (("--startup-window", "0"), "early", False),
    ],
)
def test_the_summary_tells_failures_in_start_up_apart(
    tmp_path: Path, flags: tuple[str, ...], how: str, startup: bool
) -> None:
    """In the block and in the last line; a script that said that it was ready did not fail in its start-up."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "elastic_agent", "--standalone", "--log-dir", str(tmp_path / "logs"), *flags]
    done = subprocess.run([*command, str(script), how], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert ("\n  stage     : start-up\n" in done.stderr) is startup
    assert ("exit code 3 in its start-up" in done.stderr.splitlines()[-1]) is startup
