"""What the kernel reports of processes, and the clean-up of all processes that a benchmark starts.

All of them stay inside the process tree of the harness, because the harness is a child subreaper. So the clean-up kills
and reaps its own descendants, and never needs a process name.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from types import FrameType

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> None:
    """Set one attribute of this process. Raises OSError."""
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")


# -- looking -----------------------------------------------------------------------------------------------------------
def _read(path: str) -> bytes:
    """The file's bytes; empty when the process has exited or the file is not readable."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""


def _parents() -> dict[int, tuple[int, str]]:
    """(parent, state letter) of every process of the host."""
    table = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (raw := _read(f"/proc/{name}/stat")):
            state, parent = raw[raw.rindex(b")") + 2 :].split()[:2]
            table[int(name)] = (int(parent), state.decode())
    return table


def descendants(root: int, *, zombies: bool = False) -> list[int]:
    """Children of `root`, their children and so on; zombies only if asked for."""
    table = _parents()
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in table.items():
        children.setdefault(parent, []).append(pid)
    todo, found = [root], []
    while todo:
        for child in children.get(todo.pop(), ()):
            todo.append(child)
            if zombies or table[child][1] not in "ZX":
                found.append(child)
    return found


def memory_mib(pids: Iterable[int], key: str) -> float:
    """Sum of "Rss" or "Pss" (shared pages divided among their users) over these processes, in MiB."""
    total_kib = 0
    for pid in pids:
        for line in _read(f"/proc/{pid}/smaps_rollup").decode().splitlines():
            name, _, value = line.partition(":")
            if name == key:
                total_kib += int(value.split()[0])
    return total_kib / 1024


def called(pids: Iterable[int], name: str) -> list[int]:
    """Those of these processes that have this name (proc(5), /proc/PID/comm)."""
    return [pid for pid in pids if _read(f"/proc/{pid}/comm").decode().strip() == name]


def peak_mib(pid: int) -> float:
    """The largest resident set that this process ever had, in MiB."""
    for line in _read(f"/proc/{pid}/status").decode().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def descriptors(pids: Iterable[int]) -> int:
    """How many descriptors these processes have open together."""
    return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)


def cpu_s(pids: Iterable[int]) -> float:
    """CPU seconds used so far by these processes, without their children; the kernel's per-process CPU clock."""
    return sum(time.clock_gettime((-pid - 1) * 8 + 2) for pid in pids)


def host_cpu_s() -> float:
    """CPU seconds used on this host since boot, without idle, I/O wait and steal."""
    user, nice, system, _, _, irq, softirq = (int(x) for x in _read("/proc/stat").split(b"\n", 1)[0].split()[1:8])
    return (user + nice + system + irq + softirq) / _TICKS_PER_S


def own_cpu_s() -> float:
    """CPU seconds of the harness and of all its descendants that have been reaped."""
    usages = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def free_port() -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listening_inodes(port: int) -> set[str]:
    """Socket inodes that listen on this TCP port, on any address; empty when none does."""
    inodes = set()
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in _read(path).decode().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                inodes.add(fields[9])
    return inodes


def holds_socket(pid: int, inodes: set[str]) -> bool:
    """Whether this process has one of these sockets open."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for name in names:
        with contextlib.suppress(OSError):  # closed in the meantime
            link = os.readlink(f"/proc/{pid}/fd/{name}")
            if link.startswith("socket:[") and link[8:-1] in inodes:
                return True
    return False


# -- owning ------------------------------------------------------------------------------------------------------------
def kill(pids: Iterable[int]) -> int:
    """SIGKILL each of these; returns how many had not exited."""
    killed = 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it has exited already
            os.kill(pid, signal.SIGKILL)
            killed += 1
    return killed


def _wait_gone(pids: Iterable[int], end: float) -> None:
    """Block until each of these has exited (zombies count), or until monotonic time `end`."""
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            poll.poll(max(0.0, end - time.monotonic()) * 1000)
        finally:
            os.close(fd)


def end_descendants(limit_s: float = 20.0) -> int:
    """SIGKILL and reap every descendant; returns how many were killed. Raises RuntimeError after `limit_s`."""
    me, killed, end = os.getpid(), 0, time.monotonic() + limit_s
    while left := descendants(me, zombies=True):
        live = descendants(me)
        killed += kill(live)
        _wait_gone(live, end)
        with contextlib.suppress(ChildProcessError):  # no child left: nothing to reap
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        if time.monotonic() > end:
            raise RuntimeError(f"processes {left} have not exited {limit_s} s after SIGKILL; end them by hand")
    return killed


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _ignore(signum: int, frame: FrameType | None) -> None:
    return


def _work_and_clean(work: Callable[[], int], guardian: int) -> int:
    """Run `work` in a subreaper that leaves no descendant behind, however it ends."""
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != guardian:  # it exited before PDEATHSIG was set
        return 1
    # Launchers inherit ignored signals (nohup, background shells), so these get handlers, which exec resets.
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, _interrupt)
    for signum in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(signum, _ignore)
    try:
        return work()
    except KeyboardInterrupt:
        return 130
    finally:
        end_descendants()


def guarded(work: Callable[[], int]) -> int:
    """Run `work` in a child; however that exits, its whole process tree is killed. Returns its exit status."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    guardian = os.getpid()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = _work_and_clean(work, guardian)
        except Exception:  # noqa: BLE001  the last frame of a forked process: no caller would report it
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def pass_on(signum: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has just exited
            os.kill(child, signal.SIGTERM)

    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, pass_on)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    end_descendants()
    return status
