"""The processes that the agent handles itself: starts guardian and nursery, and kills what they leave if both are
killed."""

from __future__ import annotations

# The C module: nothing that `socket` adds is used, and importing it would lengthen the agent's start-up.
import _socket
import os
import posix
import signal
import sys
from typing import NamedTuple

from ..descriptors import raise_soft_limit
from ..errors import HostFailed
from ..spec import PASSWORD_VARIABLE, WorkerSpec

BOOT = (
    "import os, sys; '' in sys.path and sys.path.remove(''); "
    "sys.path.append(sys.argv[1]); from agent.nursery.guardian import main; os._exit(main())"
)
"""With -I and -S Python does not find our package, so its folder is an argument; importing all of `elastic_agent` would
be slower. Without -I it would first search the working directory."""
MARK = "ELASTIC_AGENT_NURSERY"
"""A variable in the environment of the nursery and of every worker. By its value the agent finds what is left of a
nursery that was killed together with its guardian."""
SIGNALLED = 128
"""The guardian exits with this plus n if signal n ended the nursery, as a shell does."""
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Begun(NamedTuple):
    """A nursery that was started; it serves some 40 ms later, and orders that are sent before wait for it."""

    link: _socket.socket
    """The agent's end of the socket; if it is closed, guardian and nursery end."""
    guardian: int
    """Its pid."""
    mark: str
    """NAME=VALUE of `MARK`."""


_ahead: dict[tuple[float, tuple[str, ...]], Begun] = {}
"""By what they were begun with: nurseries that were begun before there was an agent to serve, one at most."""


def begin_ahead(spec: WorkerSpec) -> None:
    """Start the nursery of the agent that this process is about to make, so that both start at the same time. For a
    process that makes one agent only. Does nothing where the host refuses it: the agent tries it again, and says so."""
    asked = (spec.orphan_grace_s, spec.own_directories)
    try:
        _ahead[asked] = begin(*asked)
    except (OSError, HostFailed):
        _ahead.clear()


def begin(grace_s: float, own_directories: tuple[str, ...]) -> Begun:
    """The nursery that was begun ahead, or a new one. Returns before it serves. Arguments, and what it raises, as with
    `spawn_nursery`."""
    if (ahead := _ahead.pop((grace_s, own_directories), None)) is not None:
        return ahead
    mark = f"{MARK}={os.getpid()}.{os.urandom(8).hex()}"
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        guardian = spawn_nursery(theirs.fileno(), grace_s, mark, raise_soft_limit(), own_directories)
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    ours.setblocking(False)
    return Begun(ours, guardian, mark)


def spawn_nursery(fd: int, grace_s: float, mark: str, descriptors: int, own_directories: tuple[str, ...]) -> int:
    """Start a guardian, which starts a nursery that serves the socket `fd`; return the guardian's pid. Raises OSError,
    and HostFailed without a /proc.

    `grace_s`: the time between SIGTERM and SIGKILL for workers whose agent is gone. `mark`: NAME=VALUE for their
    environment. `descriptors`: their soft limit of open descriptors. `own_directories`: as in `WorkerSpec`. By
    posix_spawn(3): no Python runs between fork and exec, so other threads, torch's among them, do not matter. By
    `posix`, not `os`: debuggers and profilers that follow child processes replace the functions of `os`, and would run
    in guardian and nursery, which must have one thread and close all descriptors.
    """
    if not sys.executable:
        raise OSError("cannot start the nursery: sys.executable is empty; set it to a Python interpreter")
    if not os.path.exists("/proc/self/stat"):
        raise HostFailed(
            "/proc is not mounted here, and the agent finds its workers' processes there; mount it (mount -t proc proc "
            "/proc)"
        )
    target = 3 if fd != 3 else 4  # dup2 of a descriptor to itself would leave it close-on-exec
    own = (str(target), str(os.getpid()), repr(grace_s), str(descriptors), *own_directories)
    name, _, value = mark.partition("=")
    env = {**os.environ, name: value}
    env.pop(PASSWORD_VARIABLE, None)  # a caller of the library may have it
    options = ["-I", "-S"]
    if "PYTHONHOME" in env and not sys.flags.ignore_environment:
        # -I would ignore it, and this Python may find no standard library without it. The rest of -I is done by hand.
        options = ["-s", "-S"]
        env = {key: each for key, each in env.items() if key == "PYTHONHOME" or not key.startswith("PYTHON")}
    argv = [sys.executable, *options, "-c", BOOT, ROOT, *own]
    actions = [(os.POSIX_SPAWN_DUP2, fd, target)]
    # From its first instruction on, signals to the agent's process group or from its terminal do not reach it.
    mask = signal.valid_signals()
    # Where a program ignores the ends of its children, the kernel would reap what the guardian waits for.
    waits = {signal.SIGCHLD}
    try:
        return posix.posix_spawn(
            argv[0], argv, env, file_actions=actions, setsigmask=mask, setsigdef=waits, setsid=True
        )
    except NotImplementedError:  # a C library without POSIX_SPAWN_SETSID: the guardian does it itself, a little later
        return posix.posix_spawn(argv[0], argv, env, file_actions=actions, setsigmask=mask, setsigdef=waits)


def reap_guardian(guardian: int, nursery: int) -> tuple[bool, str]:
    """Kill the guardian if it still runs, and reap it. Return whether nothing can be left below it, and, in words, how
    guardian and nursery ended. `nursery` is 0 if its pid is not known."""
    name = f"the nursery (pid {nursery})" if nursery else "the nursery"
    try:
        os.waitid(os.P_PID, guardian, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # is this pid still our child's?
        os.kill(guardian, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(guardian, 0)[1])
    except ChildProcessError:
        return False, f"the guardian of {name} is gone; other code in this process waited for it"
    if code < 0:
        how = f"was killed by signal {-code} ({signal.strsignal(-code)})"
        return False, f"the guardian (pid {guardian}) of {name} {how}"
    if code > SIGNALLED:
        return True, f"{name} was killed by signal {code - SIGNALLED} ({signal.strsignal(code - SIGNALLED)})"
    return True, f"{name} exited with code {code}"


def kill_leftovers(mark: str, cgroup: str) -> None:
    """SIGKILL what guardian and nursery left: every process in the cgroup, and every process with this NAME=VALUE in
    its environment. `cgroup` is a directory, or empty."""
    from .marked import kill_marked

    if not cgroup:
        kill_marked(mark.encode())
        return
    from ..nursery import cgroups

    cgroups.kill(cgroup)
    kill_marked(mark.encode())
    cgroups.remove(cgroup)
