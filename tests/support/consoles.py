"""A replacement for the agent's console, for tests of workers' output."""

from __future__ import annotations

import os
from pathlib import Path

FINISH_S = 60.0
"""Bound on waits for an event; only a failing test takes so long."""


class Console:
    """A file in place of the agent's stdout, and another one for stderr."""

    def __init__(self, folder: Path) -> None:
        self._paths = [folder / "console.out", folder / "console.err"]
        self.fds = [os.open(path, os.O_RDWR | os.O_CREAT) for path in self._paths]

    @property
    def out(self) -> bytes:
        return self._paths[0].read_bytes()

    @property
    def err(self) -> bytes:
        return self._paths[1].read_bytes()

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
