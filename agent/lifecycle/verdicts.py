"""What the end of the job means for this node: its exit status and the sentence with it."""

from __future__ import annotations

from ...proto.frozen import replace
from ...rendezvous.failures import Ending
from ...rendezvous.records import Outcome, Round
from .. import exit_status
from ..exit_status import OF_OUTCOME, TEXT
from . import restart_policy
from .state import Node, Rules, Verdict
from .stop_ladder import GIVE_UP_S

NEVER_BEGUN = frozenset({Outcome.JOIN_TIMED_OUT, Outcome.ABANDONED})
"""Outcomes of a job whose last round never began: the ending of the round before it led there."""


def of_closed(node: Node, closed: Round) -> Verdict:
    """The verdict for this node once the rendezvous is closed. A node that finished keeps its 0, but where the workers
    exited 0 because they were asked to."""
    outcome = closed.outcome or Outcome.FAILED
    ended = closed.ended
    cause = ended.failure if ended and outcome is Outcome.FAILED else None
    led_here = ended is not None and (ended.round == closed.number or outcome in NEVER_BEGUN)
    ending = ended if cause is not None or led_here else None
    finished = "this node's workers all finished"
    if outcome in (Outcome.KILLED, Outcome.PREEMPTED):
        return Verdict(OF_OUTCOME[outcome], f"the job {TEXT[outcome]}: {closed.because}", outcome, ending=ending)
    if node.finished:
        but = "" if outcome is Outcome.SUCCEEDED else f", but the job {TEXT[outcome]}"
        return Verdict(exit_status.OK, f"{finished}{but}: {closed.because}", outcome, cause, ending)
    if outcome is Outcome.SUCCEEDED:
        because = f"this node was a spare and was not needed; the job succeeded: {closed.because}"
        return Verdict(exit_status.OK, because, outcome)
    status = exit_status.NO_RESTART if cause is not None and cause.final else OF_OUTCOME[outcome]
    return Verdict(status, f"the job {TEXT[outcome]}: {closed.because}", outcome, cause, ending)


def of_failing_host(reason: str) -> Verdict:
    """This host failed `MAX_HOST_FAILURES` times in a row."""
    limit, apart_s = restart_policy.MAX_HOST_FAILURES, restart_policy.HEALTHY_S
    times = f"{limit} times in a row, each within {apart_s:g} s of the one before"
    what = "check this host's memory, limits and kernel log before using it again"
    return Verdict(exit_status.HOST_FAILED, f"{reason}; {times}: {what}")


def of_spent(rules: Rules, ended: Ending) -> Verdict:
    """A failure of this node was settled while the others took it for lost, and it has no restart for it."""
    because = (
        f"round {ended.round} is charged to this node, which has no restart left (max_restarts "
        f"{rules.restarts.max_restarts}), and the others went on without it: {ended.because}"
    )
    return Verdict(exit_status.WORKER_FAILED, because, None, ended.failure, ended)


GAVE_UP = "workers still run"
"""How the sentence of `of_unkillable` begins."""


def of_unkillable(node: Node) -> Verdict:
    """Workers, or processes that they started, did not exit after SIGKILL."""
    left = ", ".join(map(str, sorted(node.tally.running))) or "none, but processes that they started"
    because = f"{GAVE_UP} {GIVE_UP_S:g} s after SIGKILL (local ranks: {left}); this node gives up on them"
    status = node.verdict.exit_code if node.verdict and node.verdict.exit_code else exit_status.WORKER_FAILED
    return Verdict(status, because, Outcome.FAILED)


def of_store_lost(node: Node, rules: Rules, reason: str) -> Verdict:
    """The store did not answer for longer than `store_grace`, or cannot be used."""
    if node.finished:
        because = f"this node's workers all finished; the store at {rules.endpoint} does not answer: {reason}"
        return Verdict(exit_status.OK, because)
    if node.leaving is not None:
        because = f"{node.leaving.because}; the store at {rules.endpoint} does not answer: {reason}"
        return replace(node.leaving, because=because)
    return Verdict(
        exit_status.STORE_LOST,
        f"the store at {rules.endpoint} did not answer for {rules.store_grace_s:g} s (store_grace): {reason}; "
        + ("check that its servers run" if rules.elects else "check the node that hosts it"),
    )
