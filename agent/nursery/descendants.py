"""Finding and signalling the processes below this one. Part of the nursery (`server.py`); imports as little as it does.

Sources: proc(5) for /proc/PID/stat and /proc/PID/task/TID/children, kill(2), pidfd_open(2), pidfd_send_signal(2).
"""

from __future__ import annotations

# The C module: `signal` wraps it in enums, which takes half as long again as all else that the nursery imports.
import _signal  # type: ignore[import-not-found]
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from ctypes import CDLL

    from .cgroups import Cgroup

# Called by number (the same on every architecture but alpha): Pythons built against old headers lack the wrappers.
NR_PIDFD_SEND_SIGNAL, NR_PIDFD_OPEN = 424, 434
PR_SET_PDEATHSIG = 1
"""From <linux/prctl.h>. The kernel drops it when the process executes a set-user-ID file; it is found below the nursery
all the same."""
SIGTERM, SIGKILL, SIGCONT = int(_signal.SIGTERM), int(_signal.SIGKILL), int(_signal.SIGCONT)
SIGSTOP = int(_signal.SIGSTOP)
STOPS = tuple(map(int, (_signal.SIGSTOP, _signal.SIGTSTP, _signal.SIGTTIN, _signal.SIGTTOU)))
WITHOUT_CONT = frozenset({SIGKILL, SIGCONT, *STOPS})
"""Signals that are sent without a SIGCONT after them: they act on a stopped process at once, or are what stops it."""
HARMLESS = frozenset(map(int, (_signal.SIGCONT, _signal.SIGURG, _signal.SIGWINCH)))
"""Signals whose default neither ends nor stops a process (signal(7))."""
COMMAND_BYTES = 200
"""Of a process's command that are reported."""
GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
"""Errors of /proc for a process that has exited meanwhile, or that the host hides from us (hidepid)."""


class Descendants:
    """All descendants of this process, which must be a subreaper and have one thread only."""

    def __init__(self, libc: CDLL, cgroup: Cgroup | None = None) -> None:
        self.pid = os.getpid()
        self.libc = libc
        self.cgroup = cgroup
        """The workers' cgroup, if they have one."""
        self.excluded: set[int] = set()
        """Direct children that are no workers (the zygote): they and all below them are left out everywhere."""
        # Without CONFIG_PROC_CHILDREN the kernel keeps no lists of children, and the whole of /proc is read instead.
        self._look: Callable[[], Callable[[int], list[int]]] = (
            (lambda: children_of)
            if os.path.exists(f"/proc/self/task/{self.pid}/children")
            else (lambda: children_by_parent().__getitem__)
        )

    def children(self) -> list[int]:
        """Direct children, zombies too. Complete: an entry leaves this list only when this process reaps it."""
        return [pid for pid in self._look()(self.pid) if pid not in self.excluded]

    def reap(self, kept: Collection[int]) -> bool:
        """Reap direct children that have exited, but these. Returns whether one that is not kept lives.

        One that exits between the look at the list and the reaping has left what is below it to us since, so the list
        counts only if none of it was reaped.
        """
        while others := [pid for pid in self.children() if pid not in kept]:
            if [pid for pid in others if os.waitpid(pid, os.WNOHANG)[0] == 0]:
                return True
        return False

    def below(self, root: int = 0) -> set[int]:
        """Every descendant, of this process or of `root`. One that is forked, or loses its parent, meanwhile may be
        missing."""
        look = self._look()
        found: set[int] = set()
        queue = [root or self.pid]
        while queue:
            # A process that moved up meanwhile is met a second time.
            fresh = set(look(queue.pop())) - found - self.excluded
            found |= fresh
            queue += fresh
        return found

    def pidfd(self, pid: int) -> int:
        """A descriptor that stays with this process, readable once it exited; -1: gone, or a kernel before 5.3."""
        return int(self.libc.syscall(NR_PIDFD_OPEN, pid, 0))

    def signal(self, groups: Collection[int], signum: int) -> set[int]:
        """Signal each of these groups, which our unreaped children lead, and every descendant outside them. Return all
        descendants that were found."""
        # The first search comes before the signals: what they orphan moves up to us, past a search that is under way.
        seen = self.below()
        for pgid in groups:
            signal_group(pgid, signum)
        self._signal_outside(seen - set(groups), seen, groups, signum)
        # The second finds what moved during the first. No third, or forking processes could keep us here for ever.
        late = self.below() - seen
        self._signal_outside(late - set(groups), seen | late, groups, signum)
        return seen | late

    def open_cgroup(self) -> int:
        """As `Cgroup.open`; -1 without one to fork into, or where the host refuses another descriptor."""
        try:
            return self.cgroup.open() if self.cgroup is not None and self.cgroup.forks else -1
        except OSError:
            return -1

    def enter_cgroup(self, pid: int = 0) -> None:
        """Move a process, about to become a worker, into the workers' cgroup; 0 is the calling one."""
        if self.cgroup is not None:
            try:
                self.cgroup.enter(pid)
            except OSError:
                pass  # the host took it away; `kill` searches for descendants all the same

    def kill(self, groups: Collection[int]) -> None:
        """SIGKILL every descendant, again until a search finds no new one: a process with a SIGKILL pending cannot
        fork.

        The cgroup is faster than any fork, but a process may have left it, so the search is made all the same.
        """
        if self.cgroup is not None:
            self.cgroup.kill()
        seen: set[int] = set()
        while not (found := self.signal(groups, SIGKILL)) <= seen:
            seen |= found

    def _signal_outside(self, pids: set[int], family: set[int], groups: Collection[int], signum: int) -> None:
        """Signal those that are in none of the groups. A pidfd holds each while it is checked to be (still) below."""
        for pid in pids:
            fd = self.pidfd(pid)
            ppid, pgid = parent_and_group(pid)
            if (ppid == self.pid or ppid in family) and pgid not in groups:
                for each in with_cont(signum):
                    if fd >= 0:
                        self.libc.syscall(NR_PIDFD_SEND_SIGNAL, fd, each, None, 0)
                    else:
                        send_signal(os.kill, pid, each)
            if fd >= 0:
                os.close(fd)


def die_with(parent: int, libc: CDLL, code: int = 0) -> None:
    """From now on this process is killed when its parent exits; it exits with `code` at once if that has happened."""
    libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(code)  # the parent exited before prctl took effect


def signal_group(pgid: int, signum: int) -> None:
    """Signal the group that our unreaped child `pgid` leads; only the child if it does not lead one yet."""
    for each in with_cont(signum):
        if not send_signal(os.killpg, pgid, each):
            send_signal(os.kill, pgid, each)


def with_cont(signum: int) -> tuple[int, ...]:
    """The signal, and SIGCONT after it so that a stopped process handles it."""
    return (signum,) if signum in WITHOUT_CONT else (signum, SIGCONT)


def send_signal(how: Callable[[int, int], None], target: int, signum: int) -> bool:
    """Call `how` (os.kill or os.killpg). False: there is no such process or group."""
    try:
        how(target, signum)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # all of it runs as another user (sudo) and cannot be signalled; the agent's deadline names what is left
    return True


def children_of(parent: int) -> list[int]:
    """Children of any of the parent's threads; none if it is gone."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{parent}/task"):
            found += map(int, read_file(f"/proc/{parent}/task/{task}/children").split())
    except GONE:
        pass  # its children have become ours
    return found


def children_by_parent() -> dict[int, list[int]]:
    """All visible processes, by parent; a key for each of them."""
    found: dict[int, list[int]] = {os.getpid(): []}
    for name in os.listdir("/proc"):
        if name.isdigit() and (ppid := parent_and_group(int(name))[0]):
            found.setdefault(ppid, []).append(int(name))
            found.setdefault(int(name), [])
    return found


def parent_and_group(pid: int) -> tuple[int, int]:
    """Parent and process group; (0, 0) if it is gone."""
    _, fields = stat_of(pid)
    return (int(fields[1]), int(fields[2])) if fields else (0, 0)


def stat_of(pid: int) -> tuple[bytes, list[bytes]]:
    """The name of its program, and the fields of its stat from the third on, its state; none if it is gone."""
    try:
        # The name, in parentheses, may hold anything, so fields are counted from its end.
        name, _, rest = read_file(f"/proc/{pid}/stat").partition(b"(")[2].rpartition(b")")
    except GONE:
        return b"", []
    return name, rest.split()


def commands(pids: Sequence[int]) -> list[tuple[int, str]]:
    """Pid and command of those that run: its arguments, else its name; on one line, and cut where it is long."""
    found = []
    for pid in pids:
        name, fields = stat_of(pid)
        try:
            words = read_file(f"/proc/{pid}/cmdline").replace(b"\0", b" ").split() or [name]
        except GONE:
            continue  # it has ended by itself
        if fields and fields[0] != b"Z":
            found.append((pid, b" ".join(words)[:COMMAND_BYTES].decode(errors="replace")))
    return found


def handles_signal(pid: int, signum: int) -> bool:
    """Whether the process handles or blocks this signal, or its default does nothing. False for a worker that has not
    installed its handler yet: one between fork and exec, or a script that still imports, which ignores it."""
    if signum in HARMLESS:
        return True
    try:
        lines = read_file(f"/proc/{pid}/status").splitlines()
    except GONE:
        return False
    masks = (int(line.split()[1], 16) for line in lines if line.startswith((b"SigBlk:", b"SigCgt:")))
    return any(mask >> (signum - 1) & 1 for mask in masks)


def read_file(path: str) -> bytes:
    """The file's content, read without the layers of `open`."""
    fd = os.open(path, os.O_RDONLY)
    try:
        text = b""
        while piece := os.read(fd, 1 << 16):
            text += piece
        return text
    finally:
        os.close(fd)
