"""Where workers' output is written: log files, and the agent's console. Writing never raises.

What a sink cannot take (disk full, console closed) is dropped and counted. Both are reported: the loss when it begins,
its size when it is over. Writing and closing happen on the thread of a `writers.QueuedWriter`, where they may block.
"""

from __future__ import annotations

import os
import select
import stat
import threading
from collections.abc import Callable
from time import monotonic
from typing import TextIO

from ...rendezvous.text import count

ATOMIC = 4096
"""PIPE_BUF: a pipe takes so many bytes whole or not at all, so lines stay whole beside those of other programs."""
REPORT_EVERY_S = 10.0
"""The least time between two reports about a sink that fails and recovers in turn."""


class Sink:
    """A place to write to, with a name, and how many bytes were written and lost."""

    def __init__(self, name: str, report: Callable[[str], None]) -> None:
        """`report` gets one line for people, on any thread, and must not block."""
        self.name = name
        self.dropped = 0
        """Bytes that were not written."""
        self.passed = 0
        """Bytes that were written; while this does not grow, the sink is blocked."""
        self.midline = False
        """The last byte written is not an end of line."""
        self._report = report
        self._lock = threading.Lock()
        self._unreported = [0, 0]
        """Bytes and ends of line lost since the last report."""
        self._reported_at = -REPORT_EVERY_S

    def write(self, data: bytes) -> None:
        raise NotImplementedError

    def _wrote(self, data: memoryview) -> None:
        """Take note of bytes that were written."""
        self.passed += len(data)
        if data:
            self.midline = data[-1] != 0x0A

    def drop(self, data: bytes | memoryview, why: str) -> None:
        """Count output that will not be written, and report the beginning of a loss."""
        with self._lock:
            first = not any(self._unreported)
            self.dropped += len(data)
            self._unreported[0] += len(data)
            self._unreported[1] += bytes(data).count(b"\n")
            first = first and monotonic() - self._reported_at >= REPORT_EVERY_S
            if first:
                self._reported_at = monotonic()
        if first:
            self._report(
                f"cannot write workers' output to {self.name}: {why}; dropping what does not fit, workers go on"
            )

    def report_trouble(self, text: str) -> None:
        """Report what is wrong, other than a loss, as rarely as a loss."""
        with self._lock:
            soon = monotonic() - self._reported_at < REPORT_EVERY_S
            if not soon:
                self._reported_at = monotonic()
        if not soon:
            self._report(text)

    def report_loss(self, *, last: bool = False) -> None:
        """Report how much was lost, once the loss is over: the sink takes bytes again, or (`last`) gets no more."""
        with self._lock:
            size, lines = self._unreported
            if not size or not (last or monotonic() - self._reported_at >= REPORT_EVERY_S):
                return
            self._unreported = [0, 0]
            self._reported_at = monotonic()
        lost = f"{count(size, 'byte')} of workers' output ({count(lines, 'line end')})"
        self._report(f"{lost} were dropped and are missing from {self.name}")


class FileSink(Sink):
    """A file opened for appending, closed when the last stream that writes to it has ended."""

    def __init__(self, path: str, report: Callable[[str], None]) -> None:
        """Raises OSError when it cannot be opened."""
        super().__init__(path, report)
        self.streams = 0
        self._fd = open_log(path)
        self._gap = False
        """Bytes were lost since the last one that was written."""

    def write(self, data: bytes) -> None:
        """After a gap, writing resumes with the next whole line, on a line of its own."""
        if self._gap:
            start = data.find(b"\n") + 1
            self.drop(data[:start] if start else data, "")
            data = data[start:] if start else b""
        if data:
            self._append(data)

    def switch_to(self, fd: int) -> None:
        """Close the file, and write to the open file `fd` from now on."""
        os.close(self._fd)
        self._fd = fd
        self.midline = False

    def _append(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            if self._gap and self.midline:
                os.write(self._fd, b"\n")
                self.midline = False
            while rest:
                written = os.write(self._fd, rest)
                self._wrote(rest[:written])
                rest = rest[written:]
        except OSError as error:
            # The next chunk is tried all the same: the disk may have room again by then.
            self.drop(rest, error.strerror or str(error))
            self._gap = True
            return
        if self._gap:
            self._gap = False
            self.report_loss()

    def release(self) -> None:
        """One stream has ended; the last one closes the file."""
        self.streams -= 1
        if self.streams <= 0:
            self.close()

    def close(self) -> None:
        try:
            os.close(self._fd)
        except OSError as error:
            # close(2): network file systems may report a failed write only here.
            self._report(f"the end of {self.name} may be missing: {error.strerror}")
        self.report_loss(last=True)


def open_log(path: str) -> int:
    """Open a log file for appending; create it if it is missing. Raises OSError."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)


class Console(Sink):
    """The agent's stdout or stderr. Whole lines are written whole."""

    def __init__(self, fd: int, name: str, report: Callable[[str], None]) -> None:
        super().__init__(name, report)
        self.terminal = is_terminal(fd)
        self.fd, self._takes_any_size = reopened(fd)
        self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLOUT)
        self._poll.register(self._stop, select.POLLIN)
        self._failed = False

    def write(self, data: bytes) -> None:
        """Waits for a slow console, until `stop_waiting`."""
        rest = memoryview(data)
        try:
            while rest:
                if not self._takes_any_size and not self._has_room():
                    self.drop(rest, "nothing read it before the agent exited")
                    return
                try:
                    written = os.write(self.fd, self._piece(data, rest))
                    self._wrote(rest[:written])
                    rest = rest[written:]
                except BlockingIOError:
                    continue  # it had room for less than a piece
        except OSError as error:
            self.drop(rest, error.strerror or str(error))
            self._failed = True
            return
        if self._failed:
            self._failed = False
            self.report_loss()

    def report_last_loss(self, written: bool) -> None:
        """For `QueuedWriter.after`, when nothing more will be written."""
        self.report_loss(last=True)

    def stop_waiting(self) -> None:
        """From now on drop what the console does not take at once. From any thread."""
        os.eventfd_write(self._stop, 1)

    def close(self) -> None:
        os.close(self.fd)
        os.close(self._stop)

    def _has_room(self) -> bool:
        return any(fd == self.fd for fd, _ in self._poll.poll())

    def _piece(self, data: bytes, rest: memoryview) -> memoryview:
        if self._takes_any_size or len(rest) <= ATOMIC:
            return rest
        at = len(data) - len(rest)
        end = data.rfind(b"\n", at, at + ATOMIC) + 1
        return rest[: end - at if end else ATOMIC]


def is_terminal(fd: int) -> bool:
    """Whether `fd` is a terminal; False if it is closed."""
    try:
        return os.isatty(fd)
    except OSError:
        return False


def reopened(fd: int) -> tuple[int, bool]:
    """A descriptor of the agent's own for the same console, and whether it takes writes of any size.

    O_NONBLOCK belongs to the open file, which the shell and other programs share, so it is set on a freshly opened one.
    O_NONBLOCK has no effect on a regular file, and a freshly opened one would have an offset of its own: its descriptor
    is only duplicated.
    """
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        # The agent was started with this descriptor closed: its console's output is not wanted.
        return os.open(os.devnull, os.O_WRONLY), True
    if stat.S_ISREG(mode):
        return os.dup(fd), True
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY), False
    except OSError:
        # A socket, a terminal of another user, or a pipe without a reader. If it has room for only a few bytes, a write
        # may block the writer's thread, and only that.
        return os.dup(fd), False


def same_console(one: int, other: int) -> bool:
    """Whether two descriptors are one pipe, terminal or file (`2>&1`), which then needs one queue."""
    try:
        return os.path.sameopenfile(one, other)
    except OSError:
        return False


def prints_elsewhere(stream: TextIO | None, fd: int) -> bool:
    """Whether what is written to `stream`, such as `sys.stdout`, does not get to the descriptor `fd`: in a notebook, or
    where the program around the agent has put an object of its own there. Not if `fd` is closed: then no output is
    wanted."""
    try:
        os.fstat(fd)
    except OSError:
        return False
    if stream is None:
        return False
    try:
        own = stream.fileno()
    except (OSError, ValueError, AttributeError):
        return True
    return own != fd and not same_console(own, fd)
