"""Starting workers: fork, what the child does until exec, and which processes are workers. Part of the nursery, and as
lean."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import errno
import os
import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from .descendants import Descendants

PR_SET_PDEATHSIG = 1
"""From <linux/prctl.h>. Forgotten when the worker executes a set-user-ID file; `Supervisor` knows its group."""
REASON_BYTES = 2000
"""Well below PIPE_BUF, so the reason arrives in one piece."""


class Launch:
    """One worker to start, as the agent described it."""

    __slots__ = ("argv", "cwd", "env", "key", "stdio")

    def __init__(self, fields: Sequence[bytes], stdio: Sequence[int]) -> None:
        """`fields`: CWD ARGC ARGV... NAME=VALUE...; `stdio`: its stdout and stderr, -1 for the nursery's own."""
        argc = int(fields[1])
        self.key = ""
        self.cwd = fields[0]
        self.argv = list(fields[2 : 2 + argc])
        self.env = dict(word.split(b"=", 1) for word in fields[2 + argc :])
        self.stdio = stdio

    def close(self) -> None:
        """Let go of its descriptors."""
        shut(*self.stdio)


class Worker:
    """A worker that has been forked; gone from the nursery's books when nothing is left, or when its exec failed."""

    __slots__ = ("exited", "key", "pid", "report")

    def __init__(self, key: str, pid: int, report: int) -> None:
        self.key = key
        self.pid = pid
        self.report = report
        """Read end of the pipe that says how exec went. Closed, and out of `Spawner.starting`, once that is known."""
        self.exited = False


class Spawner:
    """Forks workers and keeps the list of them. What `zygote_client.py` needs of the nursery, and no more."""

    def __init__(
        self, descendants: Descendants, poll: select.poll, inherited: Sequence[int], report: Callable[..., None]
    ) -> None:
        """`poll` is the nursery's; `inherited`: signals that workers get at their defaults; `report` sends a line to
        the agent."""
        self.descendants = descendants
        self.poll = poll
        self.inherited = inherited
        self.report = report
        self.workers: dict[int, Worker] = {}
        """By pid."""
        self.starting: dict[int, Worker] = {}
        """Those whose exec is not known to have gone well or badly, by the pipe that will say so."""

    def start(self, launch: Launch) -> None:
        """Fork one worker; `settle` reads how its exec went."""
        ends: list[int] = []
        try:
            ends += os.pipe()
            pid = os.fork()
        except OSError as error:
            self.report("unborn", launch.key, f"{error.strerror}: cannot fork")
            shut(*ends)
            launch.close()
            return
        if pid == 0:
            become(launch, ends[1], self.inherited, self.descendants)
        shut(ends[1])
        launch.close()
        self.adopt(launch.key, pid, ends[0])

    def adopt(self, key: str, pid: int, report: int) -> None:
        """List a child; the pipe `report` will say whether it became a worker."""
        self.workers[pid] = self.starting[report] = Worker(key, pid, report)
        self.poll.register(report, select.POLLIN)

    def settle(self, worker: Worker) -> None:
        """Read how exec went: the pipe closes itself on success, and holds the reason otherwise."""
        reason = os.read(worker.report, REASON_BYTES)
        self.poll.unregister(worker.report)
        os.close(worker.report)
        del self.starting[worker.report]
        if reason:
            del self.workers[worker.pid]
            self.report("failed", worker.key, reason.decode())
        else:
            self.report("started", worker.key, worker.pid)


def shut(*fds: int) -> None:
    """Close those that are descriptors."""
    for fd in fds:
        if fd >= 0:
            os.close(fd)


def become(
    launch: Launch, report: int, inherited: Sequence[int], descendants: Descendants, *, apart: bool = False
) -> NoReturn:
    """Become the worker; if that cannot be, write why to `report`, which exec closes, and exit 127.

    `inherited` are the signals to set to their defaults; `apart`: it is not to be where workers are. Exec closes all
    descriptors but stdio. All signals are blocked until just before, so none is lost on the way.
    """
    where = ""
    nursery = os.getsid(0)  # it leads its session, and we are about to leave that
    try:
        os.setsid()
        descendants.libc.prctl(PR_SET_PDEATHSIG, int(_signal.SIGKILL), 0, 0, 0)
        if os.getppid() != nursery:
            os._exit(127)  # it died before the kernel knew that we care
        if not apart:
            descendants.admit()
        for signum in inherited:
            _signal.signal(signum, _signal.SIG_DFL)
        for target, fd in enumerate(launch.stdio, 1):
            if fd >= 0:
                os.dup2(fd, target)
        where = f": {os.fsdecode(launch.cwd)!r} (working directory)"
        os.chdir(launch.cwd)
        where = f": {os.fsdecode(launch.argv[0])!r}"
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
        execute(launch.argv, launch.env)
    except Exception as error:  # noqa: BLE001 (whatever it is, the agent must hear of it)
        said = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        text = f"{said}{where}".replace("\n", " ").encode(errors="backslashreplace")
        os.write(report, text[:REASON_BYTES])
    finally:
        os._exit(127)


def execute(argv: list[bytes], env: dict[bytes, bytes]) -> NoReturn:
    """execvpe(3) with the PATH of `env`. Raises what the first candidate that exists answered, else ENOENT."""
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
