"""How a job ended, as the exception that a caller can act on."""

from __future__ import annotations

from ...agent.errors import (
    AgentError,
    FinalisationTimedOut,
    HostFailed,
    OtherJob,
    OtherVersion,
    Preempted,
    RendezvousTimedOut,
    RestartForbidden,
    StoppedBySignal,
    StoreLost,
    UsageError,
    WorkersFailed,
)
from ...agent.lifecycle import verdicts
from ...agent.report import Report

_BY_STATUS: dict[int, type[AgentError]] = {
    verdicts.USAGE: UsageError,
    verdicts.HOST_FAILED: HostFailed,
    verdicts.ASKED_TO_LEAVE: Preempted,
    verdicts.JOIN_TIMED_OUT: RendezvousTimedOut,
    verdicts.OTHER_JOB: OtherJob,
    verdicts.OTHER_VERSION: OtherVersion,
    verdicts.STORE_LOST: StoreLost,
    verdicts.UNFINISHED: FinalisationTimedOut,
}


def error_of(report: Report, node: str) -> AgentError | None:
    """The exception for this node's exit status; None if that is 0. `node`: the name of this node."""
    verdict = report.verdict
    if verdict.exit_code == verdicts.OK:
        return None
    if verdict.exit_code > verdicts.SIGNALLED:
        return StoppedBySignal(verdict.because, signum=verdict.exit_code - verdicts.SIGNALLED, node=node)
    if verdict.exit_code in _BY_STATUS:
        return _BY_STATUS[verdict.exit_code](verdict.because, node=node)
    error_report = report.said_by(verdict.cause) if verdict.cause else None
    traceback = error_report.traceback if error_report else ""
    kind = RestartForbidden if verdict.exit_code == verdicts.NO_RESTART else WorkersFailed
    return kind(verdict.because, cause=verdict.cause, failures=report.failures, traceback=traceback, node=node)
