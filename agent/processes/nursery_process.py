"""What the agent does to processes with its own hands: start guardian and nursery, and clean up behind dead ones."""

from __future__ import annotations

import os
import signal
import sys

BOOT = "import os, sys; sys.path.append(sys.argv[1]); from agent.nursery.guardian import main; os._exit(main())"
"""-I and -S hide where our package lies, so it is told; importing all of `elastic_agent` would be slower."""
SIGNALLED = 128
"""Exit codes of the guardian from here on say that a signal ended the nursery, as a shell's do."""
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def spawn_nursery(fd: int, grace_s: float, mark: str) -> int:
    """Start a guardian, which starts a nursery that serves the socket `fd`; return the guardian's pid. Raises OSError.

    `grace_s`: what workers get between SIGTERM and SIGKILL when the agent is gone. `mark`: NAME=VALUE for their
    environment. posix_spawn(3): no code of ours runs between fork and exec, so other threads, torch's among them, do
    not matter.
    """
    if not sys.executable:
        raise OSError("cannot start the nursery: sys.executable is empty; set it to a Python interpreter")
    target = 3 if fd != 3 else 4  # dup2 of a descriptor to itself would leave it close-on-exec
    argv = [sys.executable, "-I", "-S", "-c", BOOT, ROOT, str(target), str(os.getpid()), repr(grace_s)]
    name, _, value = mark.partition("=")
    env = {**os.environ, name: value}
    actions = [(os.POSIX_SPAWN_DUP2, fd, target)]
    # From its first instruction on, signals to the agent's process group or from its terminal do not reach it.
    mask = signal.valid_signals()
    try:
        return os.posix_spawn(argv[0], argv, env, file_actions=actions, setsigmask=mask, setsid=True)
    except NotImplementedError:  # a C library without POSIX_SPAWN_SETSID: the guardian does it itself, a little later
        return os.posix_spawn(argv[0], argv, env, file_actions=actions, setsigmask=mask)


def bury(guardian: int, nursery: int) -> tuple[bool, str]:
    """Kill the guardian if it is not dead, reap it. Return whether it could leave nobody, and in words how the two
    ended. `nursery` is 0 if its pid is not known."""
    name = f"the nursery (pid {nursery})" if nursery else "the nursery"
    try:
        os.waitid(os.P_PID, guardian, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # is the number still our child's?
        os.kill(guardian, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(guardian, 0)[1])
    except ChildProcessError:
        return False, f"the guardian of {name} is gone; somebody else in this process waited for it"
    if code < 0:
        died = f"was killed by signal {-code} ({signal.strsignal(-code)})"
        return False, f"the guardian (pid {guardian}) of {name} {died}"
    if code > SIGNALLED:
        return True, f"{name} was killed by signal {code - SIGNALLED} ({signal.strsignal(code - SIGNALLED)})"
    return True, f"{name} exited with code {code}"


def clear_behind(mark: str, cgroup: str) -> None:
    """SIGKILL what guardian and nursery left: all that is in the cgroup, and all that has this NAME=VALUE in its
    environment."""
    if not cgroup:
        slay_marked(mark.encode())
        return
    from ..nursery import cgroups

    cgroups.kill(cgroup)
    slay_marked(mark.encode())
    cgroups.remove(cgroup)


def slay(pid: int, mark: bytes) -> None:
    """SIGKILL a process if it has this NAME=VALUE in its environment.

    A pidfd (pidfd_open(2)) holds the process while we look, so that no other one that got its number is hit.
    """
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # a Python built against old headers, or a kernel before 5.3
        fd = -1
    try:
        if marked(pid, mark):
            signal.pidfd_send_signal(fd, signal.SIGKILL) if fd >= 0 else os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # gone, or run by another user and not ours to end
    finally:
        if fd >= 0:
            os.close(fd)


def slay_marked(mark: bytes) -> None:
    """SIGKILL every process with this NAME=VALUE in its environment, until a look finds nobody new.

    Costs a look at each process of this host (some 20 us each). One that has cleared its environment is not found.
    """
    seen: set[int] = set()
    while found := {pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if marked(pid, mark)} - seen:
        for pid in found:
            slay(pid, mark)
        seen |= found


def marked(pid: int, mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    except OSError:
        return False  # gone, or another user's
