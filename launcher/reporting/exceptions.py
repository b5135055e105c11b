"""How a job ended, as the exception that a caller can act on."""

from __future__ import annotations

from ...agent import exit_status
from ...agent.errors import (
    AgentError,
    FinalisationTimedOut,
    HostFailed,
    KillSwitch,
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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...agent.report import Report

_BY_STATUS: dict[int, type[AgentError]] = {
    exit_status.USAGE: UsageError,
    exit_status.HOST_FAILED: HostFailed,
    exit_status.PREEMPTED: Preempted,
    exit_status.JOIN_TIMED_OUT: RendezvousTimedOut,
    exit_status.OTHER_JOB: OtherJob,
    exit_status.OTHER_VERSION: OtherVersion,
    exit_status.STORE_LOST: StoreLost,
    exit_status.UNFINISHED: FinalisationTimedOut,
    exit_status.KILL_SWITCH: KillSwitch,
}


def error_of(report: Report, node: str) -> AgentError | None:
    """The exception for this node's exit status; None if that is 0. `node`: the name of this node."""
    verdict = report.verdict
    if verdict.exit_code == exit_status.OK:
        return None
    if verdict.exit_code > exit_status.SIGNALLED:
        return StoppedBySignal(verdict.because, signum=verdict.exit_code - exit_status.SIGNALLED, node=node)
    if verdict.exit_code in _BY_STATUS:
        return _BY_STATUS[verdict.exit_code](verdict.because, node=node)
    error_report = report.said_by(verdict.cause) if verdict.cause else None
    traceback = error_report.traceback if error_report else ""
    kind = RestartForbidden if verdict.exit_code == exit_status.NO_RESTART else WorkersFailed
    return kind(verdict.because, cause=verdict.cause, failures=report.failures, traceback=traceback, node=node)
