"""Free ports; and network namespaces on this host, each with a link to a virtual switch that can be cut, for which root
and `ip` are needed."""

from __future__ import annotations

import itertools
import os
import random
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

DEFAULTS = (29400, 29500)
"""The ports that torch's launchers, and those built on them, take where they are given none."""


def free_port(host: str = "127.0.0.1") -> int:
    """A port that is free now."""
    return free_ports(1, host)[0]


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports that are free now. None is one that the kernel gives to a connection or to port 0, which other tests have
    at any moment, nor one that another worker of this run of pytest-xdist, or this one, gives to a test meanwhile, nor
    one that a launcher takes where it is given none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with ExitStack() as held:
        ports: list[int] = []
        while len(ports) < count:
            port = next(_candidates())
            probe = held.enter_context(socket.socket(family))
            try:
                probe.bind((host, port))
            except OSError:
                continue
            ports.append(port)
        return ports


@cache
def _candidates() -> Iterator[int]:
    """Ports of which each comes again only after all others of this process."""
    given_from = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = [port for port in range(10_000, max(given_from, 20_000)) if port not in DEFAULTS]
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    mine = ports[worker :: max(worker + 1, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))]
    return itertools.cycle(random.sample(mine, len(mine)))


def ip(*words: str) -> None:
    """Run `ip`. Raises CalledProcessError with its output."""
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)


@cache
def why_unavailable() -> str:
    """Why namespaces cannot be created here; empty: they can."""
    try:
        with virtual_switch() as line:
            line.add("probe")
    except (OSError, subprocess.SubprocessError) as error:
        output = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
        return f"NO NETWORK NAMESPACES HERE ({output}), so nodes that are cut off are NOT TESTED: needs root and ip"
    return ""


def _claimed(held: ExitStack) -> int:
    """A number below 512 that no other switch on this host has meanwhile. The kernel gives it back if this process is
    killed; a bridge that was left so is passed over."""
    for number in random.sample(range(512), 512):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0elastic-agent-test-switch-{number}")
        except OSError:
            claim.close()
            continue
        held.enter_context(claim)
        if not Path(f"/sys/class/net/ea{number:x}").exists():
            return number
    raise AssertionError("512 switches are in use on this host")


class Switch:
    """A bridge that connects namespaces; the host's own namespace has `address` on it."""

    def __init__(self, held: ExitStack) -> None:
        number = _claimed(held)
        self._net = f"198.{18 + number // 256}.{number % 256}"  # the range of RFC 2544, reserved for benchmarks
        self._mark = f"ea{number:x}"
        self._held = held
        self._lines: dict[str, str] = {}
        self.addresses: dict[str, str] = {}
        """Of the namespaces, by name."""
        self.address = f"{self._net}.1"
        ip("link", "add", "name", self._mark, "type", "bridge")
        held.callback(ip, "link", "del", self._mark)
        ip("addr", "add", f"{self.address}/24", "dev", self._mark)
        ip("link", "set", self._mark, "up")

    def add(self, name: str) -> None:
        """Create a namespace of this name, linked to the switch."""
        line, space = f"{self._mark}-{len(self._lines)}", self._space(name)
        ip("netns", "add", space)
        self._held.callback(ip, "netns", "del", space)
        ip("link", "add", line, "type", "veth", "peer", "name", "eth0", "netns", space)
        ip("link", "set", line, "master", self._mark, "up")
        self.addresses[name] = f"{self._net}.{len(self._lines) + 2}"
        ip("-n", space, "addr", "add", f"{self.addresses[name]}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            ip("-n", space, "link", "set", device, "up")
        self._lines[name] = line

    def within(self, name: str) -> Sequence[str]:
        """The words before a command that run it in this namespace, by exec: the process id stays."""
        return ("ip", "netns", "exec", self._space(name))

    def cut(self, name: str) -> None:
        """Drop all packets of this namespace, without an error to either side."""
        ip("link", "set", self._lines[name], "down")

    def mend(self, name: str) -> None:
        ip("link", "set", self._lines[name], "up")

    def _space(self, name: str) -> str:
        return f"{self._mark}-{name}"


@contextmanager
def virtual_switch() -> Iterator[Switch]:
    """A switch, deleted at the end of the block with all its namespaces."""
    with ExitStack() as held:
        yield Switch(held)
