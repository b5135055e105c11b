"""The nursery's side of the workers' store: holds its port, and forks the process that serves it when the first client
connects. So a job that never opens the store pays for a descriptor, and no start waits for a server. Part of the
nursery, and loaded only where a round's store is served."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import select

from .descendants import SIGKILL
from .spawn import PR_SET_PDEATHSIG, REASON_BYTES, Spawner, close_fds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

PR_SET_NAME = 15
"""From <linux/prctl.h>."""


class StoreProcess:
    """The store of one round, from the order to serve it until `close`, or until its process has died."""

    def __init__(self, spawner: Spawner, number: str, listener: int) -> None:
        """`number`: the round's, which reports repeat; `listener`: a TCP socket that listens, which becomes ours."""
        self.spawner = spawner
        self.number = number
        self.pid = 0
        """Of the process; 0 before the first connection, and after its end."""
        self.fd = listener
        """The descriptor to poll: the socket, then the pipe whose end shows the end of the process; -1: closed."""
        spawner.poll.register(listener, select.POLLIN)

    def receive(self) -> None:
        """Start the process, as a client connects; or report that it has died."""
        if not self.pid:
            self.start()
            return
        reason = os.read(self.fd, REASON_BYTES).decode()
        code = self.reap()
        self.report(reason or (f"it was killed by signal {-code}" if code < 0 else f"it exited with code {code}"))

    def start(self) -> None:
        """Fork the process that serves the store; it takes the socket over."""
        ends: list[int] = []
        listener, self.fd = self.fd, -1
        self.spawner.poll.unregister(listener)
        nursery = os.getpid()
        try:
            # Imported here and not by the child: a later round needs the same code, whatever is installed by then.
            from ..worker_store.server import serve

            ends += os.pipe()
            self.pid = os.fork()
        except (OSError, ImportError) as error:
            close_fds(listener, *ends)
            self.report(f"{error}: it cannot be started")
            return
        if self.pid == 0:
            self.become(serve, listener, ends[1], nursery)
        close_fds(listener, ends[1])
        self.fd = ends[0]
        self.spawner.descendants.excluded.add(self.pid)
        self.spawner.poll.register(self.fd, select.POLLIN)

    def become(self, serve: Callable[[int], None], listener: int, end: int, nursery: int) -> NoReturn:
        """Serve for as long as the nursery lives; write the reason for another end to `end`."""
        libc = self.spawner.descendants.libc
        try:
            libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
            if os.getppid() != nursery:
                os._exit(0)  # it exited before prctl took effect
            libc.prctl(PR_SET_NAME, b"elastic-store", 0, 0, 0)
            _signal.set_wakeup_fd(-1)
            close_all_but(0, 1, 2, listener, end)
            serve(listener)
        except BaseException as error:  # noqa: BLE001 (whatever it is, the agent must receive the reason)
            what = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            os.write(end, str(what).replace("\n", " ").encode(errors="backslashreplace")[:REASON_BYTES])
        finally:
            os._exit(1)

    def report(self, reason: str) -> None:
        """Report the end of the process, once."""
        self.spawner.report("store_ended", self.number, reason)

    def close(self) -> None:
        """Close the port, and kill the process that serves it. Does nothing if it has died."""
        if self.fd < 0:
            return
        if self.pid:
            os.kill(self.pid, SIGKILL)
            self.reap()
        else:
            self.release()

    def reap(self) -> int:
        """Wait for the process, which is about to exit; return its exit code."""
        self.release()
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.spawner.descendants.excluded.discard(self.pid)
        self.pid = 0
        return code

    def release(self) -> None:
        """Close the descriptor."""
        self.spawner.poll.unregister(self.fd)
        os.close(self.fd)
        self.fd = -1


def close_all_but(*kept: int) -> None:
    """Close every other descriptor."""
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in kept:
            try:
                os.close(number)
            except OSError:
                pass  # the one that listed them
