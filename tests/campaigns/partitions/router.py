"""Namespaces of nodes and a store, each linked to a namespace that forwards packets between them, or drops them without
an error, each way by itself. Needs root and `ip`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count

from support.network import ip

_COUNT = count()
PRIORITY = 1000
"""Of the first rule that drops packets."""


class Router:
    """`address` of each name; `cut` and `heal`."""

    def __init__(self, held: ExitStack, names: Sequence[str]) -> None:
        number = (os.getpid() * 16 + next(_COUNT)) % 16384
        self._mark = f"er{number:x}"
        self._net = f"100.{64 + number // 256}.{number % 256}"  # shared address space, RFC 6598
        self._space = f"{self._mark}-r"
        self._cuts: list[tuple[str, ...]] = []
        self.address: dict[str, str] = {}
        ip("netns", "add", self._space)
        held.callback(ip, "netns", "del", self._space)
        subprocess.run(
            ["ip", "netns", "exec", self._space, "sysctl", "-qw", "net.ipv4.ip_forward=1"], check=True, timeout=20
        )
        for at, name in enumerate(names):
            ip("netns", "add", f"{self._mark}-{name}")
            held.callback(ip, "netns", "del", f"{self._mark}-{name}")
            self._link(at, name, ("netns", f"{self._mark}-{name}"), "eth0")
            ip("-n", f"{self._mark}-{name}", "link", "set", "lo", "up")
            ip("-n", f"{self._mark}-{name}", "route", "add", "default", "via", self._ours(at))
        # The namespace of whoever plays reaches the store too, and never through a cut.
        at = len(names)
        self._link(at, "", (), f"{self._mark}-h")
        held.callback(ip, "link", "del", f"{self._mark}-h")
        ip("route", "add", f"{self._net}.0/24", "via", self._ours(at))

    def _ours(self, at: int) -> str:
        return f"{self._net}.{4 * at + 1}"

    def _link(self, at: int, name: str, where: Sequence[str], device: str) -> None:
        port = f"{self._mark}-{at}"
        ip("link", "add", device, *where, "type", "veth", "peer", "name", port, "netns", self._space)
        ip("-n", self._space, "addr", "add", f"{self._ours(at)}/30", "dev", port)
        ip("-n", self._space, "link", "set", port, "up")
        self.address[name] = f"{self._net}.{4 * at + 2}"
        inside = ("-n", where[1]) if where else ()
        ip(*inside, "addr", "add", f"{self.address[name]}/30", "dev", device)
        ip(*inside, "link", "set", device, "up")

    def within(self, name: str) -> Sequence[str]:
        """The words before a command that run it in this namespace, by exec: the process id stays."""
        return ("ip", "netns", "exec", f"{self._mark}-{name}")

    def cut(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Drop what the first of each pair sends to the second."""
        self._cuts = [
            ("from", self.address[of], "to", self.address[to], "priority", str(PRIORITY + at), "blackhole")
            for at, (of, to) in enumerate(pairs)
        ]
        self._batch("add")

    def heal(self) -> None:
        self._batch("del")
        self._cuts = []

    def _batch(self, verb: str) -> None:
        """All in one process, as a partition begins and ends in one moment."""
        lines = "".join(f"rule {verb} {' '.join(each)}\n" for each in self._cuts)
        subprocess.run(
            ["ip", "-n", self._space, "-batch", "-"],
            input=lines,
            text=True,
            check=True,
            capture_output=True,
            timeout=20,
        )


@contextmanager
def routed(names: Sequence[str]) -> Iterator[Router]:
    """A router and these namespaces, deleted at the end of the block."""
    with ExitStack() as held:
        yield Router(held, names)
