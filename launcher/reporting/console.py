"""What the command line tells people, on stderr: decisions as they are taken, the failure summary, the last line."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Mapping

from ...agent.errors import AgentError, UsageError, WorkersFailed
from ...agent.failures.error_files import summary, write_agent_error, write_error_file
from ...agent.report import Report
from .summary import failed_ones, verdict_lines, write_summary

PROGRAM = "elastic-agent"
PIECE = 1024
"""Characters: at most PIPE_BUF bytes, which a pipe that has room takes without blocking."""
PATIENCE_MS = 1000
"""How long the agent waits for a stderr that nobody reads (Ctrl-S), before it goes on without."""


class Console:
    """Writes to stderr. Routine sentences only with LOGLEVEL=INFO or DEBUG. A stderr that is closed or stands still
    neither ends a job nor keeps it from going on."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._all = env.get("LOGLEVEL", "").upper() in ("INFO", "DEBUG")
        self._error_file = env.get("TORCHELASTIC_ERROR_FILE", "")
        self._stands_still = False
        self.name = f"{os.uname().nodename}:{os.getpid()}"

    def tell(self, text: str, routine: bool) -> None:
        """One sentence; dropped if it is routine and nobody asked for those."""
        if self._all or not routine:
            self._write(f"[{PROGRAM} {self.name} {time.strftime('%H:%M:%S')}] {text}")

    def conclude(self, title: str, report: Report, error: AgentError | None) -> None:
        """The failure summary where workers failed, the agent's own error file, and the last line."""
        cause = report.verdict.cause
        if isinstance(error, WorkersFailed) and cause is not None:
            self._write(summary(title, cause, failed_ones(report)) + verdict_lines(report))
            if self._error_file:
                self._complain(write_error_file(self._error_file, cause, report.said_by(cause)))
        elif error is not None:
            self._record(error)
        self._complain(write_summary(report, self.name, os.environ))
        self._write(f"{PROGRAM}: exit {report.verdict.exit_code}: {report.verdict.because}")

    def fail(self, error: AgentError) -> None:
        """The agent itself could not go on."""
        self._record(error)
        hint = f" (see {PROGRAM} --help)" if isinstance(error, UsageError) else ""
        self._write(f"{PROGRAM}: exit {error.exit_code}: {error}{hint}")
        error.reported = True

    def _record(self, error: AgentError) -> None:
        if self._error_file:
            text = f"{type(error).__name__}: {error}"
            self._complain(write_agent_error(self._error_file, text, int(time.time()), error.exit_code))

    def _complain(self, trouble: str) -> None:
        if trouble:
            self._write(f"{PROGRAM}: {trouble}")

    def _write(self, text: str) -> None:
        text += "\n"
        try:
            for at in range(0, len(text), PIECE):
                if not self._has_room():
                    return
                sys.stderr.write(text[at : at + PIECE])
                sys.stderr.flush()
        except (OSError, ValueError, AttributeError):  # AttributeError: started with it closed, sys.stderr is None
            pass  # Whoever read it is gone; the exit status and the error file still say how it ended.

    def _has_room(self) -> bool:
        """Whether stderr takes a piece without blocking, within a time that is waited only once for as long as not."""
        poll = select.poll()
        try:
            poll.register(sys.stderr.fileno(), select.POLLOUT)
        except (OSError, ValueError):
            return True  # a program's own object in its place, which knows what it does
        self._stands_still = not poll.poll(0 if self._stands_still else PATIENCE_MS)
        return not self._stands_still
