"""A cgroup for the workers, where this host allows one. Used by guardian and nursery; imports as little as they do.

With a cgroup, one write kills everything in it, and no fork outruns that (cgroup.kill, since Linux 5.14). The next
agent on this host can also kill what is left of an agent that was killed together with its guardian and nursery.
Without a cgroup, `descendants.py` finds the processes on its own.

To move a process into a cgroup takes the kernel 5 to 30 ms, a grace period of RCU in which nothing forks, but one that
is forked into it is there at no cost (CLONE_INTO_CGROUP, since Linux 5.7).

Sources: Documentation/admin-guide/cgroup-v2.rst of Linux 6.1 (delegation, cgroup.kill), clone(2) for clone3 and its
arguments, and systemd's CGROUP_DELEGATION (systemd 254): who may make cgroups below which.
"""

from __future__ import annotations

# The C module, for the reason given in `descendants.py`.
import _signal  # type: ignore[import-not-found]
import os
import select
import time

PREFIX = "elastic-agent-"
SYSTEMD = "/run/systemd/system"
"""Exists where systemd runs this host, and owns the top of its cgroups."""
# From <linux/sched.h>; called by number, since the C library has no wrapper for it.
NR_CLONE3 = 435
CLONE_INTO_CGROUP = 1 << 33
CLONE_ARGUMENTS = 11
"""Numbers of 64 bits in the structure that clone3 takes; the fifth is the signal at exit, the last the cgroup."""
CREATE_TRIES = 3
RELEASE_TRIES = 10
"""How often what is released is looked for again, as it may fork meanwhile."""
EMPTY_WAIT_S = 1.0
"""How long killed processes may take to leave their cgroup, before its removal is left to a later agent."""


class Cgroup:
    """A directory of ours in the cgroup v2 hierarchy. Locked (flock(2)) as long as guardian or nursery lives, so that
    a later agent can tell it from one that was left behind."""

    __slots__ = ("forks", "lock", "path", "procs")

    def __init__(self, path: str, lock: int, procs: int) -> None:
        self.path = path
        self.lock = lock
        self.procs = procs
        """A pid written to it is moved in; 0 is the writer."""
        self.forks = True
        """Whether processes can be forked into it. Linux 6.18 kills each that is forked into a cgroup which was ever
        killed as a whole, or from such a one: it compares the wrong counts (`cgroup_css_set_fork`, kill_seq)."""

    def enter(self, pid: int = 0) -> None:
        """Move a process in, 0 being this one. Raises OSError."""
        os.write(self.procs, b"%d" % pid)

    def fork(self) -> tuple[int, bool]:
        """As os.fork(), for a process with one thread. The second value: whether the child is in this cgroup already;
        otherwise the host cannot do that, and the child is to `enter`. Raises OSError."""
        if self.forks:
            try:
                return fork_into(self.lock), True
            except OSError:
                pass  # a kernel before 5.7, or a container that forbids it
        return os.fork(), False

    def open(self) -> int:
        """A descriptor of its directory, for `fork_into` in another process; not one that holds the lock. Raises
        OSError."""
        return os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)

    def kill(self) -> None:
        """SIGKILL every process in it."""
        self.forks = False
        kill(self.path)

    def release(self) -> None:
        """Move what is in it to the cgroup above, where no later agent takes it for what a killed one has left."""
        try:
            for _ in range(RELEASE_TRIES):
                pids = read_pids(f"{self.path}/cgroup.procs")
                if not pids:
                    return
                for pid in pids:
                    move(pid, f"{os.path.dirname(self.path)}/cgroup.procs")
        except OSError:
            pass  # the host forbids it: they stay, and a later agent kills them

    def remove(self) -> None:
        """Remove it once it is empty. One that the kernel still holds busy is removed by a later agent."""
        remove(self.path)


def read_pids(path: str) -> list[bytes]:
    """The processes that a file of this kind lists. Raises OSError."""
    with open(path, "rb") as file:
        return file.read().split()


def move(pid: bytes, target: str) -> None:
    """Move a process to the cgroup of this file. Raises OSError, but not for a process that is gone."""
    fd = os.open(target, os.O_WRONLY)
    try:
        os.write(fd, pid)
    except ProcessLookupError:
        pass  # it has ended by itself
    finally:
        os.close(fd)


def create(parent: str) -> Cgroup | None:
    """Create a cgroup below `parent`; None where the host refuses that, or where it cannot be killed as a whole."""
    for _ in range(CREATE_TRIES):
        path = f"{parent}/{PREFIX}{os.urandom(8).hex()}"
        try:
            os.mkdir(path, 0o755)
        except OSError:
            return None  # read-only, another user's, or too many of them: the usual case
        fds: list[int] = []
        try:
            fds.append(lock(path))
            fds.append(os.open(f"{path}/cgroup.procs", os.O_WRONLY))
            cgroup = Cgroup(path, fds[0], fds[1])
            if os.path.exists(f"{path}/cgroup.kill") and may_enter(cgroup):
                return cgroup
            refused = True
        except OSError:
            refused = False  # another agent that removes leftovers locked it first, or it may not be opened
        for fd in fds:
            os.close(fd)
        remove(path)
        if refused:
            break
    return None


def fork_into(directory: int) -> int:
    """As os.fork(), into the cgroup of this open directory, for a process with one thread and no handlers of
    pthread_atfork(3) that the child needs. Raises OSError where kernel or container refuses."""
    from ctypes import PyDLL, byref, c_uint64, get_errno, pythonapi, sizeof

    libc = PyDLL(None, use_errno=True)  # keeps the interpreter's lock, which the child must come back with
    arguments = (c_uint64 * CLONE_ARGUMENTS)()
    arguments[0], arguments[4], arguments[10] = CLONE_INTO_CGROUP, int(_signal.SIGCHLD), directory
    pythonapi.PyOS_BeforeFork()
    pid = int(libc.syscall(NR_CLONE3, byref(arguments), sizeof(arguments)))
    if pid == 0:
        pythonapi.PyOS_AfterFork_Child()
        return 0
    pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(get_errno(), os.strerror(get_errno()))
    return pid


def may_enter(cgroup: Cgroup) -> bool:
    """Try it with a child: the rules depend on the hierarchy above, and a process cannot always come out again."""
    for cgroup.forks in (True, False):
        pid, inside = cgroup.fork()
        if pid == 0:
            try:
                if not inside:
                    cgroup.enter()
                os._exit(0)
            finally:
                os._exit(1)
        if os.waitpid(pid, 0)[1] == 0:
            return True
    return False


def delegated() -> str:
    """The directory of this process's cgroup if other cgroups may be created below it; else an empty string.

    That is so for a directory given to this user, for one marked by systemd, and for the top of a hierarchy (as a
    container sees it) in which no systemd runs.
    """
    path = own_cgroup()
    if not path:
        return ""
    try:
        if os.geteuid() != 0:
            return path if os.stat(path).st_uid == os.geteuid() else ""
        names = {"trusted.delegate", "user.delegate"}.intersection(os.listxattr(path))
        marks = {os.getxattr(path, name) for name in names}
        top = os.path.ismount(path) and not os.path.isdir(SYSTEMD)
    except OSError:
        return ""  # hidden from this process
    return path if top or b"1" in marks else ""


def own_cgroup() -> str:
    """The directory of this process's cgroup v2; empty where none is visible."""
    try:
        with open("/proc/self/cgroup") as file:
            inside = [line.rstrip("\n")[3:] for line in file if line.startswith("0::")]
        with open("/proc/self/mountinfo") as file:
            mounts = [line.split(" ") for line in file]
    except OSError:
        return ""
    for fields in mounts:
        # Fields of mountinfo (proc(5)): the fourth is the part of the hierarchy that is mounted, the fifth is where.
        if inside and fields[fields.index("-") + 1] == "cgroup2" and inside[0].startswith(fields[3].rstrip("/") + "/"):
            return (fields[4] + inside[0][len(fields[3].rstrip("/")) :]).rstrip("/")
    return ""


def clear_leftovers(parent: str) -> None:
    """Kill what is in, and remove, the cgroups below `parent` that no guardian or nursery locks any more."""
    for name in os.listdir(parent):
        if name.startswith(PREFIX):
            path = f"{parent}/{name}"
            try:
                fd = lock(path)
            except OSError:
                continue  # in use, or removed meanwhile
            kill(path)
            remove(path)
            os.close(fd)


def lock(path: str) -> int:
    """Lock this directory; return the descriptor that holds the lock. Raises OSError if another process holds it."""
    import fcntl

    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd


def kill(path: str) -> None:
    """SIGKILL every process in this cgroup. Does nothing if the cgroup is gone."""
    try:
        fd = os.open(f"{path}/cgroup.kill", os.O_WRONLY)
    except OSError:
        return
    try:
        os.write(fd, b"1")
    finally:
        os.close(fd)


def remove(path: str) -> None:
    """Remove this cgroup once it is empty; leave it if it is not within `EMPTY_WAIT_S`."""
    try:
        wait_empty(path)
        os.rmdir(path)
    except OSError:
        pass  # gone already, or its last process is not; see `Cgroup.remove`


def wait_empty(path: str) -> None:
    """Return when no process is in it, or after `EMPTY_WAIT_S`. poll(2) reports each change of cgroup.events. Raises
    OSError."""
    until = time.monotonic() + EMPTY_WAIT_S
    fd = os.open(f"{path}/cgroup.events", os.O_RDONLY)
    try:
        poll = select.poll()
        poll.register(fd, select.POLLPRI)
        while b"populated 1" in os.pread(fd, 4096, 0) and (left_s := until - time.monotonic()) > 0:
            poll.poll(left_s * 1000)
    finally:
        os.close(fd)
