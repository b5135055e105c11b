"""One worker's stdout or stderr on its way from the pipe to a file and to the console."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from time import monotonic

from .lines import Lines, Prefix, no_prefix
from .sinks import Console, FileSink
from .writers import Outlet

PIPE = 1 << 20
"""Bytes of a pipe, if the system grants as much (/proc/sys/fs/pipe-max-size)."""
CHUNK = 1 << 18
"""Bytes per read. No worker can write while its pipe is read, so a large read holds up one that writes fast."""
TAIL = 1 << 16
"""Bytes of the end of each stream that are remembered."""
PIPES = 16 << 20
"""Bytes of all pipes of an agent together, where they have more than the system's default; its users share 64 MiB
(/proc/sys/fs/pipe-user-pages-soft)."""
F_SETPIPE_SZ, F_GETPIPE_SZ = 1031, 1032
"""From <linux/fcntl.h>: `fcntl` lacks them where Python was built against an old C library."""


@dataclass(frozen=True, slots=True)
class Picker:
    """Which lines of a stream go to one more file."""

    needles: tuple[bytes, ...]
    """Those that contain one of these."""
    file: FileSink

    def pick(self, prefix: bytes, block: bytes) -> bytes:
        """Those of these lines, each with its prefix."""
        lines = [line for line in block.splitlines() if any(needle in line for needle in self.needles)]
        return b"".join(prefix + line + b"\n" for line in lines)


@dataclass(frozen=True, slots=True)
class Route:
    """Where a stream goes."""

    file: FileSink | None = None
    """As written."""
    err: bool = False
    """It is shown on the console's stderr."""
    shown: bool = False
    prefix: Prefix = no_prefix
    at_once: bool = False
    """Unfinished lines too are shown: no other worker writes to this console."""
    picker: Picker | None = None

    @property
    def files(self) -> list[FileSink]:
        return [file for file in (self.file, self.picker.file if self.picker else None) if file is not None]


class Stream:
    """One worker's stdout or stderr."""

    def __init__(self, fd: int, holds: int, route: Route, files: Outlet, shown: tuple[Console, Outlet] | None) -> None:
        """`fd`: what to read from, `holds`: its buffer in the kernel, in bytes. `files` writes the route's files, the
        outlet of `shown` its console."""
        self.fd = fd
        self.holds = holds
        """Bytes that the kernel keeps for it until it is read."""
        self.outlets = [*([files] if route.files else []), *([shown[1]] if shown else [])]
        self.done = threading.Event()
        """All of it has been read and handed to its outlets, or it was given up."""
        self.complete = False
        """Read to its end; False if given up before."""
        self.tail = b""
        """The last `TAIL` bytes."""
        self._route = route
        self._files = files
        self._shown = shown
        self._lines = Lines(route.prefix, at_once=route.at_once)
        self._picked = Lines()
        for file in route.files:
            file.streams += 1

    def held_until(self, now: float) -> float | None:
        """Until when it is not to be read, because what it goes to is behind."""
        return max((until for outlet in self.outlets if (until := outlet.crowded(now)) is not None), default=None)

    def feed(self, data: bytes) -> None:
        """Take the next bytes: to the file as they are, to the console by lines."""
        self.tail = data[-TAIL:] if len(data) >= TAIL else (self.tail + data)[-TAIL:]
        route = self._route
        if route.file is not None:
            self._files.offer(route.file, data)
        self._show(self._lines.take(data))
        if route.picker is not None:
            self._pick(route.picker, self._picked.take(data))

    def close(self, complete: bool) -> None:
        """Pass on an unfinished last line, let go of the pipe, and of the files when they are written."""
        self.complete = complete
        os.close(self.fd)
        self._show(self._lines.finish())
        picker = self._route.picker
        if picker is not None:
            self._pick(picker, self._picked.finish())
        if self._route.files:
            self._files.after(self._release)
        self.done.set()

    def _show(self, block: bytes) -> None:
        if block and self._shown is not None:
            console, outlet = self._shown
            outlet.offer(console, block)

    def _pick(self, picker: Picker, block: bytes) -> None:
        if lines := picker.pick(self._route.prefix(), block):
            self._files.offer(picker.file, lines)

    def _release(self, through: bool) -> None:
        for file in self._route.files:
            file.release()


def await_done(streams: Iterable[Stream], timeout_s: float) -> list[Stream]:
    """Wait until these are done, at most `timeout_s`; those that are not."""
    until = monotonic() + timeout_s
    return [stream for stream in streams if not stream.done.wait(max(0.0, until - monotonic()))]


def make_pipe(size: int) -> tuple[int, int, int]:
    """A pipe: the end to read without blocking, the other end, and its size in bytes, which is `size` if this system
    allows. Raises OSError."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    try:
        fcntl.fcntl(writer, F_SETPIPE_SZ, size)
    except OSError:
        pass  # this user's pipes take as much memory as they may: the default is slower, and no worse
    return reader, writer, fcntl.fcntl(writer, F_GETPIPE_SZ)


def make_terminal(like: int) -> tuple[int, int, int]:
    """A terminal for a worker to write to, which passes its bytes on as they are, in the place of the terminal `like`:
    as `make_pipe`, of a size that nobody promises. Its window is as large as the other's is now. Raises OSError."""
    import termios

    reader, writer = os.openpty()
    try:
        os.set_blocking(reader, False)
        modes = termios.tcgetattr(writer)
        modes[1] &= ~termios.OPOST  # the real one makes \\r\\n of \\n
        modes[3] &= ~(termios.ECHO | termios.ICANON)
        termios.tcsetattr(writer, termios.TCSANOW, modes)
        fcntl.ioctl(writer, termios.TIOCSWINSZ, fcntl.ioctl(like, termios.TIOCGWINSZ, bytes(8)))
    except (OSError, termios.error) as error:
        os.close(reader)
        os.close(writer)
        raise OSError(*error.args) from error
    return reader, writer, 0
