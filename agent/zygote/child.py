"""From fork to script: what a worker forked from the zygote does to be like one that was started plainly."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import atexit
import gc
import os
import sys

from ..nursery.descendants import die_with

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..nursery.frames import Frames
    from .eligibility import Command

PR_SET_NAME = 15
"""From <linux/prctl.h>."""
REASON_BYTES = 2000


class ForkRequest:
    """One worker that the nursery requested."""

    def __init__(self, fields: list[bytes], frames: Frames) -> None:
        self.key = fields[1].decode()
        stdout, stderr, self.cgroup, self.gate, self.start_pipe = frames.take([*fields[2:5], b"1", b"1"])
        """`cgroup`: the directory of the workers' cgroup; -1 if there is none."""
        self.stdio = {1: stdout, 2: stderr}
        self.cwd, argc = os.fsdecode(fields[5]), int(fields[6])
        self.argv = [os.fsdecode(field) for field in fields[7 : 7 + argc]]
        pairs = (os.fsdecode(field).partition("=") for field in fields[7 + argc :])
        self.env = {name: value for name, _, value in pairs}

    def close(self) -> None:
        """Close its descriptors."""
        for fd in (*self.stdio.values(), self.cgroup, self.gate, self.start_pipe):
            if fd >= 0:
                os.close(fd)


class Parent:
    """The nursery, and the C library by which a worker ties itself to it."""

    def __init__(self, pid: int) -> None:
        from ctypes import CDLL

        self.pid = pid
        self.libc = CDLL(None, use_errno=True)
        with open("/proc/self/comm", "rb") as file:
            self.comm = file.read().rstrip(b"\n")

    def rename(self, name: bytes) -> None:
        """Set what `ps` and `top` call this process."""
        self.libc.prctl(PR_SET_NAME, name, 0, 0, 0)


def become_worker(request: ForkRequest, parent: Parent, command: Command, generators: list[Any]) -> None:
    """Wait until the nursery opens the gate, then become the worker, all but its script. On failure report the reason,
    and exit with 127. `generators`: those of random numbers that modules made without a seed."""
    try:
        if not os.read(request.gate, 1):
            os._exit(127)  # the nursery has exited, or has dropped this request
        die_with(parent.pid, parent.libc, 127)
        parent.rename(parent.comm)
        for target, fd in request.stdio.items():
            if fd >= 0:
                os.dup2(fd, target)
        os.chdir(request.cwd)
        set_environment(request.env, command)
        at = command.fixed
        sys.argv[1:] = request.argv[at:]
        sys.orig_argv[:] = request.argv
        reseed(generators)
        # Before modules are taken down at the end, so that what is in cycles with frozen objects is finalised too.
        atexit.register(gc.unfreeze)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    except BaseException as error:  # noqa: BLE001 - whatever it is, the agent must receive the reason
        text = f"{type(error).__name__}: {error}".replace("\n", " ").encode(errors="backslashreplace")
        os.write(request.start_pipe, text[:REASON_BYTES])
        os._exit(127)
    request.close()


def set_environment(env: dict[str, str], command: Command) -> None:
    """Set these variables, and keep what the imported modules have set since the zygote was started."""
    now = dict(os.environ)
    set_by_imports = {name: value for name, value in now.items() if command.env.get(name) != value}
    wanted = {name: value for name, value in env.items() if name in now or name not in command.env}
    wanted.update(set_by_imports)
    for name in now:
        if name not in wanted:
            del os.environ[name]
    for name, value in wanted.items():
        if now.get(name) != value:
            os.environ[name] = value


def reseed(generators: list[Any]) -> None:
    """Seed anew what was seeded by chance when modules were imported. `random` does so by itself after a fork."""
    for each in generators:
        if hasattr(each, "seed"):
            each.seed()
        else:
            each.state = type(each)().state  # numpy's bit generators
    if numpy := sys.modules.get("numpy.random"):
        numpy.seed()
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()
    if process := sys.modules.get("multiprocessing.process"):
        # A secret that the processes of one worker share; workers must not share it with each other.
        process.current_process().authkey = os.urandom(32)
