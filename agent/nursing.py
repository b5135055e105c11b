"""What the agent does to processes with its own hands: start the nursery, and clean up behind a dead one."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

BOOT = "import sys; sys.path.append(sys.argv[1]); from agent.nursery import main; main()"
"""-I and -S hide where our package lies, so the nursery is told; importing all of `elastic_agent` would be slower."""
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def spawn_nursery(fd: int) -> int:
    """Start a nursery that serves the socket `fd`; return its pid. Raises OSError.

    posix_spawn(3): no code of ours runs between fork and exec, so other threads, torch's among them, do not matter.
    """
    if not sys.executable:
        raise OSError("cannot start the nursery: sys.executable is empty; set it to a Python interpreter")
    target = 3 if fd != 3 else 4  # dup2 of a descriptor to itself would leave it close-on-exec
    argv = [sys.executable, "-I", "-S", "-c", BOOT, ROOT, str(target), str(os.getpid())]
    actions = [(os.POSIX_SPAWN_DUP2, fd, target)]
    # From its first instruction on, signals to the agent's process group or from its terminal do not reach it.
    mask = signal.valid_signals() - {signal.SIGCHLD}
    try:
        return os.posix_spawn(argv[0], argv, os.environ, file_actions=actions, setsigmask=mask, setsid=True)
    except NotImplementedError:  # a C library without POSIX_SPAWN_SETSID: the nursery does it itself, a little later
        return os.posix_spawn(argv[0], argv, os.environ, file_actions=actions, setsigmask=mask)


def bury(pid: int) -> tuple[bool, str]:
    """Kill the nursery if it is not dead, reap it. Return whether it ended in order, and how it ended in words."""
    slay(os.kill, pid)
    try:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return False, f"the nursery (pid {pid}) is gone; somebody else in this process waited for it"
    if code < 0:
        return False, f"the nursery (pid {pid}) was killed by signal {-code} ({signal.strsignal(-code)})"
    return code == 0, f"the nursery (pid {pid}) exited with code {code}"


def slay(how: Callable[[int, int], None], target: int) -> None:
    """SIGKILL a process (os.kill) or group (os.killpg), which may be gone."""
    try:
        how(target, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # gone, or run by another user and not ours to end


def slay_marked(mark: bytes) -> None:
    """SIGKILL every process with this NAME=VALUE in its environment, until a look finds nobody new.

    Costs a look at each process of this host (some 20 us each). One that has cleared its environment is not found.
    """
    seen: set[int] = set()
    while found := {pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if marked(pid, mark)} - seen:
        for pid in found:
            slay(os.kill, pid)
        seen |= found


def marked(pid: int, mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    except OSError:
        return False  # gone, or another user's
