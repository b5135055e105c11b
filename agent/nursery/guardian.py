"""The guardian: the parent of the nursery, and what clears up if the nursery is killed.

    python -I -S -c BOOT ROOT FD AGENT_PID GRACE_S DESCRIPTORS OWN_DIRECTORIES...

BOOT (in `agent/processes/nursery_process.py`) calls `main` here, which forks: the child is the nursery (`server.py`),
the parent stays and watches. Both are `PR_SET_CHILD_SUBREAPER` (prctl(2)): a process that loses its parent becomes a
child of the nearest such ancestor that lives. So if any one or two of agent, guardian and nursery are killed, one that
is left has all the rest below it. The exception is that guardian and nursery are killed in one instant: then workers
exit by PR_SET_PDEATHSIG, and the agent kills what they leave (`agent/processes/nursery_process.py`).

It takes no orders and keeps no list of workers. It keeps the nursery's end of the socket to the agent open, so the
agent sees the end of it only when nothing is left, and its exit code says how the nursery ended.
"""

from __future__ import annotations

# The C module, for the reason given in `descendants.py`.
import _signal  # type: ignore[import-not-found]
import os
import select
import sys
import time

from . import cgroups
from .descendants import Descendants
from .server import KEPT, LAST_KILL_S, serve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctypes import CDLL

# From <linux/prctl.h>.
PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36
SLACK_S = 0.5
"""How long a nursery may take to end by itself, beyond the workers' grace, once the agent is gone or has closed. Longer
than it needs, and short enough for what is below to be gone within a second even if the nursery hangs."""
SIGNALLED = 128
"""As in `agent/processes/nursery_process.py`."""


class Guardian:
    """Waits until the nursery has ended, or should have, and then kills everything below it."""

    def __init__(self, fd: int, agent: int, nursery: int, descendants: Descendants, grace_s: float) -> None:
        self.fd = fd
        self.agent = agent
        """Its pidfd; -1 if there is none."""
        self.nursery = nursery
        self.descendants = descendants
        self.grace_s = grace_s

    def run(self) -> int:
        """Return the exit code when nothing is left, or after `LAST_KILL_S`."""
        self.wait()
        code = 0 if self.keeps() else self.clear()
        if self.descendants.cgroup is not None:
            self.descendants.cgroup.remove()
        return code

    def wait(self) -> None:
        """Return when the nursery has ended, or should have. Without pidfds in the kernel, only when it has ended."""
        nursery = self.descendants.pidfd(self.nursery)
        if nursery < 0:
            os.waitid(os.P_PID, self.nursery, os.WEXITED | os.WNOWAIT)
            return
        poll = select.poll()
        for fd, what in ((nursery, select.POLLIN), (self.agent, select.POLLIN), (self.fd, select.POLLRDHUP)):
            if fd >= 0:
                poll.register(fd, what)
        happened = dict(poll.poll())
        if nursery in happened:
            return
        # Only an agent that closed in order has given the grace already.
        closed = self.agent not in happened and not happened[self.fd] & select.POLLHUP
        late = select.poll()
        late.register(nursery, select.POLLIN)
        late.poll((SLACK_S + (0.0 if closed else self.grace_s)) * 1000)

    def keeps(self) -> bool:
        """Whether the nursery has ended and left running what the workers left behind, as the agent ordered."""
        ended = os.waitid(os.P_PID, self.nursery, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return ended is not None and (ended.si_code, ended.si_status) == (os.CLD_EXITED, KEPT)

    def clear(self) -> int:
        """Kill and reap everything below, the nursery too; return the exit code. SIGCHLD, which is blocked, ends each
        wait between two looks."""
        code = 0
        until = time.monotonic() + LAST_KILL_S
        while True:
            while (ended := reap())[0] > 0:
                if ended[0] == self.nursery:
                    code = os.waitstatus_to_exitcode(ended[1])
            left_s = until - time.monotonic()
            if ended[0] < 0 or left_s <= 0:
                return code if code >= 0 else SIGNALLED - code
            self.descendants.kill(())
            _signal.sigtimedwait({_signal.SIGCHLD}, left_s)


def reap() -> tuple[int, int]:
    """Pid and status of any child that has exited; pid 0: all are running; -1: there is none."""
    try:
        return os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return -1, 0


def main() -> int:
    """Run guardian and nursery, in two processes. Return the exit code."""
    try:
        return guard_or_serve()
    except OSError as error:
        why = f"elastic-agent: this node cannot run the nursery, the parent of its workers: {error}; see ulimit -a\n"
        os.write(2, why.encode())
        return os.EX_OSERR


def guard_or_serve() -> int:
    """Set up what both processes need, fork, then watch in the parent and serve in the child. Return the exit code."""
    from ctypes import CDLL

    fd, agent, grace_s, descriptors = int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5])
    # Ctrl-C and its like reach whole process groups and are for the agent to handle. They were blocked by the spawn;
    # this makes sure. They are not ignored, because workers inherit what is ignored.
    _signal.pthread_sigmask(_signal.SIG_SETMASK, _signal.valid_signals())
    if os.getsid(0) != os.getpid():
        os.setsid()
    close_all_but(fd)
    libc = CDLL(None, use_errno=True)
    become_subreaper(libc, b"elastic-guard")
    descendants = Descendants(libc, workers_cgroup())
    watched = descendants.pidfd(agent)
    # Checked after the pidfd was opened: if the agent is still our parent now, the pidfd is the agent's.
    if os.getppid() != agent:
        if descendants.cgroup is not None:
            descendants.cgroup.remove()
        remove_directories(sys.argv[6:])
        return 0
    guardian = os.getpid()
    if (nursery := os.fork()) != 0:
        code = Guardian(fd, watched, nursery, descendants, grace_s).run()
        if os.getppid() != agent or hung_up(fd):
            remove_directories(sys.argv[6:])  # the agent was killed, or it would have done it itself
        return code
    os.setsid()
    become_subreaper(libc, b"elastic-nursery")
    return serve(fd, watched, guardian, Descendants(libc, descendants.cgroup), grace_s, descriptors)


def hung_up(fd: int) -> bool:
    """Whether the agent's end of this socket is closed. One that is killed closes it shortly before it stops being the
    parent of its children (do_exit in Linux' kernel/exit.c); one that ends in order keeps it until we have exited."""
    poll = select.poll()
    poll.register(fd, 0)
    return any(mask & select.POLLHUP for _, mask in poll.poll(0))


def remove_directories(paths: list[str]) -> None:
    """Remove directories that hold files only, those of them that are there."""
    for path in paths:
        try:
            for name in os.listdir(path):
                os.unlink(os.path.join(path, name))
            os.rmdir(path)
        except OSError as error:
            if os.path.isdir(path):
                os.write(2, f"elastic-agent: cannot remove {path}: {error.strerror}; delete it by hand\n".encode())


def workers_cgroup() -> cgroups.Cgroup | None:
    """A new cgroup for the workers; None where this host does not allow one, which is no error."""
    parent = cgroups.delegated()
    if not parent:
        return None
    cgroups.clear_leftovers(parent)
    return cgroups.create(parent)


def become_subreaper(libc: CDLL, name: bytes) -> None:
    """Name this process, and make it the new parent of descendants that lose theirs. Raises OSError."""
    libc.prctl(PR_SET_NAME, name, 0, 0, 0)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError("prctl(PR_SET_CHILD_SUBREAPER) failed; workers need Linux 3.4 or later")


def close_all_but(fd: int) -> None:
    """Close every descriptor but 0, 1, 2 and `fd`."""
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number != fd:
            try:
                os.close(number)
            except OSError:
                pass  # the one that listed them
    os.set_inheritable(fd, False)
    # If one of the first three were closed, a received descriptor would take its number.
    while (low := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(low)
