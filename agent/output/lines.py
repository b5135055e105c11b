r"""How a stream of bytes becomes what a console shows: whole lines, each with a prefix.

An end of line is \n, \r\n, or the \r of a progress bar. Pure, but for the prefix that a caller may compute.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from string import Template

LONG_LINE = 65536
"""Bytes kept of a line whose end has not come. A longer one is shown in pieces of this size."""

Prefix = Callable[[], bytes]


def prefix_of(template: str, known: Mapping[str, object]) -> Prefix:
    """What makes the prefix of a line. `${time}`, the time at which the line was read, is this host's, to the
    millisecond: `2026-11-21 15:30:00.125`. What the template does not know stays; a line stays one line."""
    # A byte that no environment can hold keeps the place of the time.
    text = Template(template).safe_substitute({**known, "time": "\0"})
    fixed = os.fsencode(" ".join(text.splitlines()))
    if b"\0" not in fixed:
        return lambda: fixed
    return lambda: fixed.replace(b"\0", stamp(time.time()))


def stamp(at_s: float) -> bytes:
    """Local time of a time since the epoch."""
    return b"%s.%03d" % (time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s)).encode(), int(at_s % 1 * 1000))


def no_prefix() -> bytes:
    return b""


class Lines:
    """One stream on its way to a console."""

    def __init__(self, prefix: Prefix = no_prefix, *, at_once: bool = False) -> None:
        """`at_once`: an unfinished line is shown as it grows, for a console that no other worker writes to."""
        self._prefix = prefix
        self._at_once = at_once
        self._tail = b""
        self._last = b"\n"
        """The byte that was shown last."""

    def take(self, data: bytes) -> bytes:
        """What the next bytes of the stream add to the console."""
        if self._at_once:
            return self._grow(data) if data else b""
        if self._tail:
            data = self._tail + data
        cut = b""
        while len(data) > LONG_LINE and _first_end(data, LONG_LINE + 1) > LONG_LINE:
            # Without a prefix the bytes are to be as they were written.
            prefix = self._prefix()
            cut += prefix + data[:LONG_LINE] + (b"\n" if prefix else b"")
            data = data[LONG_LINE:]
        # A \r that comes last may be half of \r\n: it waits for what follows.
        after = data.rfind(b"\n") + 1
        end = max(after, data.rfind(b"\r", after, len(data) - 1) + 1)
        self._tail = data[end:]
        return cut + mark(self._prefix(), data[:end]) if end else cut

    def finish(self) -> bytes:
        """What the end of the stream adds: a last line that never ended, and its end."""
        if self._at_once:
            return b"" if self._last in b"\r\n" or not self._prefix() else b"\n"
        if not self._tail:
            return b""
        prefix, tail, self._tail = self._prefix(), self._tail, b""
        return prefix + tail + (b"" if tail.endswith(b"\r") or not prefix else b"\n")

    def _grow(self, data: bytes) -> bytes:
        prefix = self._prefix()
        # The prefix of a line is shown with its first byte, so that nothing stands after the end of the last line.
        lead = prefix if self._last == b"\n" or (self._last == b"\r" and data[:1] != b"\n") else b""
        self._last = data[-1:]
        if not prefix:
            return data
        if data[:1] == b"\n" and not lead:
            return b"\n" + mark(prefix, data[1:])
        return lead + _between(prefix, data)


def mark(prefix: bytes, block: bytes) -> bytes:
    r"""Put `prefix` before each line of `block`; what follows the last end of line is a line, if it is anything."""
    return prefix + _between(prefix, block) if prefix and block else block


def _between(prefix: bytes, block: bytes) -> bytes:
    """Put `prefix` after each end of line but one that comes last. What ends amid a line is copied only once."""
    if b"\r" in block:
        marked = block.replace(b"\r", b"\r" + prefix).replace(b"\n", b"\n" + prefix)
        marked = marked.replace(b"\r" + prefix + b"\n", b"\r\n")
    else:
        marked = block.replace(b"\n", b"\n" + prefix)
    return marked[: -len(prefix)] if block.endswith((b"\n", b"\r")) else marked


def _first_end(text: bytes, within: int) -> int:
    ends = [at for at in (text.find(b"\n", 0, within), text.find(b"\r", 0, within)) if at >= 0]
    return min(ends, default=len(text))
