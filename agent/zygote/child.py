"""From fork to script: what a worker forked from the zygote does to be as one that was started by itself."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import atexit
import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..nursery.frames import Frames
    from .eligibility import Command

# From <linux/prctl.h>.
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
REASON_BYTES = 2000


class Birth:
    """One worker asked for."""

    def __init__(self, fields: list[bytes], frames: Frames) -> None:
        self.key = fields[1].decode()
        stdout, stderr, self.gate, self.report = frames.take([*fields[2:4], b"1", b"1"])
        self.stdio = {1: stdout, 2: stderr}
        self.cwd, argc = os.fsdecode(fields[4]), int(fields[5])
        self.argv = [os.fsdecode(word) for word in fields[6 : 6 + argc]]
        pairs = (os.fsdecode(word).partition("=") for word in fields[6 + argc :])
        self.env = {name: value for name, _, value in pairs}

    def close(self) -> None:
        """Let go of its descriptors."""
        for fd in (*self.stdio.values(), self.gate, self.report):
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


def live(birth: Birth, parent: Parent, command: Command) -> None:
    """Wait for the nursery's word, then become the worker, but for its script. On failure tell why, and exit 127."""
    try:
        if not os.read(birth.gate, 1):
            os._exit(127)  # the nursery is gone, or has given this one up
        parent.libc.prctl(PR_SET_PDEATHSIG, int(_signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent.pid:
            os._exit(127)  # it died before the kernel knew that we care
        parent.rename(parent.comm)
        for target, fd in birth.stdio.items():
            if fd >= 0:
                os.dup2(fd, target)
        os.chdir(birth.cwd)
        take_environment(birth.env, command)
        at = command.fixed
        sys.argv[1:] = birth.argv[at:]
        sys.orig_argv[:] = birth.argv
        seed_anew()
        # Before modules are taken down at the end, so that what is in cycles with frozen objects is finalised too.
        atexit.register(gc.unfreeze)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    except BaseException as error:  # noqa: BLE001 - whatever it is, the agent must hear of it
        text = f"{type(error).__name__}: {error}".replace("\n", " ").encode(errors="backslashreplace")
        os.write(birth.report, text[:REASON_BYTES])
        os._exit(127)
    birth.close()


def take_environment(env: dict[str, str], command: Command) -> None:
    """Have these variables, and what the imported modules have set since the zygote began."""
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


def seed_anew() -> None:
    """Take fresh chance where a module took some when it was imported. `random` does so by itself after a fork."""
    if numpy := sys.modules.get("numpy.random"):
        numpy.seed()
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()
    if process := sys.modules.get("multiprocessing.process"):
        # Between processes of one tree a secret; between workers it would be none.
        process.current_process().authkey = os.urandom(32)
