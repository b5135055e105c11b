"""The guardian: the parent of the nursery, and what clears up if the nursery is killed.

    python -I -S -c BOOT ROOT FD AGENT_PID GRACE_S

BOOT (in `agent/processes/nursery_process.py`) calls `main` here, which forks: the child is the nursery (`server.py`),
the parent stays and watches. Both are `PR_SET_CHILD_SUBREAPER` (prctl(2)): what loses its parent goes to the nearest
such ancestor that lives. So whichever of agent, guardian and nursery is killed, or any two of them, somebody who has
all the rest below him is left, unless both of these two are killed in one instant; then workers die of
PR_SET_PDEATHSIG, and the agent clears up behind them (`agent/processes/nursery_process.py`).

It obeys no orders and knows no workers. It keeps the nursery's end of the socket to the agent open, so the agent sees
the end of it only when nothing is left, and it ends with the code that tells how the nursery ended.
"""

from __future__ import annotations

# The C module, for what `descendants.py` says of it.
import _signal  # type: ignore[import-not-found]
import os
import select
import sys
import time

from . import cgroups
from .descendants import Descendants
from .server import LAST_KILL_S, serve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctypes import CDLL

# From <linux/prctl.h>.
PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36
SLACK_S = 0.5
"""What a nursery gets to end by itself, beyond the workers' grace, once the agent is gone or has closed. Longer than it
needs, and short enough for what is below to be gone within a second even if the nursery hangs."""
SIGNALLED = 128
"""As in `agent/processes/nursery_process.py`."""


class Guardian:
    """Waits for the nursery to end, or for it to be late, and then leaves nobody."""

    def __init__(self, fd: int, agent: int, nursery: int, descendants: Descendants, grace_s: float) -> None:
        self.fd = fd
        self.agent = agent
        """Its pidfd; -1 if there is none."""
        self.nursery = nursery
        self.descendants = descendants
        self.grace_s = grace_s

    def run(self) -> int:
        """Return when nothing is left, or after `LAST_KILL_S`: the exit code."""
        self.wait()
        code = self.clear()
        if self.descendants.cgroup is not None:
            self.descendants.cgroup.remove()
        return code

    def wait(self) -> None:
        """Until the nursery has ended, or is late in ending. A kernel without pidfds cannot tell of a late one."""
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

    def clear(self) -> int:
        """Kill and reap all that is below, the nursery too. SIGCHLD, which is blocked, tells when to look again."""
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
    """Pid and status of a child that has ended, any; pid 0: all live; -1: there is none."""
    try:
        return os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return -1, 0


def main() -> int:
    """Guardian and nursery, in two processes. Return the exit code."""
    try:
        return guard_or_serve()
    except OSError as error:
        why = f"elastic-agent: this node refuses the workers' nursery what it needs: {error}; see ulimit -a\n"
        os.write(2, why.encode())
        return os.EX_OSERR


def guard_or_serve() -> int:
    """Both processes: what either must be, then the one watches while the other serves. Return the exit code."""
    from ctypes import CDLL

    fd, agent, grace_s = int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    # Ctrl-C and its like reach whole process groups and are the agent's to judge. Blocked from birth by the spawn, so
    # this only makes sure; not ignored, because workers inherit what is ignored.
    _signal.pthread_sigmask(_signal.SIG_SETMASK, _signal.valid_signals())
    if os.getsid(0) != os.getpid():
        os.setsid()
    close_all_but(fd)
    libc = CDLL(None, use_errno=True)
    become_subreaper(libc, b"elastic-guard")
    descendants = Descendants(libc, cgroup())
    watched = descendants.pidfd(agent)
    # Asked after the pidfd: if the agent is still our parent now, the pidfd is the agent's.
    if os.getppid() != agent:
        if descendants.cgroup is not None:
            descendants.cgroup.remove()
        return 0
    guardian = os.getpid()
    if (nursery := os.fork()) != 0:
        return Guardian(fd, watched, nursery, descendants, grace_s).run()
    os.setsid()
    become_subreaper(libc, b"elastic-nursery")
    serve(fd, watched, guardian, Descendants(libc, descendants.cgroup), grace_s)
    return 0


def cgroup() -> cgroups.Cgroup | None:
    """One for the workers, where this host lets us have one; none is needed."""
    parent = cgroups.delegated()
    if not parent:
        return None
    cgroups.clear(parent)
    return cgroups.found(parent)


def become_subreaper(libc: CDLL, name: bytes) -> None:
    libc.prctl(PR_SET_NAME, name, 0, 0, 0)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError("prctl(PR_SET_CHILD_SUBREAPER) failed; workers need Linux 3.4 or later")


def close_all_but(fd: int) -> None:
    """Keep the standard three and `fd`."""
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number != fd:
            try:
                os.close(number)
            except OSError:
                pass  # the one that listed them
    os.set_inheritable(fd, False)
    # Were one of the first three closed, a descriptor sent to us would take its place.
    while (low := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(low)
