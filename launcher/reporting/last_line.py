"""The last line of the command line: the exit status, and in one sentence why."""

from __future__ import annotations

from ...agent.errors import AgentError, UsageError
from ...rendezvous.text import shorten

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...agent.report import Report

PROGRAM = "elastic-agent"
LONGEST_ERROR = 300
"""Characters of a worker's error in the last line. The failure summary and the error file have the whole error."""


def of_report(report: Report) -> str:
    """The line for an agent that ran to its end. Only a worker's own error is shortened in it: which worker failed,
    where, and what follows from it are always there."""
    verdict = report.verdict
    because = verdict.because
    if verdict.cause is not None and verdict.cause.message:
        because = because.replace(verdict.cause.message, shorten(verdict.cause.message, LONGEST_ERROR))
    return f"{PROGRAM}: exit {verdict.exit_code}: {because}"


def of_end(because: str) -> str:
    """The line for an agent that had nothing to do."""
    return f"{PROGRAM}: exit 0: {because}"


def of_error(error: AgentError) -> str:
    """The line for an agent that could not start, or could not go on."""
    hint = f" (see {PROGRAM} --help)" if isinstance(error, UsageError) else ""
    return f"{PROGRAM}: exit {error.exit_code}: {error}{hint}"
