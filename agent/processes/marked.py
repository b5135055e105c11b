"""Processes with a mark in their environment: those that a nursery has started, whatever their parents are by now.

A mark is NAME=VALUE. The environments of this host's processes are read for it, some 20 us each; a process that has
cleared its own is not found. Loaded when something is left to look for.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection

from ..nursery.descendants import read_file

EXEC_TRIES = 100


def signal_if_marked(pid: int, mark: bytes, signum: int) -> bool:
    """Send a process a signal if it has this mark; returns whether it was sent.

    A pidfd (pidfd_open(2)) holds the process during the check, so that no other one that got its number is meant.
    """
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    except (AttributeError, OSError):  # a Python built against old headers, or a kernel before 5.3
        fd = -1
    try:
        if mark not in (environment_of(pid) or ()):
            return False
        signal.pidfd_send_signal(fd, signum) if fd >= 0 else os.kill(pid, signum)
    except (ProcessLookupError, PermissionError):
        return False  # gone, or another user's
    finally:
        if fd >= 0:
            os.close(fd)
    return True


def kill_marked(mark: bytes) -> None:
    """SIGKILL every process with this mark, until a search finds no new one."""
    seen: set[int] = set()
    while found := {pid for pid in pids() if mark in (environment_of(pid) or ())} - seen:
        for pid in found:
            signal_if_marked(pid, mark, signal.SIGKILL)
        seen |= found


def marked(marks: Collection[bytes]) -> list[int]:
    """Processes that have one of these marks, or may have."""
    found = ((pid, environment_of(pid)) for pid in (pids() if marks else ()))
    return [pid for pid, environment in found if environment is None or not environment.isdisjoint(marks)]


def pids() -> list[int]:
    """All processes that this one sees."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def environment_of(pid: int) -> frozenset[bytes] | None:
    """Each NAME=VALUE of a process; none where that cannot be read: it is gone, a thread of the kernel, or another
    user's. None: it is amid exec, where it has neither arguments nor environment, and what was opened before stays
    empty."""
    arguments = b""
    try:
        for _ in range(EXEC_TRIES):
            if environment := read_file(f"/proc/{pid}/environ"):
                return frozenset(environment.split(b"\0"))
            if arguments:
                return frozenset()  # it was started without any
            os.readlink(f"/proc/{pid}/exe")
            os.sched_yield()
            arguments = read_file(f"/proc/{pid}/cmdline")
    except OSError:
        return frozenset()
    return None
