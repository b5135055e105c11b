"""The zygote's life: prepare, say so, fork on request. Everything else about it is in its neighbours."""

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
from .child import Birth, Parent, live
from .eligibility import Command, misfit
from .fork_safety import Before, faults
from .import_trace import Lessons, raw_environment, replay
from .preimport import ReadsOfEnvironment, import_all, main_like, path_of_script

VARIABLE = "ELASTIC_AGENT_ZYGOTE"
"""Holds the number of the descriptor of the zygote's socket."""
AUTO = "auto"


class Unfit(Exception):
    """Nothing can be forked from this process, for the reason given."""


class Zygote:
    """One paused interpreter."""

    def __init__(self, fd: int, order: list[bytes], frames: Frames) -> None:
        self.socket = _socket.socket(fileno=fd)
        self.frames = frames
        modules = [name for name in order[1].decode().split(",") if name]
        self.lessons = Lessons() if modules == [AUTO] else None
        self.modules = [] if self.lessons else modules
        self.command = Command(sys.orig_argv, os.getcwd(), dict(os.environ), order[2].decode().split(","))
        self.raw_env = dict(raw_environment())
        self.reads = ReadsOfEnvironment()
        self.before = Before()
        self.parent = Parent(os.getppid())

    def say(self, *words: object) -> None:
        self.socket.sendall(" ".join(map(str, words)).replace("\n", " ").encode(errors="backslashreplace") + b"\n")

    def prepare(self) -> None:
        """Import what is to be preloaded. Raises Unfit."""
        since = time.monotonic()
        with self.reads:
            # The user's own, which Python would have imported now.
            site.execsitecustomize()
        with self.reads, path_of_script(self.command.words), main_like(self.command.words):
            trouble = import_all(self.modules)
        self.check(self.modules, since, trouble)

    def learn(self) -> None:
        """Import what the script imported last time."""
        lessons = self.lessons
        if lessons is None:
            return
        lessons.wait()
        self.before = Before()  # the descriptors of a worker that waits to be born are there, too
        since = time.monotonic()
        with self.reads, path_of_script(self.command.words), main_like(self.command.words):
            modules, why, trouble = replay(lessons.noted(), self.raw_env)
        if modules or trouble:
            self.lessons = None
            self.check(modules, since, trouble)
        if why:
            self.say("note", why)

    def check(self, modules: list[str], since: float, trouble: str) -> None:
        """After an import that began at `since`: say that we are ready, or raise Unfit."""
        if trouble:
            raise Unfit(trouble)
        if found := faults(self.before):
            raise Unfit(f"after importing {', '.join(modules) or 'sitecustomize'}, {found}")
        # What is never collected is never written to by the collector, and stays shared.
        gc.collect()
        gc.freeze()
        # A signal for a worker, sent while it is not quite one, must wait for it; as from fork to exec elsewhere.
        _signal.pthread_sigmask(_signal.SIG_SETMASK, _signal.valid_signals())
        self.parent.rename(b"elastic-zygote")
        self.say("ready", f"{time.monotonic() - since:.3f}", *memory_kib(), ",".join(modules))

    def run(self) -> bool:
        """Serve until the nursery is gone. True: this is a worker, in which all is done but to run its script."""
        poll = select.poll()
        poll.register(self.socket.fileno(), select.POLLIN)
        while not self.frames.ended:
            if not poll.poll(self.lessons.due_ms() if self.lessons else None):
                self.learn()
                continue
            for fields in self.frames.receive(self.socket):
                if self.bear(Birth(fields, self.frames)):
                    return True
        return False

    def bear(self, birth: Birth) -> bool:
        """Fork a worker whose parent is the nursery. True in the worker. Raises Unfit.

        Forked twice: the child between ends at once, and the kernel gives the worker to the nearest subreaper above,
        the nursery. That has happened when the one between can be waited for (exit_notify in Linux' kernel/exit.c), so
        the nursery, told only then, never lets a worker go that is not its child yet.
        """
        if self.lessons and birth.key == self.lessons.key:
            self.learn()  # the one to learn from is being replaced already
        if reason := misfit(self.command, birth.argv, birth.cwd, birth.env, self.reads.names):
            raise Unfit(reason)
        if self.lessons:
            self.lessons.expect(birth)
        told, tell = os.pipe()
        between = os.fork()
        if between == 0:
            worker = os.fork()
            if worker == 0:
                os.close(told)
                self.grow_up(birth, tell)
                return True
            os._exit(0)
        os.close(tell)
        os.waitpid(between, 0)
        worker_pid = os.read(told, 32).decode()
        os.close(told)
        birth.close()
        if not worker_pid:
            raise Unfit("this node refuses another process (ulimit -u, or the cgroup's pids.max)")
        if self.lessons:
            self.lessons.began(birth.key)
        self.say("forked", birth.key, worker_pid)
        return False

    def grow_up(self, birth: Birth, tell: int) -> None:
        """In the worker: be no zygote any more."""
        os.setsid()  # before anybody knows of us: what ends the zygote's group must not end us
        os.write(tell, str(os.getpid()).encode())
        os.close(tell)
        self.socket.close()
        for fd in self.frames.fds:
            os.close(fd)  # the next worker's
        live(birth, self.parent, self.command)
        if self.lessons and (recorder := self.lessons.begin(birth)):
            recorder.listen()


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
        pass  # a figure for people, no more
    return found["Rss"], found["Pss"]


def serve(folder: str) -> None:
    """Be the zygote; return in a worker only. `folder` is what PYTHONPATH begins with on our account."""
    number, _, had_path = os.environ.pop(VARIABLE).partition(" ")
    fd = int(number)
    leave_no_trace(folder, bool(had_path))
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
    except Unfit as reason:
        zygote.say("unfit", reason)
        # The nursery ends us, and what a module may have started, which it knows by us.
        while zygote.socket.recv(1 << 16):
            pass
        os._exit(0)


def leave_no_trace(folder: str, had_path: bool) -> None:
    """Undo what brought us here: the interpreter is to be as without us. `had_path`: PYTHONPATH was set before."""
    path = os.environ.pop("PYTHONPATH")
    if had_path:
        os.environ["PYTHONPATH"] = path.removeprefix(folder).removeprefix(os.pathsep)
    sys.path.remove(folder)
    sys.path_importer_cache.pop(folder, None)
    sys.modules.pop("sitecustomize", None)
