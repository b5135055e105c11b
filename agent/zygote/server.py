"""The zygote's process: import the modules, report that it is ready, fork on request."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import gc
import os
import select
import site
import sys
import time

from ..nursery.frames import Frames
from .child import ForkRequest, Parent, become_worker
from .eligibility import Command, differing, mismatch
from .environment_watch import EnvironmentWatch
from .first_imports import first_imports
from .fork_safety import Births, fork_between, fork_hazards
from .import_trace import ImportTrace, installed, raw_environment, replay, to_import
from .import_tree import Tree, is_standard, packages, reads
from .import_watch import ImportWatch
from .preimport import import_all, main_like, path_of_script, rarely_collecting
from .successor import RETRIES_MAX, Successor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .import_tree import Import

VARIABLE = "ELASTIC_AGENT_ZYGOTE"
"""Holds the number of the descriptor of the zygote's socket."""
AUTO = "auto"
LEFT_OUT = "!"
"""Before the name of a module that an earlier zygote could not preload."""
AT_ONCE = 4
"""Workers that are being forked at the same time; each holds six descriptors of the zygote meanwhile."""


class CannotFork(Exception):
    """Nothing can be forked from this process, for the reasons given."""

    def __init__(self, *reasons: str, rest: tuple[str, ...] = ()) -> None:
        """`rest`: modules that another zygote can preload instead of those to blame."""
        super().__init__("; ".join(reasons))
        self.reasons = reasons
        self.rest = rest


class Forking:
    """A worker whose fork has begun. (No dataclass: every script would find that module imported.)"""

    def __init__(self, request: ForkRequest, between: int, pid_read: int, in_cgroup: bool) -> None:
        self.request = request
        self.between = between
        """Pid of the process between zygote and worker."""
        self.pid_read = pid_read
        """The worker writes its pid to the other end of this pipe, or cannot be there if that is closed."""
        self.in_cgroup = in_cgroup


class Zygote:
    """One paused interpreter."""

    def __init__(self, fd: int, order: list[bytes], frames: Frames) -> None:
        self.socket = _socket.socket(fileno=fd)
        self.frames = frames
        words = [word for word in order[1].decode().split(",") if word]
        self.modules = [word for word in words if word != AUTO and word[0] != LEFT_OUT]
        self.again = order[3] == b"again"
        """Whether these are what an earlier zygote found that can be preloaded."""
        self.auto = AUTO in words
        self.trace = ImportTrace() if self.auto else None
        self.left_out = {word[1:] for word in words if word[0] == LEFT_OUT}
        self.tried = set(self.left_out)
        """Names that were imported, or could not be, because a worker did; none in a package that is left out."""
        self.lines: list[str] = []
        """The trace that the successor imports."""
        self.successor: Successor | None = None
        """The process that imports beside this one, to take its place."""
        self.killed: list[Successor] = []
        """Successors that were killed and have not exited yet."""
        self.retries = 0
        """How many successors could not be forked from."""
        self.command = Command(sys.orig_argv, os.getcwd(), dict(os.environ), order[2].decode().split(","))
        self.raw_env = dict(raw_environment())
        self.worker_env: dict[str, str] = {}
        """Of the worker that was forked last."""
        self.tree = Tree()
        self.births = Births(self.tree)
        self.watch = ImportWatch(self.tree, self.births, EnvironmentWatch(self.tree, self.command.per_round))
        self.before = frozenset(self.births.descriptors)
        self.generators: list[Any] = []
        """Generators of random numbers that each worker seeds anew."""
        self.parent = Parent(os.getppid())
        self.forking: list[Forking] = []
        """Workers whose fork has begun, oldest first."""
        self.poll = select.poll()
        """Of the nursery's requests and of the pids of workers."""

    def report(self, *words: object) -> None:
        """Send the nursery a line."""
        self.socket.sendall(" ".join(map(str, words)).replace("\n", " ").encode(errors="backslashreplace") + b"\n")

    def prepare(self) -> None:
        """Import what is to be preloaded. Raises CannotFork."""
        since = time.monotonic()
        with self.watch:
            # The user's own sitecustomize, which Python would have imported now.
            site.execsitecustomize()
        with rarely_collecting(), self.watch, path_of_script(self.command.argv), main_like(self.command.argv):
            first = self.auto and not self.again
            modules = first_imports(self.command.argv) if first else dict.fromkeys(self.modules, ())
            failed = import_all(modules, tolerant=first or self.again)
        self.finish_imports(packages(list(modules)) if first or self.again else self.modules, since, failed)

    def learn(self) -> None:
        """Have a successor import what the worker that recorded its imports has imported, if that is anything new.
        Returns at once, and in the successor when it has taken this process's place. Raises CannotFork in it."""
        if self.trace and (lines := self.trace.read()):
            self.lines = lines
            if any(to_import(line, self.tried, self.left_out) for line in lines):
                self.succeed()

    def succeed(self) -> None:
        """As `learn`, for the trace that was read last."""
        try:
            self.successor = Successor(self.parent, self.poll)
        except OSError as error:
            self.trace = None
            self.report("warning", f"{error.strerror}: cannot start the process that imports what the script imported")
            return
        if (link := self.successor.of_successor) is None:
            return
        # In the successor. What it reports goes to its zygote, which passes it on.
        nursery, self.socket, self.successor = self.socket, link, None
        self.forget_killed()
        warning = self.import_traced()
        if not link.recv(1):
            os._exit(0)
        self.socket = nursery
        link.close()
        if warning:
            self.report("warning", warning)

    def import_traced(self) -> str:
        """Import what the trace names; return a warning if it had to stop. Raises CannotFork."""
        self.births = self.watch.births = Births(self.tree)
        self.before = frozenset(self.births.descriptors)
        since = time.monotonic()
        with rarely_collecting(), self.watch, path_of_script(self.command.argv), main_like(self.command.argv):
            modules, warning = replay(self.lines, self.raw_env, self.tried, self.left_out)
        if warning:
            self.trace = None  # the script would only get as far again
        self.finish_imports(modules, since, {})
        return warning

    def hear_successor(self, successor: Successor) -> None:
        """Pass on what the successor reports. Once it is ready it takes this process's place, which then only waits for
        its end; if nothing can be forked from it, another one imports without the modules to blame."""
        for verb, rest in successor.receive():
            if verb == "again":
                self.end_successor()
                self.retries += 1
                self.left_out.update(name[1:] for name in rest.split(",") if name[0] == LEFT_OUT)
                self.tried |= self.left_out
                if self.retries <= RETRIES_MAX:
                    self.succeed()
                else:
                    self.trace = None
                    self.report("warning", f"{self.retries} times a module that was left out came back")
                return
            if verb == "cannot_fork":
                self.end_successor()
                self.trace = None
                self.report("warning", f"{rest}; so each worker imports what the script imported")
                return
            self.report(verb, rest)
            if verb == "ready":
                successor.take_over()
        if successor.ended:
            self.end_successor()
            self.trace = None
            self.report("warning", "the process that imports what the script imported has ended; each worker does")

    def end_successor(self) -> None:
        """Kill the successor, if there is one: whoever asks for a worker waits for no import, and shares no processor
        with one. What it was to import is read again."""
        if self.successor is not None:
            self.successor.kill()
            self.killed.append(self.successor)
            self.successor = None
            if self.trace:
                self.trace.forget()

    def forget_killed(self) -> None:
        """In a process that was forked from the zygote: what it has killed is not this process's."""
        for each in self.killed:
            each.close()
        self.killed.clear()

    def finish_imports(self, modules: list[str], since: float, failed: dict[str, str]) -> None:
        """After an import that began at `since`: report that the zygote is ready, or raise CannotFork. `failed`: why a
        module could not be imported."""
        gc.collect()
        reasons = list(failed.values())
        guilty = {each for each in self.tree.imports if each.failed and each.name in failed}
        for by, hazard in fork_hazards(self.births, self.before).items():
            reasons.append(f"after importing {by.name or ', '.join(modules) or 'sitecustomize'}, {hazard}")
            guilty.add(by)
        for each in self.tree.guilty():
            reasons += each.faults
            guilty.add(each)
        if reasons:
            raise self.without(guilty, reasons)
        if self.worker_env:
            self.check_reads(self.worker_env)
        self.generators += self.watch.generators_to_seed()
        # The collector does not write to frozen objects, so their pages stay shared.
        gc.freeze()
        # A signal for a worker that is not set up yet must wait until it is, as between fork and exec elsewhere.
        _signal.pthread_sigmask(_signal.SIG_SETMASK, _signal.valid_signals())
        self.parent.rename(b"elastic-zygote")
        self.report("ready", f"{time.monotonic() - since:.3f}", *memory_kib(), ",".join(modules))

    def check_reads(self, env: dict[str, str]) -> None:
        """Raise CannotFork if an import has read what is otherwise in the environment of this worker."""
        if readers := self.tree.readers(differing(self.command, env)):
            raise self.without(set(readers), [reads(each, name) for each, name in readers.items()])

    def without(self, guilty: set[Import], reasons: list[str]) -> CannotFork:
        """The error that says why nothing can be forked from this process, and what could be without these imports."""
        if self.tree.root in guilty:
            return CannotFork(*reasons)
        rest = self.tree.without(guilty)
        if self.auto:
            installed_ones = (name for name in rest if is_standard(name) or installed(name))
            left_out = {*self.left_out, *self.tree.left_out(guilty)}
            return CannotFork(*reasons, rest=(AUTO, *installed_ones, *(LEFT_OUT + name for name in sorted(left_out))))
        return CannotFork(*reasons, rest=tuple(rest) if any(not is_standard(name) for name in rest) else ())

    def run(self) -> bool:
        """Serve until the nursery has exited. True: this is a worker, ready to run its script. Raises CannotFork."""
        self.poll.register(self.socket.fileno(), select.POLLIN)
        while not self.frames.ended:
            due_ms = self.trace.due_ms() if self.trace and not self.forking and not self.successor else None
            ready = {fd for fd, _ in self.poll.poll(due_ms)}
            if not ready:
                self.learn()
            if self.socket.fileno() in ready:
                self.end_successor()
                if self.fork_requested():
                    return True
            self.killed = [each for each in self.killed if each.fd not in ready or not each.reap()]
            if self.successor is not None and self.successor.fd in ready:
                self.hear_successor(self.successor)
            if any(each.pid_read in ready and self.finish_fork(each) for each in tuple(self.forking)):
                return True
        return False

    def fork_requested(self) -> bool:
        """Begin to fork the workers that the nursery has requested. True in a worker. Raises CannotFork."""
        for fields in self.frames.receive(self.socket):
            if len(self.forking) >= AT_ONCE and self.finish_fork(self.forking[0]):
                return True
            request = ForkRequest(fields, self.frames)
            self.check(request)
            if self.fork(request, request.cgroup):
                return True
        return False

    def check(self, request: ForkRequest) -> None:
        """Before a worker is forked: raise CannotFork if it has to be started plainly."""
        if reason := mismatch(self.command, request.argv, request.cwd, request.env):
            raise CannotFork(reason)
        self.check_reads(request.env)
        self.worker_env = request.env
        if self.trace:
            self.trace.allocate(request)

    def fork(self, request: ForkRequest, cgroup: int) -> bool:
        """Begin to fork a worker whose parent is the nursery; `finish_fork` does the rest. True in the worker.

        Forked twice: the child between exits at once, and the kernel makes the worker a child of the nearest subreaper
        above, the nursery. That has happened when the one between can be waited for (exit_notify in Linux'
        kernel/exit.c). The nursery receives the pid only then, so it never releases a worker that is not its child yet.
        With torch imported a fork takes 10 ms and more, and so does the exit, so several of those between run at once.
        """
        pid_read, pid_write = os.pipe()
        between, in_cgroup = fork_between(cgroup)
        if between == 0:
            if os.fork() == 0:
                os.close(pid_read)
                self.become_worker(request, pid_write)
                return True
            os._exit(0)
        os.close(pid_write)
        self.forking.append(Forking(request, between, pid_read, in_cgroup))
        self.poll.register(pid_read, select.POLLIN)
        return False

    def finish_fork(self, begun: Forking) -> bool:
        """Wait until this worker is there, and report it. True in the worker. Raises CannotFork."""
        self.forking.remove(begun)
        self.poll.unregister(begun.pid_read)
        os.waitpid(begun.between, 0)
        worker_pid = os.read(begun.pid_read, 32).decode()
        os.close(begun.pid_read)
        if not worker_pid and begun.in_cgroup:
            return self.fork(begun.request, -1)  # the nursery has killed the cgroup meanwhile
        begun.request.close()
        if not worker_pid:
            raise CannotFork("this host refuses another process (ulimit -u, or the cgroup's pids.max)")
        if self.trace:
            self.trace.forked(begun.request.key)
        self.report("forked", begun.request.key, worker_pid, int(begun.in_cgroup))
        return False

    def become_worker(self, request: ForkRequest, pid_write: int) -> None:
        """In the worker: report its pid, close what belongs to the zygote, and prepare to run the script."""
        os.setsid()  # before the pid is reported: what kills the zygote's group must not kill this process
        try:
            os.write(pid_write, str(os.getpid()).encode())
        except BrokenPipeError:
            os._exit(127)  # the zygote was killed; the nursery starts this worker plainly
        os.close(pid_write)
        self.socket.close()
        for fd in self.frames.fds:
            os.close(fd)  # the next worker's
        for each in self.forking:
            each.request.close()
            os.close(each.pid_read)
        self.forget_killed()
        become_worker(request, self.parent, self.command, self.generators)
        if self.trace and (recorder := self.trace.recorder(request)):
            recorder.install()


def memory_kib() -> tuple[int, int]:
    """This process's RSS and PSS; proc(5), smaps_rollup. 0 where the kernel has none (before 4.14)."""
    found = {"Rss": 0, "Pss": 0}
    try:
        with open("/proc/self/smaps_rollup", "rb") as file:
            for line in file:
                name, _, rest = line.partition(b":")
                if name.decode() in found:
                    found[name.decode()] = int(rest.split()[0])
    except OSError:
        pass  # the figures are only shown
    return found["Rss"], found["Pss"]


def serve(folder: str) -> None:
    """Run the zygote in this process; return in a worker only. `folder`: what was put first into PYTHONPATH for it."""
    number, _, had_path = os.environ.pop(VARIABLE).partition(" ")
    fd = int(number)
    restore_interpreter(folder, bool(had_path))
    os.set_inheritable(fd, False)
    link = _socket.socket(fileno=fd)
    frames = Frames()
    order: list[list[bytes]] = []
    while not order and not frames.ended:
        order += frames.receive(link)
    if not order:
        os._exit(0)
    zygote = Zygote(link.detach(), order[0], frames)
    try:
        zygote.prepare()
        if not zygote.run():
            os._exit(0)
    except CannotFork as error:
        if error.rest:
            for reason in error.reasons:
                zygote.report("warning", f"{reason}; so each worker imports it")
            zygote.report("again", ",".join(error.rest))
        else:
            zygote.report("cannot_fork", error)
        # Wait to be killed: by this process's pid the nursery finds, and kills, what a module may have started.
        while zygote.socket.recv(1 << 16):
            pass
        os._exit(0)


def restore_interpreter(folder: str, had_path: bool) -> None:
    """Undo the changes that brought Python here, so that a script cannot see them. `had_path`: PYTHONPATH was set."""
    path = os.environ.pop("PYTHONPATH")
    if had_path:
        os.environ["PYTHONPATH"] = path.removeprefix(folder).removeprefix(os.pathsep)
    sys.path.remove(folder)
    sys.path_importer_cache.pop(folder, None)
    sys.modules.pop("sitecustomize", None)
