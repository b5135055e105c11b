"""What the end of the job means for this node: its exit status and the sentence that goes with it."""

from __future__ import annotations

from collections.abc import Mapping

from ...rendezvous.records import Outcome, Round
from . import restart_policy
from .state import Node, Rules, Verdict

OK = 0
WORKER_FAILED = 1
USAGE = 2
HOST_FAILED = 71
ASKED_TO_LEAVE = 75
JOIN_TIMED_OUT = 76
OTHER_JOB = 78
OTHER_VERSION = 79
STORE_LOST = 80
UNFINISHED = 82
NO_RESTART = restart_policy.NO_RESTART_CODE
SIGNALLED = 128

STATUS: Mapping[Outcome, int] = {
    Outcome.SUCCEEDED: OK,
    Outcome.FAILED: WORKER_FAILED,
    Outcome.JOIN_TIMED_OUT: JOIN_TIMED_OUT,
    Outcome.UNFINISHED: UNFINISHED,
    Outcome.ABANDONED: JOIN_TIMED_OUT,
    Outcome.MISCONFIGURED: USAGE,
}
"""Exit status of a node that had not finished when the rendezvous closed."""

NEVER_BEGUN = frozenset({Outcome.JOIN_TIMED_OUT, Outcome.ABANDONED})
"""Outcomes of a job whose last round never began: what ended the one before it has led there."""

HOW: Mapping[Outcome, str] = {
    Outcome.SUCCEEDED: "succeeded",
    Outcome.FAILED: "failed",
    Outcome.JOIN_TIMED_OUT: "waited too long for nodes",
    Outcome.UNFINISHED: "ended unfinished",
    Outcome.ABANDONED: "was abandoned",
    Outcome.MISCONFIGURED: "cannot begin",
}
"""What to say of the job, after its name."""


def of_closed(node: Node, closed: Round) -> Verdict:
    """The verdict for this node once the rendezvous is closed. A node that finished keeps its 0."""
    outcome = closed.outcome or Outcome.FAILED
    ended = closed.ended
    cause = ended.failure if ended and outcome is Outcome.FAILED else None
    led_here = ended is not None and (ended.round == closed.number or outcome in NEVER_BEGUN)
    ending = ended if cause is not None or led_here else None
    if node.finished:
        but = "" if outcome is Outcome.SUCCEEDED else f", but the job {HOW[outcome]}"
        return Verdict(OK, f"this node's workers all finished{but}: {closed.because}", outcome, cause, ending)
    if outcome is Outcome.SUCCEEDED:
        return Verdict(OK, f"a spare that was not needed; the job succeeded: {closed.because}", outcome)
    status = NO_RESTART if cause is not None and cause.final else STATUS[outcome]
    return Verdict(status, f"the job {HOW[outcome]}: {closed.because}", outcome, cause, ending)


def of_sick(reason: str) -> Verdict:
    """This machine failed once too often."""
    times = f"{restart_policy.SICK_AFTER} times in a row, each within {restart_policy.HEALTHY_S:g} s of the one before"
    what = "look at this machine's memory, limits and kernel log before it is used again"
    return Verdict(HOST_FAILED, f"{reason}; {times}: {what}")


def of_store_lost(node: Node, rules: Rules, reason: str) -> Verdict:
    """The store stayed away for longer than `store_grace`, or cannot be used."""
    if node.finished:
        return Verdict(OK, f"this node's workers all finished; the store at {rules.endpoint} went away: {reason}")
    return Verdict(
        STORE_LOST,
        f"the store at {rules.endpoint} was lost for more than {rules.store_grace_s:g} s (store_grace): {reason}; "
        "look at the node that hosts it",
    )
