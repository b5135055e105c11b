"""The processes below this one: finding them, signalling them. Part of the nursery (`server.py`), and as lean.

Sources: proc(5) for /proc/PID/stat and /proc/PID/task/TID/children, kill(2), pidfd_open(2), pidfd_send_signal(2).
"""

from __future__ import annotations

# The C module: `signal` wraps it in enums, which takes half as long again as all else that the nursery imports.
import _signal  # type: ignore[import-not-found]
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from ctypes import CDLL

    from .cgroups import Cgroup

# Asked for by number (the same on every architecture but alpha): Pythons built against old headers lack the wrappers.
NR_PIDFD_SEND_SIGNAL, NR_PIDFD_OPEN = 424, 434
SIGTERM, SIGKILL, SIGCONT = int(_signal.SIGTERM), int(_signal.SIGKILL), int(_signal.SIGCONT)
SIGSTOP = int(_signal.SIGSTOP)
STOPS = tuple(map(int, (_signal.SIGSTOP, _signal.SIGTSTP, _signal.SIGTTIN, _signal.SIGTTOU)))
UNFOLLOWED = frozenset({SIGKILL, SIGCONT, *STOPS})
"""Signals that no SIGCONT follows: a stopped process has them at once, or they are what stops it."""
HARMLESS = frozenset(map(int, (_signal.SIGCONT, _signal.SIGURG, _signal.SIGWINCH)))
"""Signals that end and stop nothing where nobody handles them (signal(7))."""
GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
"""What /proc answers for a process that went while we looked, or that the host hides from us (hidepid)."""


class Descendants:
    """All descendants of this process, which must be a subreaper and have one thread only."""

    def __init__(self, libc: CDLL, cgroup: Cgroup | None = None) -> None:
        self.pid = os.getpid()
        self.libc = libc
        self.cgroup = cgroup
        """What workers are in, if they can."""
        self.spared: set[int] = set()
        """Children of ours that are no worker's, as if they and what is below them were not there."""
        # A kernel without CONFIG_PROC_CHILDREN makes us read the whole of /proc instead.
        self._look: Callable[[], Callable[[int], list[int]]] = (
            (lambda: children_of)
            if os.path.exists(f"/proc/self/task/{self.pid}/children")
            else (lambda: family().__getitem__)
        )

    def children(self) -> list[int]:
        """Direct children, zombies too. Complete: entries leave this list only when we reap them."""
        return [pid for pid in self._look()(self.pid) if pid not in self.spared]

    def below(self, root: int = 0) -> set[int]:
        """Every descendant, ours or `root`'s. Those who are born, or whose parent dies, meanwhile may be missing."""
        look = self._look()
        found: set[int] = set()
        queue = [root or self.pid]
        while queue:
            # Who moved up meanwhile is met a second time.
            fresh = set(look(queue.pop())) - found - self.spared
            found |= fresh
            queue += fresh
        return found

    def pidfd(self, pid: int) -> int:
        """A descriptor that means this process for good, readable once it exited; -1: gone, or kernel before 5.3."""
        return int(self.libc.syscall(NR_PIDFD_OPEN, pid, 0))

    def strike(self, groups: Collection[int], signum: int) -> set[int]:
        """Signal each of these groups, which our unreaped children lead, and all who left them. Return all below."""
        # Looked for before anybody dies of this: orphans move up to us, past a look that has been here already.
        seen = self.below()
        for pgid in groups:
            strike_group(pgid, signum)
        self._strike_strays(seen - set(groups), seen, groups, signum)
        # And after: some may have moved during the first look. Not again and again, or forking would keep us here.
        late = self.below() - seen
        self._strike_strays(late - set(groups), seen | late, groups, signum)
        return seen | late

    def admit(self, pid: int = 0) -> None:
        """Move a process, about to become a worker, to where workers are; 0 is the calling one."""
        if self.cgroup is not None:
            try:
                self.cgroup.enter(pid)
            except OSError:
                pass  # the host took it away; it is only one of two ways to find whom to kill

    def kill(self, groups: Collection[int]) -> None:
        """SIGKILL everything below, again until a look finds nobody new: who has a SIGKILL pending cannot fork.

        The cgroup is faster than any fork, but nobody below is kept from leaving it, so we look all the same.
        """
        if self.cgroup is not None:
            self.cgroup.kill()
        seen: set[int] = set()
        while not (found := self.strike(groups, SIGKILL)) <= seen:
            seen |= found

    def _strike_strays(self, pids: set[int], family: set[int], groups: Collection[int], signum: int) -> None:
        """Signal those who are in none of the groups. A pidfd holds each while we see whether it is (still) ours."""
        for pid in pids:
            fd = self.pidfd(pid)
            ppid, pgid = lineage(pid)
            if (ppid == self.pid or ppid in family) and pgid not in groups:
                for each in with_cont(signum):
                    if fd >= 0:
                        self.libc.syscall(NR_PIDFD_SEND_SIGNAL, fd, each, None, 0)
                    else:
                        send(os.kill, pid, each)
            if fd >= 0:
                os.close(fd)


def strike_group(pgid: int, signum: int) -> None:
    """Signal the group that our unreaped child `pgid` leads; only the child if it has not come to lead it yet."""
    for each in with_cont(signum):
        if not send(os.killpg, pgid, each):
            send(os.kill, pgid, each)


def with_cont(signum: int) -> tuple[int, ...]:
    """The signal, and SIGCONT after it so that a stopped process sees it."""
    return (signum,) if signum in UNFOLLOWED else (signum, SIGCONT)


def send(how: Callable[[int, int], None], target: int, signum: int) -> bool:
    """False: there is no such process or group."""
    try:
        how(target, signum)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # all of it runs as another user (sudo): not ours to end, and the agent's deadline says who is left
    return True


def children_of(parent: int) -> list[int]:
    """Children of any of the parent's threads; none if it is gone."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{parent}/task"):
            found += map(int, slurp(f"/proc/{parent}/task/{task}/children").split())
    except GONE:
        pass  # its children have come to us
    return found


def family() -> dict[int, list[int]]:
    """All processes that we can see, by parent; a key for each of them."""
    found: dict[int, list[int]] = {os.getpid(): []}
    for name in os.listdir("/proc"):
        if name.isdigit() and (ppid := lineage(int(name))[0]):
            found.setdefault(ppid, []).append(int(name))
            found.setdefault(int(name), [])
    return found


def lineage(pid: int) -> tuple[int, int]:
    """Parent and process group, fields 4 and 5 of its stat; (0, 0) if it is gone."""
    try:
        # The name, in parentheses, may hold anything, so fields are counted from its end.
        fields = slurp(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except GONE:
        return 0, 0
    return int(fields[1]), int(fields[2])


def handles_signal(pid: int, signum: int) -> bool:
    """Whether the process handles, ignores or blocks this signal, or the kernel would do nothing for it. Not a worker
    that has not come to its own handler: it is between fork and exec, or a script that still imports."""
    if signum in HARMLESS:
        return True
    try:
        lines = slurp(f"/proc/{pid}/status").splitlines()
    except GONE:
        return False
    masks = (int(line.split()[1], 16) for line in lines if line.startswith((b"SigBlk:", b"SigIgn:", b"SigCgt:")))
    return any(mask >> (signum - 1) & 1 for mask in masks)


def slurp(path: str) -> bytes:
    """The file, without the layers of `open`."""
    fd = os.open(path, os.O_RDONLY)
    try:
        text = b""
        while piece := os.read(fd, 1 << 16):
            text += piece
        return text
    finally:
        os.close(fd)
