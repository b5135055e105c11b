"""Where workers' output ends up: log files, and the agent's console. They never raise for bytes.

What a sink cannot take (disk full, console closed) is dropped, counted, and said: when it begins, and how much it was.
All that writes or closes is called on the thread of an `outlets.Outlet`, which may stand still.
"""

from __future__ import annotations

import os
import select
import stat
import threading
from collections.abc import Callable
from time import monotonic

ATOMIC = 4096
"""PIPE_BUF: what a pipe takes whole or not at all, so whole lines stay whole beside other writers."""
TELL_EVERY_S = 10.0
"""A sink that fails and recovers in turn is spoken of no more often."""


class Sink:
    """A name, and how much did not get there."""

    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        """`say` gets one line for people, on any thread, and must not block."""
        self.name = name
        self.dropped = 0
        """Bytes."""
        self.passed = 0
        """Bytes written: what does not grow stands still."""
        self._say = say
        self._lock = threading.Lock()
        self._untold = [0, 0]
        """Bytes and lines lost since they were last spoken of."""
        self._told_at = -TELL_EVERY_S

    def write(self, data: bytes) -> None:
        raise NotImplementedError

    def lose(self, data: bytes | memoryview, why: str) -> None:
        """Count what will not be written; `data` is that part of what workers wrote."""
        with self._lock:
            first = not any(self._untold)
            self.dropped += len(data)
            self._untold[0] += len(data)
            self._untold[1] += bytes(data).count(b"\n")
            first = first and monotonic() - self._told_at >= TELL_EVERY_S
            if first:
                self._told_at = monotonic()
        if first:
            self._say(f"workers' output does not reach {self.name}: {why}; what does not fit is dropped, workers go on")

    def trouble(self, text: str) -> None:
        """Say what is wrong beside a loss, no more often than a loss."""
        with self._lock:
            soon = monotonic() - self._told_at < TELL_EVERY_S
            if not soon:
                self._told_at = monotonic()
        if not soon:
            self._say(text)

    def account(self, *, last: bool = False) -> None:
        """Say how much was lost, now that it is over: what is written arrives again, or nothing more will come."""
        with self._lock:
            size, lines = self._untold
            if not size or not (last or monotonic() - self._told_at >= TELL_EVERY_S):
                return
            self._untold = [0, 0]
            self._told_at = monotonic()
        self._say(f"{size} bytes of workers' output, {lines} ends of line among them, did not reach {self.name}")


class FileSink(Sink):
    """A file opened for appending, closed when the last stream that writes to it has ended."""

    def __init__(self, path: str, say: Callable[[str], None]) -> None:
        """Raises OSError when it cannot be opened."""
        super().__init__(path, say)
        self.streams = 0
        self._fd = open_log(path)
        self._torn = False
        """Bytes were lost since the last one that was written."""
        self._midline = False

    def write(self, data: bytes) -> None:
        """What comes after a loss begins with a whole line, on a line of its own."""
        if self._torn:
            start = data.find(b"\n") + 1
            self.lose(data[:start] if start else data, "")
            data = data[start:] if start else b""
        if data:
            self._append(data)

    def turn_to(self, fd: int) -> None:
        """Go on in another file, which is open."""
        os.close(self._fd)
        self._fd = fd
        self._midline = False

    def _append(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            if self._torn and self._midline:
                os.write(self._fd, b"\n")
                self._midline = False
            while rest:
                written = os.write(self._fd, rest)
                self.passed += written
                self._midline = rest[written - 1] != 0x0A
                rest = rest[written:]
        except OSError as error:
            # The next chunk is tried anew: somebody may have made room.
            self.lose(rest, error.strerror or str(error))
            self._torn = True
            return
        if self._torn:
            self._torn = False
            self.account()

    def release(self) -> None:
        """One stream less."""
        self.streams -= 1
        if self.streams <= 0:
            self.close()

    def close(self) -> None:
        try:
            os.close(self._fd)
        except OSError as error:
            # close(2): network file systems may report only here that they could not keep what they took.
            self._say(f"the end of {self.name} may be missing: {error.strerror}")
        self.account(last=True)


def open_log(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)


class Console(Sink):
    """The agent's stdout or stderr, written in whole lines where it is given whole lines."""

    def __init__(self, fd: int, name: str, say: Callable[[str], None]) -> None:
        super().__init__(name, say)
        self.terminal = is_terminal(fd)
        self.fd, self._whole = reopened(fd)
        self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLOUT)
        self._poll.register(self._stop, select.POLLIN)
        self._failed = False

    def write(self, data: bytes) -> None:
        """Waits for a console that is slow, until `hurry`."""
        rest = memoryview(data)
        try:
            while rest:
                if not self._whole and not self._has_room():
                    self.lose(rest, "nobody read it before the end")
                    return
                try:
                    written = os.write(self.fd, self._piece(data, rest))
                    self.passed += written
                    rest = rest[written:]
                except BlockingIOError:
                    continue  # it had room for less than a piece
        except OSError as error:
            self.lose(rest, error.strerror or str(error))
            self._failed = True
            return
        if self._failed:
            self._failed = False
            self.account()

    def settle(self, through: bool) -> None:
        """For `Outlet.after`: nothing more will come."""
        self.account(last=True)

    def hurry(self) -> None:
        """Wait no more: what it does not take at once is dropped. From any thread."""
        os.eventfd_write(self._stop, 1)

    def close(self) -> None:
        os.close(self.fd)
        os.close(self._stop)

    def _has_room(self) -> bool:
        return any(fd == self.fd for fd, _ in self._poll.poll())

    def _piece(self, data: bytes, rest: memoryview) -> memoryview:
        if self._whole or len(rest) <= ATOMIC:
            return rest
        at = len(data) - len(rest)
        end = data.rfind(b"\n", at, at + ATOMIC) + 1
        return rest[: end - at if end else ATOMIC]


def is_terminal(fd: int) -> bool:
    try:
        return os.isatty(fd)
    except OSError:
        return False


def reopened(fd: int) -> tuple[int, bool]:
    """A descriptor of our own for the same console, and whether it takes writes of any size.

    O_NONBLOCK belongs to the open file, which the shell and other programs share, so it is set on a fresh one. Regular
    files know no such thing, and a fresh one would have an offset of its own: those are only duplicated.
    """
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        # Started with this descriptor closed: nobody listens, and that is no trouble.
        return os.open(os.devnull, os.O_WRONLY), True
    if stat.S_ISREG(mode):
        return os.dup(fd), True
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY), False
    except OSError:
        # A socket, a terminal of another user, a pipe that nobody reads. Where there is room for little, a write of
        # little may block, the outlet's thread and nothing else.
        return os.dup(fd), False


def same_console(one: int, other: int) -> bool:
    """Whether two descriptors are one pipe, terminal or file (`2>&1`), which then needs one queue."""
    try:
        return os.path.sameopenfile(one, other)
    except OSError:
        return False
