"""One worker's output on its way, and where it goes: files and the agent's console, which never raise for bytes.

What a sink cannot take (disk full, console closed or standing still) is dropped, counted, and said once.
"""

from __future__ import annotations

import os
import select
import stat
import threading
from collections.abc import Callable
from time import monotonic

CONSOLE_BUFFER = 1 << 20
"""Bytes kept for a slow console before its workers have to wait."""
LONG_LINE = 65536
"""Bytes; a longer line reaches the console in pieces of this size. Bounds what is kept of one stream."""
ATOMIC = 4096
"""PIPE_BUF: what a pipe takes whole or not at all, so whole lines stay whole beside other writers."""


class Sink:
    """A name, and how many bytes did not get there."""

    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        self.name = name
        self.dropped = 0
        self._say = say

    def _lose(self, size: int, why: str) -> None:
        first = not self.dropped
        self.dropped += size
        if first:
            self._say(f"workers' output does not reach {self.name}: {why}; what does not fit is dropped, workers go on")


class FileSink(Sink):
    """A file opened for appending, closed when the last stream that writes to it has ended."""

    def __init__(self, path: str, say: Callable[[str], None]) -> None:
        """Raises OSError when it cannot be opened."""
        super().__init__(path, say)
        self.streams = 0
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            # The next chunk is tried anew: somebody may have made room.
            self._lose(len(rest), error.strerror or str(error))

    def release(self) -> None:
        """One stream less."""
        self.streams -= 1
        if self.streams <= 0:
            os.close(self._fd)


class Console(Sink):
    """The agent's stdout or stderr, written without ever blocking the thread."""

    def __init__(self, fd: int, name: str, say: Callable[[str], None]) -> None:
        super().__init__(name, say)
        self.blocked_at: float | None = None
        """Monotonic time since when it has taken nothing, while there is something to write."""
        self.dropping = False
        """Given up on until it takes bytes again."""
        self._pending = bytearray()
        self.fd, self._whole, self._ask = _reopened(fd)

    @property
    def pending(self) -> int:
        """Bytes it has not taken yet."""
        return len(self._pending)

    @property
    def full(self) -> bool:
        """Whether those who write to it have to wait."""
        return len(self._pending) > CONSOLE_BUFFER

    def offer(self, data: bytes) -> None:
        """Write `data`, which is whole lines, or keep it for later."""
        if self.dropping:
            self.dropped += len(data)
            return
        self._pending += data
        if self.blocked_at is None:
            self.flush()

    def flush(self) -> None:
        """Write as much as it takes now."""
        pending = self._pending
        self.dropping = False
        try:
            while pending:
                if self._ask is not None and not self._ask.poll(0):
                    raise BlockingIOError
                del pending[: os.write(self.fd, self._next_piece())]
                self.blocked_at = None
            self.blocked_at = None
        except BlockingIOError:
            if self.blocked_at is None:
                self.blocked_at = monotonic()
        except OSError as error:
            self.blocked_at = None
            size = len(pending)
            pending.clear()
            self._lose(size, error.strerror or str(error))

    def give_up(self, waited_s: float) -> None:
        """Drop what is pending and what comes, until it takes bytes again."""
        size = len(self._pending)
        self._pending.clear()
        self.dropping = True
        self._lose(size, f"nobody has read it for {waited_s:g} s")

    def close(self) -> None:
        os.close(self.fd)

    def _next_piece(self) -> bytes:
        if self._whole or len(self._pending) <= ATOMIC:
            return bytes(self._pending)
        end = self._pending.rfind(b"\n", 0, ATOMIC) + 1
        return bytes(self._pending[: end or ATOMIC])


def _reopened(fd: int) -> tuple[int, bool, select.poll | None]:
    """A descriptor of our own for the same console: (fd, takes large writes, poll to ask before each write if any).

    O_NONBLOCK belongs to the open file, which the shell and the workers share, so it is set on a fresh one. Regular
    files never block, and a fresh one would have an offset of its own: those are only duplicated.
    """
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        # Started with this descriptor closed: nobody listens, and that is no trouble.
        return os.open(os.devnull, os.O_WRONLY), True, None
    if stat.S_ISREG(mode):
        return os.dup(fd), True, None
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY), False, None
    except OSError:
        # A socket, a terminal of another user, a pipe that nobody reads: ask each time, then write little.
        own = os.dup(fd)
        ask = select.poll()
        ask.register(own, select.POLLOUT)
        return own, False, ask


def same_console(one: int, other: int) -> bool:
    """Whether two descriptors are one pipe, terminal or file (`2>&1`), which then needs one queue."""
    try:
        return os.path.sameopenfile(one, other)
    except OSError:
        return False


class Stream:
    """One worker's stdout or stderr on its way."""

    def __init__(
        self,
        fd: int,
        prefix: bytes,
        file: FileSink,
        console: Console,
        needles: tuple[bytes, ...],
        picked: FileSink | None,
    ) -> None:
        self.fd = fd
        self.console = console
        self.done = threading.Event()
        self.complete = False
        """Read to its end; False if given up before."""
        self._prefix = prefix
        self._file = file
        self._needles = needles
        self._picked = picked
        self._tail = bytearray()
        file.streams += 1
        if picked is not None:
            picked.streams += 1

    def feed(self, data: bytes) -> None:
        """Take the next bytes: to the file as they are, to the console by lines."""
        self._file.write(data)
        tail = self._tail
        tail += data
        while len(tail) > LONG_LINE and _first_end(tail) > LONG_LINE:
            self._emit(bytes(tail[:LONG_LINE]) + b"\n")
            del tail[:LONG_LINE]
        # A \r that comes last may be half of \r\n: it waits for what follows.
        end = max(tail.rfind(b"\n"), tail.rfind(b"\r", 0, len(tail) - 1)) + 1
        if end:
            self._emit(bytes(tail[:end]))
            del tail[:end]

    def close(self, complete: bool) -> None:
        """Pass on an unfinished last line, and let go of pipe and files."""
        self.complete = complete
        if self._tail:
            self._emit(bytes(self._tail) + (b"" if self._tail.endswith(b"\r") else b"\n"))
            self._tail.clear()
        os.close(self.fd)
        self._file.release()
        if self._picked is not None:
            self._picked.release()

    def _emit(self, block: bytes) -> None:
        self.console.offer(mark(self._prefix, block))
        if self._picked is None:
            return
        lines = [line for line in block.splitlines() if any(needle in line for needle in self._needles)]
        if lines:
            self._picked.write(b"".join(self._prefix + line + b"\n" for line in lines))


def mark(prefix: bytes, block: bytes) -> bytes:
    r"""Put `prefix` before each line of `block`, which ends with an end of line (\n, \r\n, or \r of a progress bar)."""
    if b"\r" in block:
        marked = block.replace(b"\r", b"\r" + prefix).replace(b"\n", b"\n" + prefix)
        marked = marked.replace(b"\r" + prefix + b"\n", b"\r\n")
    else:
        marked = block.replace(b"\n", b"\n" + prefix)
    return prefix + marked[: len(marked) - len(prefix)]


def _first_end(text: bytearray) -> int:
    ends = [at for at in (text.find(b"\n"), text.find(b"\r")) if at >= 0]
    return min(ends, default=len(text))
