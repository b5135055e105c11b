"""A cgroup for the workers, where this host lets us have one. Part of guardian and nursery, and as lean.

With it, killing all that is below takes one write that no fork outruns (cgroup.kill, since Linux 5.14), and reaches
what was left by an agent that was killed with all that stood guard. Without it, `descendants.py` does by itself.

Sources: Documentation/admin-guide/cgroup-v2.rst of Linux 6.1 (delegation, cgroup.kill), and systemd's CGROUP_DELEGATION
(systemd 254): who may make cgroups below which.
"""

from __future__ import annotations

import os
import select
import time

PREFIX = "elastic-agent-"
SYSTEMD = "/run/systemd/system"
"""There where systemd runs this host, and owns the top of its cgroups."""


EMPTY_S = 1.0
"""What those who were killed may take to be gone, before their cgroup is left to a later agent to remove."""


class Cgroup:
    """A directory of ours in the cgroup v2 hierarchy. Locked (flock(2)) as long as guardian or nursery lives, so that
    who comes later can tell it from one that was left behind."""

    __slots__ = ("lock", "path", "procs")

    def __init__(self, path: str, lock: int, procs: int) -> None:
        self.path = path
        self.lock = lock
        self.procs = procs
        """A pid written to it is moved in; 0 is the writer."""

    def enter(self, pid: int = 0) -> None:
        """Move a process in, 0 being this one. Raises OSError."""
        os.write(self.procs, b"%d" % pid)

    def kill(self) -> None:
        """SIGKILL every process in it."""
        kill(self.path)

    def remove(self) -> None:
        """Do away with it, once nobody is in it. One that the kernel still holds busy is removed by a later agent."""
        remove(self.path)


def found(parent: str) -> Cgroup | None:
    """Make one below `parent`; None where that cannot be, or would be of no use."""
    path = f"{parent}/{PREFIX}{os.urandom(8).hex()}"
    try:
        os.mkdir(path, 0o755)
    except OSError:
        return None  # read-only, not ours, or too many: so it is on most hosts
    fds: list[int] = []
    try:
        fds.append(locked(path))
        fds.append(os.open(f"{path}/cgroup.procs", os.O_WRONLY))
        cgroup = Cgroup(path, fds[0], fds[1])
        if os.path.exists(f"{path}/cgroup.kill") and may_enter(cgroup):
            return cgroup
    except OSError:
        pass  # as above
    for fd in fds:
        os.close(fd)
    remove(path)
    return None


def may_enter(cgroup: Cgroup) -> bool:
    """Have a child try: the rules depend on the hierarchy above, and who is in cannot always come out again."""
    pid = os.fork()
    if pid == 0:
        try:
            cgroup.enter()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def delegated() -> str:
    """Directory of our own cgroup, if it is one that we may make others below; else an empty string.

    That is so for a directory given to this user, for one marked by systemd, and for the top of a hierarchy (as a
    container sees it) in which no systemd runs.
    """
    path = own()
    if not path:
        return ""
    try:
        if os.geteuid() != 0:
            return path if os.stat(path).st_uid == os.geteuid() else ""
        names = {"trusted.delegate", "user.delegate"}.intersection(os.listxattr(path))
        marks = {os.getxattr(path, name) for name in names}
        top = os.path.ismount(path) and not os.path.isdir(SYSTEMD)
    except OSError:
        return ""  # hidden from us
    return path if top or b"1" in marks else ""


def own() -> str:
    """Directory of this process's cgroup v2; empty where there is none to be seen."""
    try:
        with open("/proc/self/cgroup") as file:
            inside = [line.rstrip("\n")[3:] for line in file if line.startswith("0::")]
        with open("/proc/self/mountinfo") as file:
            mounts = [line.split(" ") for line in file]
    except OSError:
        return ""
    for words in mounts:
        # Fields of mountinfo (proc(5)): the fourth is what of the hierarchy is mounted, the fifth where.
        if inside and words[words.index("-") + 1] == "cgroup2" and inside[0].startswith(words[3].rstrip("/") + "/"):
            return (words[4] + inside[0][len(words[3].rstrip("/")) :]).rstrip("/")
    return ""


def clear(parent: str) -> None:
    """Kill and remove what agents left behind here that were killed with all that stood guard."""
    for name in os.listdir(parent):
        if name.startswith(PREFIX):
            path = f"{parent}/{name}"
            try:
                lock = locked(path)
            except OSError:
                continue  # in use, or gone meanwhile
            kill(path)
            remove(path)
            os.close(lock)


def locked(path: str) -> int:
    """A descriptor that holds the lock on this directory. Raises OSError if somebody else holds it."""
    import fcntl

    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd


def kill(path: str) -> None:
    try:
        fd = os.open(f"{path}/cgroup.kill", os.O_WRONLY)
    except OSError:
        return  # gone
    try:
        os.write(fd, b"1")
    finally:
        os.close(fd)


def remove(path: str) -> None:
    try:
        wait_empty(path)
        os.rmdir(path)
    except OSError:
        pass  # gone, or its last process is not quite; see `Cgroup.remove`


def wait_empty(path: str) -> None:
    """Until nobody lives in it any more, or for `EMPTY_S`: cgroup.events changes, and poll(2) tells. Raises OSError."""
    until = time.monotonic() + EMPTY_S
    fd = os.open(f"{path}/cgroup.events", os.O_RDONLY)
    try:
        poll = select.poll()
        poll.register(fd, select.POLLPRI)
        while b"populated 1" in os.pread(fd, 4096, 0) and (left_s := until - time.monotonic()) > 0:
            poll.poll(left_s * 1000)
    finally:
        os.close(fd)
