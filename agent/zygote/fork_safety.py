"""What imports may have left that a fork would break, searched for in the process itself rather than in a list."""

from __future__ import annotations

import os
import sys


class Baseline:
    """What this process had open before the imports."""

    def __init__(self) -> None:
        self.descriptors = set(descriptors())


def fork_hazard(before: Baseline) -> str:
    """Why nothing should be forked from this process, in one clause; empty if it may."""
    try:
        # Libraries that prepare for a fork (OpenBLAS does, by pthread_atfork) end their threads now. What then is left
        # would silently be missing in a worker.
        if (child := os.fork()) == 0:
            os._exit(0)
        os.waitpid(child, 0)
    except OSError as error:
        return f"it cannot be forked: {error.strerror}"
    tids = [tid for tid in os.listdir("/proc/self/task") if int(tid) != os.getpid()]
    if threads := sorted(name for tid in tids if (name := name_of(tid))):
        return f"threads run that a fork would lose (named {', '.join(threads)})"
    kept = [target for fd, target in sorted(descriptors().items()) if fd not in before.descriptors]
    if devices := [target for target in kept if target.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri"))]:
        return f"an accelerator is in use ({', '.join(devices)}), which does not survive a fork"
    if kept:
        return f"descriptors are open that workers would share ({', '.join(kept)})"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "CUDA is initialised, which does not survive a fork"
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return ""
    return "a child process runs, of which a forked worker would not be the parent"


def descriptors() -> dict[int, str]:
    """Open descriptors, and what each refers to."""
    found = {}
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            found[number] = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:
            pass  # the one that listed them
    return found


def name_of(tid: str) -> str:
    """The name of a thread of this process; empty if it has exited."""
    try:
        with open(f"/proc/self/task/{tid}/comm", "rb") as file:
            return file.read().decode(errors="replace").strip() or "?"
    except OSError:
        return ""
