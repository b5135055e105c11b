"""Processes by their command line, as /proc shows them; any of them may end while it is looked at."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from ...proto.frozen import dataclass

TICKS = os.sysconf("SC_CLK_TCK")
"""Clock ticks a second, in which the kernel counts processor time."""


@dataclass(frozen=True)
class Stat:
    """The part of /proc/PID/stat that is used here."""

    pid: int
    parent: int
    name: str
    state: str
    cpu_s: float
    """Processor time so far, of all its threads."""
    started: int
    """With the pid, this names a process for good: in ticks since the start of the host."""


def pids(proc: Path = Path("/proc")) -> Iterator[int]:
    """The ids of all processes of this host."""
    return (int(name) for name in os.listdir(proc) if name.isdigit())


def stat(pid: int, proc: Path = Path("/proc")) -> Stat | None:
    """None where it has ended."""
    text = _read(proc / str(pid) / "stat")
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    if len(fields) < 20:
        return None
    cpu_s = (int(fields[11]) + int(fields[12])) / TICKS
    return Stat(pid, int(fields[1]), name, fields[0], cpu_s, int(fields[19]))


def matching(pattern: str, proc: Path = Path("/proc")) -> list[int]:
    """Processes whose command line the pattern is found in, less this one and those that only started it."""
    wanted = re.compile(pattern)
    own = set(_ancestors(os.getpid()))
    found = []
    for pid in pids(proc):
        if pid not in own:
            command = _read(proc / str(pid) / "cmdline").replace("\0", " ").strip()
            if command and wanted.search(command):
                found.append(pid)
    return sorted(found)


def rank_of(pid: int) -> str:
    """`rank 3 (pid 4711)`, or `pid 4711` where the process has no rank or is another user's."""
    environ = f"\0{_read(Path(f'/proc/{pid}/environ'))}"
    rank = environ.partition("\0RANK=")[2].partition("\0")[0]
    return f"rank {rank} (pid {pid})" if rank.isdigit() else f"pid {pid}"


def _ancestors(pid: int) -> Iterator[int]:
    while pid > 0:
        yield pid
        found = stat(pid)
        pid = found.parent if found else 0


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""  # it has ended, or is another user's
