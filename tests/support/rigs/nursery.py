"""A supervisor's nursery, seen from outside: what it reports, who is below it, and who outlives it."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from elastic_agent.agent.processes.protocol import Fact, Launch
from elastic_agent.agent.processes.supervisor import Supervisor
from support.workers import WORKERS

FAMILY = (sys.executable, "-S", str(WORKERS / "sup_family.py"))
BOUND_S = 60.0
"""The limit for what must happen; only a failing test waits so long."""


def launch(*argv: str, key: int = 0, out: int | None = None, env: dict[str, str] | None = None) -> Launch:
    return Launch(key, argv, dict(os.environ) if env is None else env, str(Path.cwd()), out, None)


def shell(script: str, key: int = 0, out: int | None = None) -> Launch:
    return launch("/bin/sh", "-c", script, key=key, out=out)


def facts_until(supervisor: Supervisor, last: type[Fact], count: int = 1) -> list[Fact]:
    """Everything observed until `count` facts of this type were."""
    seen: list[Fact] = []
    poll = select.poll()
    poll.register(supervisor.fileno(), select.POLLIN)
    while sum(isinstance(fact, last) for fact in seen) < count:
        assert poll.poll(BOUND_S * 1000), f"no {last.__name__} within {BOUND_S} s after {seen}"
        seen += supervisor.observe()
    return seen


def line_from(fd: int) -> str:
    """The next line that a worker wrote into the pipe."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    line = b""
    while not line.endswith(b"\n"):
        assert poll.poll(BOUND_S * 1000), f"no line within {BOUND_S} s, only {line!r}"
        piece = os.read(fd, 1)
        assert piece, f"end of file after {line!r}"
        line += piece
    return line.decode().strip()


def nursery_of(supervisor: Supervisor) -> int:
    """Its pid, once the nursery has reported it. Facts that come meanwhile are dropped."""
    while not supervisor._nursery:
        wait_readable(supervisor.fileno())
        supervisor.observe()
    return supervisor._nursery


def guardian_of(supervisor: Supervisor) -> int:
    return supervisor._guardian


def wait_readable(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    assert poll.poll(BOUND_S * 1000)


@contextlib.contextmanager
def watched(pids: Sequence[int]) -> Iterator[list[int]]:
    """Pidfds of these processes, all of which are running."""
    fds = [os.pidfd_open(pid) for pid in pids]
    try:
        assert alive_after(fds, 0) == len(fds)
        yield fds
    finally:
        for fd in fds:
            os.close(fd)


def alive_after(pidfds: Sequence[int], limit_s: float) -> int:
    """How many of them have not exited within the limit; returns as soon as all have."""
    until = time.monotonic() + limit_s
    left = list(pidfds)
    poll = select.poll()
    for fd in left:
        poll.register(fd, select.POLLIN)
    while left and (ready := poll.poll(max(0.0, until - time.monotonic()) * 1000)):
        for fd, _ in ready:
            poll.unregister(fd)
            left.remove(fd)
    return len(left)


def family_of(fd: int) -> list[int]:
    """The pids that a family worker printed."""
    first, *pids = line_from(fd).split()
    assert first == "family"
    return [int(pid) for pid in pids]


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def nurseries_of(guardian: int) -> list[int]:
    return [pid for pid in children_of(guardian) if comm_of(pid) == b"elastic-nursery\n"]


def fd_of(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None
    return process.stdout.fileno()


def comm_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/comm").read_bytes()
