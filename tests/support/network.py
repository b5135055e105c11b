"""Network namespaces on this machine, each with one line to a switch; a line can be cut. Needs root and `ip`."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache

_COUNT = itertools.count()


def ip(*words: str) -> None:
    """Raises CalledProcessError with what `ip` said."""
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)


@cache
def missing() -> str:
    """Why there can be none here; empty: there can."""
    try:
        with switch() as line:
            line.add("probe")
    except (OSError, subprocess.SubprocessError) as error:
        said = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
        return f"NO NETWORK NAMESPACES HERE ({said}), so nothing is known of nodes that are cut off: be root, with ip"
    return ""


class Switch:
    """Joins namespaces; this machine's own has `address` on it."""

    def __init__(self, held: ExitStack) -> None:
        number = os.getpid() % 4096 * 16 + next(_COUNT) % 16
        self._net = f"198.{18 + number // 256 % 2}.{number % 256}"  # the range of RFC 2544, for tests like this
        self._mark = f"ea{number:x}"
        self._held = held
        self._lines: dict[str, str] = {}
        self.address = f"{self._net}.1"
        ip("link", "add", "name", self._mark, "type", "bridge")
        held.callback(ip, "link", "del", self._mark)
        ip("addr", "add", f"{self.address}/24", "dev", self._mark)
        ip("link", "set", self._mark, "up")

    def add(self, name: str) -> None:
        """A namespace of this name."""
        line, space = f"{self._mark}-{len(self._lines)}", self._space(name)
        ip("netns", "add", space)
        self._held.callback(ip, "netns", "del", space)
        ip("link", "add", line, "type", "veth", "peer", "name", "eth0", "netns", space)
        ip("link", "set", line, "master", self._mark, "up")
        ip("-n", space, "addr", "add", f"{self._net}.{len(self._lines) + 2}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            ip("-n", space, "link", "set", device, "up")
        self._lines[name] = line

    def within(self, name: str) -> Sequence[str]:
        """The begin of a command that runs there; it stays the same process."""
        return ("ip", "netns", "exec", self._space(name))

    def cut(self, name: str) -> None:
        """Nothing goes in or out, and nobody is told."""
        ip("link", "set", self._lines[name], "down")

    def mend(self, name: str) -> None:
        ip("link", "set", self._lines[name], "up")

    def _space(self, name: str) -> str:
        return f"{self._mark}-{name}"


@contextmanager
def switch() -> Iterator[Switch]:
    """Gone at the end of the block, with all its namespaces."""
    with ExitStack() as held:
        yield Switch(held)
