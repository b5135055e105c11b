"""What imports may have left that a fork would break, searched for in the process itself rather than in a list."""

from __future__ import annotations

import os
import sys

from ..nursery.cgroups import fork_into

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .import_tree import Import, Tree

SURVIVING_THREADS = frozenset({"jemalloc_bg_thd"})
"""Names of threads that a fork may lose. jemalloc's: its handlers of pthread_atfork(3) hold its locks over the fork and
record in the copy that it has no such thread, whose work those threads then do that free memory
(`background_thread_postfork_child`, jemalloc 5)."""
ACCELERATORS = ("/dev/nvidia", "/dev/kfd", "/dev/dri")


class Births:
    """During which import each thread, each descriptor and the first child of this process was first seen."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._counts = counts()
        self.threads = dict.fromkeys(os.listdir("/proc/self/task"), tree.root)
        """By thread id."""
        self.descriptors = dict.fromkeys(descriptors(), tree.root)
        self.child: Import | None = None

    def look(self) -> None:
        """Find what is new, which the innermost import that is under way has made."""
        now = self.tree.now
        if (found := counts()) != self._counts or not found[1]:
            self._counts = found
            self.threads = {tid: self.threads.get(tid, now) for tid in os.listdir("/proc/self/task")}
            self.descriptors = {fd: self.descriptors.get(fd, now) for fd in descriptors()}
        if self.child is None and has_children():
            self.child = now


def fork_between(cgroup: int) -> tuple[int, bool]:
    """As `Cgroup.fork`, for the process between zygote and worker. `cgroup`: its open directory, or -1.

    The worker itself is forked by the C library, with all handlers of pthread_atfork(3) that modules have registered.
    A module's thread (jemalloc's) may hold a lock that such a handler takes, so beside one the one between is, too."""
    if cgroup >= 0 and len(os.listdir("/proc/self/task")) == 1:
        try:
            return fork_into(cgroup), True
        except OSError:
            pass  # the nursery moves the worker
    return os.fork(), False


def counts() -> tuple[int, int]:
    """How many threads and descriptors this process has, at a third of the price of listing them. The second is 0
    before Linux 6.2."""
    return os.stat("/proc/self/task").st_nlink, os.stat("/proc/self/fd").st_size


def fork_hazards(births: Births, before: frozenset[int]) -> dict[Import, str]:
    """Why nothing should be forked from this process, each in one clause, by the import that is the cause.

    `before`: descriptors that were open before the imports.
    """
    births.look()
    root = births.tree.root
    try:
        # Libraries that prepare for a fork (OpenBLAS does, by pthread_atfork) end their threads now. What then is left
        # would silently be missing in a worker.
        if (child := os.fork()) == 0:
            os._exit(0)
        os.waitpid(child, 0)
    except OSError as error:
        return {root: f"it cannot be forked: {error.strerror}"}
    found: dict[Import, str] = {}
    for by, names in lost_threads(births).items():
        found[by] = f"threads run that a fork would lose (named {', '.join(sorted(names))})"
    for by, targets in kept_descriptors(births, before).items():
        if devices := [target for target in targets if target.startswith(ACCELERATORS)]:
            found[by] = f"an accelerator is in use ({', '.join(devices)}), which does not survive a fork"
        else:
            found.setdefault(by, f"descriptors are open that workers would share ({', '.join(targets)})")
    torch = sys.modules.get("torch")
    if not found and torch is not None and torch.cuda.is_initialized():
        found[root] = "CUDA is initialised, which does not survive a fork"
    if has_children():
        found.setdefault(births.child or root, "a child process runs, of which a forked worker would not be the parent")
    return found


def lost_threads(births: Births) -> dict[Import, list[str]]:
    """The names of the threads that would be missing in a fork, by the import that started them."""
    found: dict[Import, list[str]] = {}
    for tid in os.listdir("/proc/self/task"):
        if int(tid) != os.getpid() and (name := name_of(tid)) and name not in SURVIVING_THREADS:
            found.setdefault(births.threads.get(tid, births.tree.root), []).append(name)
    return found


def kept_descriptors(births: Births, before: frozenset[int]) -> dict[Import, list[str]]:
    """What was opened and is open, by the import that did so."""
    found: dict[Import, list[str]] = {}
    for fd, target in sorted(descriptors().items()):
        if fd not in before:
            found.setdefault(births.descriptors.get(fd, births.tree.root), []).append(target)
    return found


def has_children() -> bool:
    """Whether this process has a child, exited or not."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


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
