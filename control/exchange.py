"""What a command prints, until it has ended, and no more of it than is wanted."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from typing import IO

OUTPUT_MAX = 1 << 20
"""Bytes of each stream that are kept; the rest is read, and dropped."""
PART_BYTES = 1 << 16
NONE = -1


def exchange(process: subprocess.Popen[str], stdin: str, limit_s: float) -> tuple[str, str]:
    """Give it this input. Returns what it printed to stdout and stderr, once it has ended. Raises TimeoutExpired.

    `Popen.communicate` keeps all that a command prints, and waits for whatever else has its pipes, such as what a
    script leaves in the background.
    """
    deadline = time.monotonic() + limit_s
    exit_fd = _exit_fd(process.pid)
    try:
        with selectors.DefaultSelector() as ready:
            if exit_fd != NONE:
                ready.register(exit_fd, selectors.EVENT_READ)
            printed = _Pipes(process, ready, stdin).move_until(exit_fd, deadline)
    finally:
        if exit_fd != NONE:
            os.close(exit_fd)
    process.wait(max(0.0, deadline - time.monotonic()))
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    return printed


def _exit_fd(pid: int) -> int:
    """Readable once the process has ended; NONE on a kernel before 5.3, where the end of its output shows that."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return NONE


class _Pipes:
    """The pipes of a process: what is yet to be written, and what was read."""

    def __init__(self, process: subprocess.Popen[str], ready: selectors.BaseSelector, stdin: str) -> None:
        self._process, self._ready = process, ready
        self._unsent = stdin.encode("utf-8", "replace")
        self._read: dict[int, bytearray] = {}
        for pipe in (process.stdout, process.stderr):
            self._register(pipe, selectors.EVENT_READ)
        self._register(process.stdin, selectors.EVENT_WRITE)

    def _register(self, pipe: IO[str] | None, event: int) -> None:
        if pipe is None:
            raise AssertionError("a command has three pipes")
        os.set_blocking(pipe.fileno(), False)
        self._ready.register(pipe.fileno(), event)
        if event == selectors.EVENT_READ:
            self._read[pipe.fileno()] = bytearray()

    def move_until(self, exit_fd: int, deadline: float) -> tuple[str, str]:
        """What was printed until the process has ended, or has closed its output. Raises TimeoutExpired."""
        ended, shows_end = False, self._read if exit_fd == NONE else (exit_fd,)
        while not ended and any(fd in self._ready.get_map() for fd in shows_end):
            left_s = deadline - time.monotonic()
            found = [key.fd for key, _ in self._ready.select(max(0.0, left_s))]
            if left_s <= 0:
                raise subprocess.TimeoutExpired(self._process.args, 0.0)
            ended = exit_fd in found
            for fd in found:
                if fd != exit_fd:
                    self._take(fd) if fd in self._read else self._give(fd)
        for fd in self._read:
            if fd in self._ready.get_map():
                self._take(fd)  # once: a pipe holds no more, and who else has it may write on
        out, err = (bytes(each).decode("utf-8", "replace") for each in self._read.values())
        return out.replace("\r\n", "\n"), err.replace("\r\n", "\n")

    def _take(self, fd: int) -> None:
        try:
            part = os.read(fd, OUTPUT_MAX)
        except BlockingIOError:
            return
        if not part:
            self._ready.unregister(fd)
        kept = self._read[fd]
        kept += part[: OUTPUT_MAX - len(kept)]

    def _give(self, fd: int) -> None:
        try:
            sent = os.write(fd, self._unsent[:PART_BYTES])
        except BrokenPipeError:
            sent = len(self._unsent)  # it reads no more
        self._unsent = self._unsent[sent:]
        if not self._unsent:
            self._ready.unregister(fd)
            if self._process.stdin is not None:
                self._process.stdin.close()
                self._process.stdin = None
