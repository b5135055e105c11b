"""What the command line prints on stderr: decisions as they are taken, the failure summary, the last line."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Mapping

from ...agent.errors import AgentError, WorkersFailed
from ...agent.failures.error_files import summary, write_agent_error, write_error_file
from . import last_line
from .last_line import PROGRAM
from .printing import PLAIN, Printing
from .summary import failed_workers, verdict_lines, write_summary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...agent.report import Report

ERASE = "\r\x1b[K"
"""To the beginning of the line, and all of it away."""
PIECE_CHARS = 1024
"""Written at once: at most PIPE_BUF bytes, which a pipe that has room takes without blocking."""
BLOCKED_MS = 1000
"""How long the agent waits for a stderr that takes nothing (Ctrl-S, a full pipe) before it drops what it prints."""


class Console:
    """Writes to stderr. One that is closed or blocked neither ends a job nor delays it for more than BLOCKED_MS."""

    def __init__(self, env: Mapping[str, str], printing: Printing = PLAIN) -> None:
        self._printing = printing
        self._print_routine = printing.verbose or env.get("LOGLEVEL", "").upper() in ("INFO", "DEBUG")
        self._error_file = env.get("TORCHELASTIC_ERROR_FILE", "")
        self._blocked = False
        self._in_place = False
        """A line without an end stands there, to be overwritten."""
        self.name = f"{os.uname().nodename}:{os.getpid()}"
        """What other nodes call this one; it stands in front of each line."""
        self.take_midline: Callable[[], bool] = lambda: False
        """As `JobLogs.take_midline`: no line of ours begins behind an unfinished one of a worker, as of a progress
        bar."""

    def tell(self, text: str, routine: bool) -> None:
        """Print a line of one sentence; a routine one only with --verbose, or LOGLEVEL=INFO or DEBUG; none with
        --quiet."""
        if not self._printing.quiet:
            self.show(text, routine)

    def show(self, text: str, routine: bool) -> None:
        """As `tell`, with --quiet too: where that is which a flag has asked for, and what of it is lost."""
        if routine and (self._printing.quiet or not self._print_routine):
            return
        if self._printing.as_json:
            self._write(text, "routine" if routine else "decision")
        else:
            self._write(f"[{PROGRAM} {self.name} {time.strftime('%H:%M:%S')}] {text}")

    def conclude(self, title: str, report: Report, error: AgentError | None) -> None:
        """Print the failure summary, if workers failed, and the last line; write the agent's error file and the JSON
        summary. `title`: what the failure summary calls the job; `error`: None if the exit status is 0."""
        cause = report.verdict.cause
        self._warn(write_summary(report, self.name, os.environ))
        if isinstance(error, WorkersFailed) and cause is not None:
            self._write(summary(title, cause, failed_workers(report)) + verdict_lines(report), "failure")
            if self._error_file:
                self._warn(write_error_file(self._error_file, cause, report.said_by(cause)))
        elif error is not None:
            self._write_error_file(error)
        if report.verdict.exit_code or not self._printing.quiet:
            self._write(last_line.of_report(report), "end", report.verdict.exit_code)

    def complete(self, because: str) -> None:
        """Print the last line of an agent that had nothing to do, as the training is complete."""
        if not self._printing.quiet:
            self._write(last_line.of_end(because), "end", 0)

    def fail(self, error: AgentError) -> None:
        """Print the last line of an agent that could not start or go on, and write its error file. Sets `reported`."""
        self._write_error_file(error)
        self._write(last_line.of_error(error), "end", error.exit_code)
        error.reported = True

    def _write_error_file(self, error: AgentError) -> None:
        if self._error_file:
            text = f"{type(error).__name__}: {error}"
            self._warn(write_agent_error(self._error_file, text, int(time.time()), error.exit_code))

    def _warn(self, line: str) -> None:
        if line:
            self._write(f"{PROGRAM}: {line}", "warning")

    @property
    def on_terminal(self) -> bool:
        """Whether stderr is a terminal on which a line can be overwritten, and one is wanted there."""
        if self._printing.quiet or self._printing.as_json:
            return False
        try:
            return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        except (ValueError, AttributeError):
            return False

    def in_place(self, text: str) -> None:
        """Put a line in place of the one before that was put so; an empty one takes it away. For a terminal, and for
        who has it: in the background there is none."""
        if not text and not self._in_place:
            return
        try:
            if os.tcgetpgrp(sys.stderr.fileno()) != os.getpgrp():
                return
            width = os.get_terminal_size(sys.stderr.fileno()).columns or 80
        except (OSError, ValueError, AttributeError):
            return  # it is no terminal any more
        self._in_place = False
        self._print(ERASE + text[: width - 1])
        self._in_place = bool(text)

    def _write(self, text: str, kind: str = "decision", exit_code: int | None = None) -> None:
        """Print it; with --log-format json as an object of this kind."""
        if self._printing.as_json:
            import json

            line: dict[str, object] = {"time_s": time.time(), "node": self.name, "kind": kind, "text": text}
            text = json.dumps(line if exit_code is None else {**line, "exit_code": exit_code})
        self.raw(text)

    def raw(self, line: str) -> None:
        """Print a line as it is, for programs."""
        ending = "\n" if self.take_midline() else ""
        begin, self._in_place = ERASE if self._in_place else ending, False
        self._print(f"{begin}{line}\n")

    def _print(self, text: str) -> None:
        try:
            for at in range(0, len(text), PIECE_CHARS):
                if not self._has_room():
                    return
                sys.stderr.write(text[at : at + PIECE_CHARS])
                sys.stderr.flush()
        except (OSError, ValueError, AttributeError):  # AttributeError: started with it closed, sys.stderr is None
            pass  # Its reader is gone; the exit status and the error file still show how the job ended.

    def _has_room(self) -> bool:
        """Whether stderr takes a piece without blocking. Waits up to BLOCKED_MS for it, and not again while it stays
        blocked."""
        poll = select.poll()
        try:
            poll.register(sys.stderr.fileno(), select.POLLOUT)
        except (OSError, ValueError):
            return True  # the program has put an object of its own there, which has no descriptor to poll
        self._blocked = not poll.poll(0 if self._blocked else BLOCKED_MS)
        return not self._blocked
