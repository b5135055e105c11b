"""One worker's stdout or stderr on its way from the pipe to a file and to the console."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterable
from time import monotonic

from ...proto.frozen import dataclass
from .lines import ConsoleLines, Prefix, no_prefix
from .sinks import FileSink, Sink
from .writers import QueuedWriter

PIPE_SIZE = 1 << 20
"""Bytes of a pipe, if the system grants as much (/proc/sys/fs/pipe-max-size)."""
CHUNK = 1 << 18
"""Bytes per read. No worker can write while its pipe is read, so a large read delays one that writes fast."""
TAIL = 1 << 16
"""Bytes of the end of each stream that are remembered."""
ALL_PIPES_SIZE = 16 << 20
"""Bytes of all pipes of an agent together, where they are larger than the system's default; all processes of a user
share 64 MiB (/proc/sys/fs/pipe-user-pages-soft)."""
F_SETPIPE_SZ, F_GETPIPE_SZ = 1031, 1032
"""From <linux/fcntl.h>: `fcntl` lacks them where Python was built against an old C library."""


@dataclass(frozen=True, slots=True)
class LineFilter:
    """Copies the lines that contain one of some substrings to a file."""

    substrings: tuple[bytes, ...]
    file: FileSink

    def select(self, prefix: bytes, block: bytes) -> bytes:
        """The lines of `block` to copy, each with its prefix."""
        lines = [line for line in block.splitlines() if any(substring in line for substring in self.substrings)]
        return b"".join(prefix + line + b"\n" for line in lines)


@dataclass(frozen=True, slots=True)
class Route:
    """Where a stream goes."""

    file: FileSink | None = None
    """Gets the bytes as written."""
    err: bool = False
    """It is shown on the console's stderr, not its stdout."""
    shown: bool = False
    prefix: Prefix = no_prefix
    at_once: bool = False
    """Unfinished lines too are shown: no other worker writes to this console."""
    line_filter: LineFilter | None = None

    @property
    def files(self) -> list[FileSink]:
        return [file for file in (self.file, self.line_filter.file if self.line_filter else None) if file is not None]


Tap = Callable[[int, bytes], None]


class Stream:
    """One worker's stdout or stderr."""

    def __init__(
        self,
        fd: int,
        capacity: int,
        route: Route,
        files: QueuedWriter,
        shown: tuple[Sink, QueuedWriter] | None,
    ) -> None:
        """`fd`: what to read from; `capacity`: bytes that the kernel buffers for it. `files` writes the route's files;
        `shown` is the console and its writer, None if the stream is not shown."""
        self.fd = fd
        self.capacity = capacity
        """Bytes that the kernel buffers until they are read."""
        self.writers = [*([files] if route.files else []), *([shown[1]] if shown else [])]
        self.done = threading.Event()
        """All of it has been read and handed to its writers, or reading it was given up."""
        self.complete = False
        """Read to its end; False if reading was given up before."""
        self.seen = (0, b"")
        """Bytes read so far, and the last `TAIL` of them."""
        self.held = True
        """Whether who writes to it waits for writers that are behind."""
        self.taps: tuple[Tap, ...] = ()
        """Each gets what is read, and `total` behind it, on the relay's thread; they must be quick."""
        self._route = route
        self._files = files
        self._shown = shown
        self._lines = ConsoleLines(route.prefix, at_once=route.at_once)
        self._filtered = ConsoleLines()
        for file in route.files:
            file.streams += 1

    @property
    def total(self) -> int:
        """Bytes read so far."""
        return self.seen[0]

    @property
    def tail(self) -> bytes:
        """The last `TAIL` bytes."""
        return self.seen[1]

    @property
    def err(self) -> bool:
        """Whether it is shown on the console's stderr."""
        return self._route.err

    def hold_until(self, now: float) -> float | None:
        """Until when it must not be read, because one of its writers is behind; None if it may be."""
        if not self.held:
            return None
        return max((until for writer in self.writers if (until := writer.hold_until(now)) is not None), default=None)

    def feed(self, data: bytes) -> None:
        """Pass on the next bytes: to the file as they are, to the console by lines."""
        total, tail = self.seen
        self.seen = (total + len(data), data[-TAIL:] if len(data) >= TAIL else (tail + data)[-TAIL:])
        for tap in self.taps:
            tap(self.seen[0], data)
        route = self._route
        if route.file is not None:
            self._files.offer(route.file, data)
        self._show(self._lines.take(data))
        if route.line_filter is not None:
            self._filter(route.line_filter, self._filtered.take(data))

    def close(self, complete: bool) -> None:
        """Pass on an unfinished last line, close the pipe, and close the files once they are written."""
        self.complete = complete
        os.close(self.fd)
        self._show(self._lines.finish())
        line_filter = self._route.line_filter
        if line_filter is not None:
            self._filter(line_filter, self._filtered.finish())
        if self._route.files:
            self._files.after(self._release)
        self.done.set()

    def _show(self, block: bytes) -> None:
        if block and self._shown is not None:
            console, writer = self._shown
            writer.offer(console, block)

    def _filter(self, line_filter: LineFilter, block: bytes) -> None:
        if lines := line_filter.select(self._route.prefix(), block):
            self._files.offer(line_filter.file, lines)

    def _release(self, written: bool) -> None:
        for file in self._route.files:
            file.release()


def await_done(streams: Iterable[Stream], timeout_s: float) -> list[Stream]:
    """Wait at most `timeout_s` until these are done; returns those that are not."""
    until = monotonic() + timeout_s
    return [stream for stream in streams if not stream.done.wait(max(0.0, until - monotonic()))]


def make_pipe(size: int) -> tuple[int, int, int]:
    """A pipe: its read end, which does not block, its write end, and its size in bytes: `size` if this system allows as
    much. Raises OSError."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    try:
        fcntl.fcntl(write_end, F_SETPIPE_SZ, size)
    except OSError:
        pass  # this user's pipes use all the memory they may: the default size is slower, and works
    return read_end, write_end, fcntl.fcntl(write_end, F_GETPIPE_SZ)


def make_terminal(like: int) -> tuple[int, int, int]:
    """A terminal for a worker to write to, in place of the terminal `like`, that passes bytes on unchanged. Returned as
    by `make_pipe`, with size 0, since the size of its buffer is not specified. Its window is as large as that of `like`
    is now. Raises OSError."""
    import termios

    read_end, write_end = os.openpty()
    try:
        os.set_blocking(read_end, False)
        modes = termios.tcgetattr(write_end)
        modes[1] &= ~termios.OPOST  # the real terminal turns \\n into \\r\\n
        modes[3] &= ~(termios.ECHO | termios.ICANON)
        termios.tcsetattr(write_end, termios.TCSANOW, modes)
        fcntl.ioctl(write_end, termios.TIOCSWINSZ, fcntl.ioctl(like, termios.TIOCGWINSZ, bytes(8)))
    except (OSError, termios.error) as error:
        os.close(read_end)
        os.close(write_end)
        raise OSError(*error.args) from error
    return read_end, write_end, 0
