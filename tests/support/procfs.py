"""Reading /proc, and waiting for processes, when a process may exit at any moment."""

from __future__ import annotations

import os
import select
import time

TOKEN = "ELASTIC_AGENT_TEST"
"""Environment variable that marks a test's processes, so that they are found also after their parents exited."""


def read(path: str) -> bytes:
    """The file's content; empty where its process is gone or another user's."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def parent_of(pid: int) -> int:
    """The pid of its parent."""
    return int(read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[1])


def wait_exit(pid: int, deadline: float) -> None:
    """Wait until a process exits, or until `deadline` on the monotonic clock."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
    finally:
        os.close(pidfd)
