"""Which agents of the job have ended on this host, with all their processes: docs/adr/0050.

Each agent has a presence (`agent/nursery/presence.py`): a file in /dev/shm, locked as long as it or its nursery lives.
Whoever can open it shares the kernel, whatever hosts and containers are called: the memory of a file system in memory
is that of one kernel, and ends with it. One that is there and not locked belongs to an agent that has ended. Its
nursery is over then, which kills workers as long as it lives; so what runs below would run on however long one waits.
A process that still has the agent's mark in its environment is waited for all the same.
"""

from __future__ import annotations

import fcntl
import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from ...rendezvous.codec.digest import sha256
from ..nursery import presence
from ..private_folder import open_private
from .marked import marked

MEMORY = "/dev/shm"  # noqa: S108 - the directory made in it is this user's only
KEPT_S = 86400.0
"""A presence that nobody holds is removed this long after its agent was started, by another agent."""
LOOKED_AT = 8
"""Of how many presences an agent sees at its start whether they are old. It makes one itself: however many a host has,
old ones are at most an eighth of them for long."""
FILE_BYTES = 1 << 16
AGAIN, END = b"a", b"e"


class Process(NamedTuple):
    """A line of a presence."""

    pid: int
    started: int
    mark: bytes

    def lives(self) -> bool:
        return self.started > 0 and presence.started(self.pid) == self.started


class Neighbours:
    """This agent's presence, and a look at those of the others. `look` may be called from any thread."""

    def __init__(self, run_id: str, name: str) -> None:
        """`name`: of this node, for people."""
        self.presence = ""
        """Empty where this host offers no memory for it."""
        self.fd = -1
        self._job = sha256(run_id.encode("utf-8", "surrogateescape")).digest()[:8].hex()
        self._namespace = b""
        self._folder = -1
        self._found: dict[str, str] = {}
        """What has ended: names for people, by presence."""
        self._lock = threading.Lock()
        self._ears: tuple[int, int] | None = None
        """The pipe on which the thread waits, once there is one."""
        try:
            self._make(name)
        except OSError:
            self._release()  # a rule, not an error: nodes whose end nobody can see are waited for

    def _make(self, name: str) -> None:
        folder = f"{MEMORY}/elastic-agent.{os.geteuid()}"
        self._folder = open_private(folder)  # made by an earlier agent, perhaps
        if not in_memory(self._folder):
            raise OSError(f"{folder} is not in memory")
        self._namespace = os.fsencode(os.readlink("/proc/self/ns/pid"))
        self._remove_old()
        made = os.urandom(8).hex()
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self.fd = os.open(made, flags, 0o600, dir_fd=self._folder)
        fcntl.flock(self.fd, fcntl.LOCK_EX)  # another agent that removes old ones may hold it for a moment
        header = b"%s %s\n" % (self._namespace, name.encode("utf-8", "replace").replace(b"\n", b" "))
        os.write(self.fd, header + presence.line(os.getpid()))
        # Only now, so that who looks finds it locked and whole.
        os.rename(made, f"{self._job}-{made}", src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self.presence = made

    def _remove_old(self) -> None:
        names = os.listdir(self._folder)
        first = int.from_bytes(os.urandom(4), "little") % max(1, len(names))
        for name in (names[first:] + names[:first])[:LOOKED_AT]:
            fd = self._open(name)
            if fd >= 0:
                if is_free(fd) and time.time() - os.fstat(fd).st_mtime > KEPT_S:
                    os.unlink(name, dir_fd=self._folder)
                os.close(fd)

    def _open(self, name: str) -> int:
        """-1 if it is gone."""
        try:
            return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._folder)
        except OSError:
            return -1

    def look(self, found: Callable[[Mapping[str, str]], None]) -> None:
        """Find out which of them have ended. `found` is called for it on a thread of this class, again once there are
        more: all so far, with names for people, by presence."""
        with self._lock:
            if self._folder < 0:
                return
            if self._ears is not None:
                os.write(self._ears[1], AGAIN)
                return
            self._ears = os.pipe2(os.O_CLOEXEC)
            threading.Thread(
                target=self._run, args=(self._ears[0], found), name="elastic-agent-neighbours", daemon=True
            ).start()

    def close(self) -> None:
        """Remove this agent's presence; its nursery must have ended. Idempotent."""
        with self._lock:
            if self.presence:
                try:
                    os.unlink(f"{self._job}-{self.presence}", dir_fd=self._folder)
                except OSError:
                    pass  # somebody has cleared the memory
                self.presence = ""
            if self._ears is None:
                self._release()
            else:
                os.write(self._ears[1], END)

    def __del__(self) -> None:
        self.close()  # of an agent that never ran

    def _release(self) -> None:
        for fd in (self.fd, self._folder, *(self._ears or ())):
            if fd >= 0:
                os.close(fd)
        self.fd = self._folder = -1
        self._ears = None

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self, ear: int, found: Callable[[Mapping[str, str]], None]) -> None:
        known = 0
        while True:
            waiting = list(self._survey())
            if len(self._found) > known:
                known = len(self._found)
                found(dict(self._found))
            asked = wait_for(ear, waiting)
            for fd in waiting:
                os.close(fd)
            if END in asked:
                with self._lock:
                    self._release()
                return

    def _survey(self) -> Iterator[int]:
        """Add to `_found`, the newest last; yields a pidfd of each process whose end may add more."""
        of_job = (name for name in os.listdir(self._folder) if name.startswith(f"{self._job}-"))
        for name in sorted(of_job, key=self._written_at):
            token = name.partition("-")[2]
            if token in self._found or token == self.presence:
                continue
            fd = self._open(name)
            if fd >= 0:
                try:
                    yield from self._judge(fd, token)
                finally:
                    os.close(fd)

    def _written_at(self, name: str) -> int:
        """When this file was last written, in nanoseconds; 0 if it is gone."""
        try:
            return os.stat(name, dir_fd=self._folder, follow_symlinks=False).st_mtime_ns
        except OSError:
            return 0

    def _judge(self, fd: int, token: str) -> Iterator[int]:
        header, *lines = os.pread(fd, FILE_BYTES, 0).splitlines() or [b""]
        namespace, _, name = header.partition(b" ")
        if namespace != self._namespace or os.fstat(fd).st_uid != os.geteuid():
            return
        try:
            agent, *others = (Process(int(pid), int(since), mark) for pid, since, mark in map(bytes.split, lines))
        except ValueError:
            return  # not written by an agent
        if agent.lives():
            return  # looked at again when the coordinator says once more that it waits
        living = [process.pid for process in others if process.lives()]
        if not living and is_free(fd):
            living = marked({presence.MARK + b"=" + process.mark for process in others})
            if not living:
                self._found[token] = name.decode("utf-8", "replace")
        yield from filter(lambda pidfd: pidfd >= 0, map(pidfd_of, living))


def in_memory(fd: int) -> bool:
    """Whether this file is on a tmpfs: that of the kernel that this process runs on, and of no other."""
    with open(f"/proc/self/fdinfo/{fd}") as file:
        mount = next((line.split()[1] for line in file if line.startswith("mnt_id:")), "")
    with open("/proc/self/mountinfo") as file:
        return any(line.split(" ", 1)[0] == mount and line.rpartition(" - ")[2].split()[0] == "tmpfs" for line in file)


def is_free(fd: int) -> bool:
    """Whether no process holds this presence."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(fd, fcntl.LOCK_UN)
    return True


def pidfd_of(pid: int) -> int:
    """A descriptor that is readable once it has exited; -1 where the host offers none."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)  # readable: it has exited
    except (AttributeError, OSError):  # a Python built against old headers, or a kernel before 5.3
        return -1


def wait_for(ear: int, fds: list[int]) -> bytes:
    """Return when one of these, or the pipe, is readable: what was in the pipe."""
    poll = select.poll()
    for fd in (ear, *fds):
        poll.register(fd, select.POLLIN)
    ready = [fd for fd, _ in poll.poll()]
    return os.read(ear, 1 << 12) if ear in ready else b""
