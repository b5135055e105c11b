"""What processes under test tell as they go: a line of JSON each, through a named pipe, so that nobody looks twice."""

from __future__ import annotations

import json
import os
import select
import time
from pathlib import Path
from typing import Any

BOUND_S = 100.0


class Reports:
    """The reading end, made before the processes that write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        # Open for writing too, so that it has no end while nobody else holds it.
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._buffer = b""

    def next(self, pid: int = 0, bound_s: float = BOUND_S) -> Any:
        """The next line. Fails where none comes within the bound, or before this process ends."""
        deadline_s = time.monotonic() + bound_s
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        ended = os.pidfd_open(pid) if pid else -1
        if pid:
            poll.register(ended, select.POLLIN)
        try:
            while b"\n" not in self._buffer:
                ready = [fd for fd, _ in poll.poll(max(0.0, deadline_s - time.monotonic()) * 1e3)]
                assert ready, f"nothing was told through {self.path} for {bound_s:g} s"
                assert self._descriptor in ready, f"process {pid} ended, and what was waited for did not come"
                self._buffer += os.read(self._descriptor, 65536)
        finally:
            if pid:
                os.close(ended)
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def close(self) -> None:
        os.close(self._descriptor)


def tell(path: str | os.PathLike[str], what: Any) -> None:
    """Write a line; lines of less than 4 KiB never mix."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, json.dumps(what).encode() + b"\n")
    finally:
        os.close(descriptor)
