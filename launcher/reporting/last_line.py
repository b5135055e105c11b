"""The last line of the command line: the exit status, and in one sentence why."""

from __future__ import annotations

from ...agent.errors import AgentError, UsageError
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
        because = because.replace(verdict.cause.message, shortened(verdict.cause.message, LONGEST_ERROR))
    return f"{PROGRAM}: exit {verdict.exit_code}: {because}"


def of_error(error: AgentError) -> str:
    """The line for an agent that could not start, or could not go on."""
    hint = f" (see {PROGRAM} --help)" if isinstance(error, UsageError) else ""
    return f"{PROGRAM}: exit {error.exit_code}: {error}{hint}"


def shortened(text: str, limit: int) -> str:
    """The text itself, or its beginning and an ellipsis, together at most `limit` characters. It is cut behind a
    sentence, else a clause, else a word, and never in the first half of what there is room for."""
    if len(text) <= limit:
        return text
    room = text[: limit - 4]
    ends = (room.rfind(mark) for mark in (". ", "; ", ": ", ", ", " "))
    end = next((end for end in ends if end >= len(room) // 2), len(room))
    return f"{room[:end].rstrip(' .;:,')} ..."
