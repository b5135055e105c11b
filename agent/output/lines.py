r"""How a stream of bytes becomes what a console shows: whole lines, each with a prefix.

A line ends with \n, with \r\n, or with the \r of a progress bar. Pure, but for the clock that a prefix may read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from string import Template

LONG_LINE = 65536
"""Bytes kept of a line whose end has not come. A longer one is shown in pieces of this size."""

Prefix = Callable[[], bytes]


def prefix_of(template: str, fields: Mapping[str, object]) -> Prefix:
    """What makes the prefix of a line. `${time}`, the time at which the line was read, is this host's, to the
    millisecond: `2026-11-21 15:30:00.125`. Names that are no field stay as they are; line breaks become spaces."""
    # The time's place is marked by a byte that no environment variable can contain.
    text = Template(template).safe_substitute({**fields, "time": "\0"})
    fixed = os.fsencode(" ".join(text.splitlines()))
    if b"\0" not in fixed:
        return lambda: fixed
    return lambda: fixed.replace(b"\0", timestamp(time.time()))


def timestamp(at_s: float) -> bytes:
    """Local date and time of `at_s`, seconds since the epoch, to the millisecond."""
    return b"%s.%03d" % (time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s)).encode(), int(at_s % 1 * 1000))


def no_prefix() -> bytes:
    return b""


class ConsoleLines:
    """Turns the bytes of one stream into what a console shows of it."""

    def __init__(self, prefix: Prefix = no_prefix, *, at_once: bool = False) -> None:
        """`at_once`: show an unfinished line as it grows, on a console that no other worker writes to."""
        self._prefix = prefix
        self._at_once = at_once
        self._tail = b""
        """The unfinished line, not shown yet."""
        self._last = b"\n"
        """The byte that was shown last."""

    def take(self, data: bytes) -> bytes:
        """What the next bytes of the stream add to the console."""
        if self._at_once:
            return self._show_at_once(data) if data else b""
        if self._tail:
            data = self._tail + data
        pieces = b""
        while len(data) > LONG_LINE and _first_line_end(data, LONG_LINE + 1) > LONG_LINE:
            # Without a prefix the bytes are shown exactly as they were written.
            prefix = self._prefix()
            pieces += prefix + data[:LONG_LINE] + (b"\n" if prefix else b"")
            data = data[LONG_LINE:]
        # A final \r may be the first half of \r\n, so it stays in the tail until the next byte is known.
        after = data.rfind(b"\n") + 1
        end = max(after, data.rfind(b"\r", after, len(data) - 1) + 1)
        self._tail = data[end:]
        return pieces + prefix_lines(self._prefix(), data[:end]) if end else pieces

    def finish(self) -> bytes:
        """What the end of the stream adds: an unfinished last line, and an end of line."""
        if self._at_once:
            return b"" if self._last in b"\r\n" or not self._prefix() else b"\n"
        if not self._tail:
            return b""
        prefix, tail, self._tail = self._prefix(), self._tail, b""
        return prefix + tail + (b"" if tail.endswith(b"\r") or not prefix else b"\n")

    def _show_at_once(self, data: bytes) -> bytes:
        prefix = self._prefix()
        # A prefix is shown with the first byte of its line, so that no bare prefix follows the last line.
        first = prefix if self._last == b"\n" or (self._last == b"\r" and data[:1] != b"\n") else b""
        self._last = data[-1:]
        if not prefix:
            return data
        if data[:1] == b"\n" and not first:
            return b"\n" + prefix_lines(prefix, data[1:])
        return first + _prefix_after_line_ends(prefix, data)


def prefix_lines(prefix: bytes, block: bytes) -> bytes:
    """Put `prefix` before each line of `block`, also before an unfinished last one."""
    return prefix + _prefix_after_line_ends(prefix, block) if prefix and block else block


def _prefix_after_line_ends(prefix: bytes, block: bytes) -> bytes:
    """Put `prefix` after each end of line, except at the very end of `block`. Copies a block without \\r only once."""
    if b"\r" in block:
        prefixed = block.replace(b"\r", b"\r" + prefix).replace(b"\n", b"\n" + prefix)
        prefixed = prefixed.replace(b"\r" + prefix + b"\n", b"\r\n")
    else:
        prefixed = block.replace(b"\n", b"\n" + prefix)
    return prefixed[: -len(prefix)] if block.endswith((b"\n", b"\r")) else prefixed


def _first_line_end(text: bytes, within: int) -> int:
    ends = [at for at in (text.find(b"\n", 0, within), text.find(b"\r", 0, within)) if at >= 0]
    return min(ends, default=len(text))
