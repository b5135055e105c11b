"""The nursery's side of the process that serves the workers' store: forks it, notices its end, kills it. Part of the
nursery, and loaded only when the first client of a store connects."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import select

from .descendants import SIGKILL, die_with
from .spawn import REASON_BYTES, Spawner, close_fds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

PR_SET_NAME = 15
"""From <linux/prctl.h>."""


class StoreProcess:
    """The process that serves the store of one round."""

    def __init__(self, spawner: Spawner, number: str, listener: int) -> None:
        """Fork it, to serve a socket that listens. `number`: the round's, which the report of its end repeats. Raises
        OSError or ImportError if it cannot be started."""
        # Imported here and not by the child: a later round needs the same code, whatever is installed by then.
        from ..worker_store.server import serve

        self.spawner = spawner
        self.number = number
        nursery = os.getpid()
        self.fd, end = os.pipe()
        """The pipe whose end shows the end of the process, to be polled; -1: it has ended."""
        try:
            self.pid = os.fork()
        except OSError:
            close_fds(self.fd, end)
            raise
        if self.pid == 0:
            self.become(serve, listener, end, nursery)
        os.close(end)
        spawner.descendants.excluded.add(self.pid)
        spawner.poll.register(self.fd, select.POLLIN)

    def receive(self) -> None:
        """Report that it has died: it never ends by itself."""
        reason = os.read(self.fd, REASON_BYTES).decode()
        code = self.reap()
        how = f"it was killed by signal {-code}" if code < 0 else f"it exited with code {code}"
        self.spawner.report("store_ended", self.number, reason or how)

    def become(self, serve: Callable[[int], None], listener: int, end: int, nursery: int) -> NoReturn:
        """Serve for as long as the nursery lives; write the reason for another end to `end`."""
        libc = self.spawner.descendants.libc
        try:
            die_with(nursery, libc)
            libc.prctl(PR_SET_NAME, b"elastic-store", 0, 0, 0)
            _signal.set_wakeup_fd(-1)
            close_all_but(0, 1, 2, listener, end)
            serve(listener)
        except BaseException as error:  # noqa: BLE001 (whatever it is, the agent must receive the reason)
            what = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            os.write(end, str(what).replace("\n", " ").encode(errors="backslashreplace")[:REASON_BYTES])
        finally:
            os._exit(1)

    def close(self) -> None:
        """Kill the process; its port is closed when this returns. Does nothing if it has died."""
        if self.fd >= 0:
            os.kill(self.pid, SIGKILL)
            self.reap()

    def reap(self) -> int:
        """Wait for the process, which is about to exit; return its exit code."""
        self.spawner.poll.unregister(self.fd)
        os.close(self.fd)
        self.fd = -1
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.spawner.descendants.excluded.discard(self.pid)
        return code


def close_all_but(*kept: int) -> None:
    """Close every other descriptor."""
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in kept:
            try:
                os.close(number)
            except OSError:
                pass  # the one that listed them
