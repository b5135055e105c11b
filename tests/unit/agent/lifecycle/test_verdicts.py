"""How an agent ends when the rendezvous has closed: its exit status, the cause, the ending of the last round."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_agent.agent import exit_status
from elastic_agent.agent.lifecycle import verdicts
from elastic_agent.agent.lifecycle.state import Node
from elastic_agent.rendezvous.failures import Ending, EndKind
from elastic_agent.rendezvous.records import Outcome, RoundPhase
from support.builders import FAILURE, FINAL, announcement


@pytest.mark.parametrize("outcome", Outcome)
def test_a_node_that_finished_exits_0(outcome: Outcome) -> None:
    """Whatever the outcome of the job; but for the kill switch and a preemption, at which workers exit 0 before the
    job's end."""
    closed = announcement(RoundPhase.CLOSED, outcome=outcome)
    early = {Outcome.KILLED: exit_status.KILL_SWITCH, Outcome.PREEMPTED: exit_status.PREEMPTED}
    status = early.get(outcome, exit_status.OK)
    assert verdicts.of_closed(Node(finished=True), closed).exit_code == status


def test_a_failure_that_was_restarted_is_not_the_cause_of_a_later_outcome() -> None:
    """It is the cause of FAILED only, not of a finalisation barrier that ran out."""
    ending = Ending(1, EndKind.FAILURE, "failed", "a", FAILURE)
    closed = announcement(RoundPhase.CLOSED, 2, ended=ending, outcome=Outcome.UNFINISHED)
    assert verdicts.of_closed(Node(), closed).cause is None
    assert verdicts.of_closed(Node(), replace(closed, outcome=Outcome.FAILED)).cause == FAILURE


def test_the_verdict_of_a_join_timeout_has_the_ending_of_the_last_round() -> None:
    """A node was lost and none took its place: every survivor reports the departure, and no worker as the cause."""
    ending = Ending(1, EndKind.DEPARTURE, "c was lost; then worker failed", "", FAILURE)
    closed = announcement(
        RoundPhase.CLOSED, 2, because="missing: c (lost)", ended=ending, outcome=Outcome.JOIN_TIMED_OUT
    )
    verdict = verdicts.of_closed(Node(), closed)
    assert (verdict.cause, verdict.ending) == (None, ending)
    assert verdicts.of_closed(Node(), replace(closed, outcome=Outcome.UNFINISHED)).ending is None


def test_a_job_ended_by_a_code_that_forbids_a_restart_has_a_status_of_its_own() -> None:
    """93, except on a node that had finished."""
    ending = Ending(1, EndKind.FAILURE, "failed", "", FINAL)
    closed = announcement(RoundPhase.CLOSED, ended=ending, outcome=Outcome.FAILED)
    assert verdicts.of_closed(Node(), closed).exit_code == exit_status.NO_RESTART == 93
    assert verdicts.of_closed(Node(finished=True), closed).exit_code == 0
