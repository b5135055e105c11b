"""Starting workers: fork, what the child does until exec, and the list of workers. Part of the nursery; imports as
little as it does."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import errno
import os
import resource
import select

from .descendants import die_with

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from .descendants import Descendants

REASON_BYTES = 2000
"""Well below PIPE_BUF, so the reason arrives in one piece."""
OF_HOST = b"\0"
"""Begins a reason that lies in the host, whatever the command."""


class Launch:
    """One worker to start, as the agent described it."""

    __slots__ = ("argv", "cwd", "env", "key", "stdio")

    def __init__(self, fields: Sequence[bytes], stdio: Sequence[int]) -> None:
        """`fields`: CWD ARGC ARGV... NAME=VALUE...; `stdio`: its stdout and stderr, -1 for the nursery's own."""
        argc = int(fields[1])
        self.key = ""
        self.cwd = fields[0]
        self.argv = list(fields[2 : 2 + argc])
        self.env = dict(field.split(b"=", 1) for field in fields[2 + argc :])
        self.stdio = stdio

    def close(self) -> None:
        """Close its descriptors."""
        close_fds(*self.stdio)


class Defaults:
    """What workers do not inherit from the nursery."""

    __slots__ = ("descriptors", "signals")

    def __init__(self, signals: Sequence[int], descriptors: int) -> None:
        self.signals = signals
        """Signals that workers get with their default disposition."""
        self.descriptors = descriptors
        """Their soft limit of open descriptors; the agent has raised its own, which the nursery has too."""

    def restore(self) -> None:
        """Give this process, which becomes a worker, what is a worker's."""
        for signum in self.signals:
            _signal.signal(signum, _signal.SIG_DFL)
        soft, hard = self.descriptors, resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        if hard != resource.RLIM_INFINITY and not 0 <= soft <= hard:
            soft = hard  # it was lowered from outside, by prlimit(1)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Worker:
    """A worker that has been forked. Listed until nothing of its batch is left, or until its exec failed."""

    __slots__ = ("exited", "key", "pid", "start_pipe")

    def __init__(self, key: str, pid: int, start_pipe: int) -> None:
        self.key = key
        self.pid = pid
        self.start_pipe = start_pipe
        """Read end of the pipe that reports how the start went. Closed, and removed from `Spawner.starting`, once that
        is read."""
        self.exited = False


class Spawner:
    """Forks workers and lists them. All that `zygote_client.py` needs of the nursery."""

    def __init__(
        self, descendants: Descendants, poll: select.poll, defaulted: Defaults, report: Callable[..., None]
    ) -> None:
        """`poll` is the nursery's; `report` sends a line to the agent."""
        self.descendants = descendants
        self.poll = poll
        self.defaulted = defaulted
        self.report = report
        self.workers: dict[int, Worker] = {}
        """By pid."""
        self.starting: dict[int, Worker] = {}
        """Workers whose start has not been reported as done or failed yet, by the pipe that will report it."""

    def start(self, launch: Launch) -> None:
        """Fork one worker; `finish_start` reads how its exec went."""
        ends: list[int] = []
        try:
            ends += os.pipe()
            cgroup = self.descendants.cgroup
            pid, in_cgroup = (os.fork(), True) if cgroup is None else cgroup.fork()
        except OSError as error:
            self.report("fork_failed", launch.key, f"{error.strerror}: cannot fork")
            close_fds(*ends)
            launch.close()
            return
        if pid == 0:
            exec_launch(launch, ends[1], self.defaulted, self.descendants, enter=not in_cgroup)
        close_fds(ends[1])
        launch.close()
        self.add(launch.key, pid, ends[0])

    def add(self, key: str, pid: int, start_pipe: int) -> None:
        """List a child, whose `start_pipe` reports whether it became a worker."""
        self.workers[pid] = self.starting[start_pipe] = Worker(key, pid, start_pipe)
        self.poll.register(start_pipe, select.POLLIN)

    def finish_start(self, worker: Worker) -> None:
        """Read how its start went: the pipe is closed without a byte on success, and holds the reason otherwise."""
        reason = os.read(worker.start_pipe, REASON_BYTES)
        self.poll.unregister(worker.start_pipe)
        os.close(worker.start_pipe)
        del self.starting[worker.start_pipe]
        if reason:
            del self.workers[worker.pid]
            verb = "fork_failed" if reason.startswith(OF_HOST) else "start_failed"
            # It may be cut within a character.
            self.report(verb, worker.key, reason.removeprefix(OF_HOST).decode(errors="ignore"))
        else:
            self.report("started", worker.key, worker.pid)


def close_fds(*fds: int) -> None:
    """Close these descriptors; -1 stands for none."""
    for fd in fds:
        if fd >= 0:
            os.close(fd)


def exec_launch(
    launch: Launch, start_pipe: int, defaulted: Defaults, descendants: Descendants, *, enter: bool
) -> NoReturn:
    """Turn this child into the worker; if that fails, write the reason to `start_pipe`, which exec closes, and exit
    with 127.

    `enter`: it is to move into the workers' cgroup. Exec closes all descriptors but stdio. All signals are blocked
    until just before, so none is lost meanwhile.
    """
    where, whose = "", b""
    nursery = os.getsid(0)  # it leads its session, which this process is about to leave
    try:
        os.setsid()
        die_with(nursery, descendants.libc, 127)
        if enter:
            descendants.enter_cgroup()
        defaulted.restore()
        for name in (b"ELASTIC_AGENT_FORWARD_SIGNALS", b"ELASTIC_AGENT_ASK_SIGNALS"):
            for number in launch.env.get(name, b"").split(b","):
                if number:  # a scheduler's own copy of such a signal must end no script that does not handle it
                    _signal.signal(int(number), _signal.SIG_IGN)
        for target, fd in enumerate(launch.stdio, 1):
            if fd >= 0:
                os.dup2(fd, target)
        if cpus := launch.env.pop(b"ELASTIC_AGENT_CPUS", b""):
            where = f": CPUs {os.fsdecode(cpus)}"
            bind(cpus)
        where, whose = f": {os.fsdecode(launch.cwd)!r} (working directory)", OF_HOST
        os.chdir(launch.cwd)
        where, whose = f": {os.fsdecode(launch.argv[0])!r}", b""
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
        execute(launch.argv, launch.env)
    except Exception as error:  # noqa: BLE001 (whatever it is, the agent must receive the reason)
        what = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        text = f"{what}{where}".replace("\n", " ").encode(errors="backslashreplace")
        os.write(start_pipe, (whose + text)[:REASON_BYTES])
    finally:
        os._exit(127)


def bind(cpus: bytes) -> None:
    """Let this process, and what it starts, run on these CPUs only (`0-3,8`), as `numactl --physcpubind` does."""
    found: set[int] = set()
    for part in cpus.split(b","):
        first, _, last = part.partition(b"-")
        found.update(range(int(first), int(last or first) + 1))
    os.sched_setaffinity(0, found)


def execute(argv: list[bytes], env: dict[bytes, bytes]) -> NoReturn:
    """execvpe(3) with the PATH of `env`. Raises the error of the first candidate that exists, else ENOENT."""
    if b"/" in argv[0]:
        os.execve(argv[0], argv, env)
    found: OSError | None = None
    for folder in env.get(b"PATH", os.fsencode(os.defpath)).split(b":"):
        try:
            os.execve(os.path.join(folder, argv[0]), argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue  # the next folder of PATH may have it
        except OSError as error:
            found = found or error
    raise found or FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
