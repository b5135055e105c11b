"""What crosses between agent and nursery: orders as frames, facts as lines.

* to the nursery, frames (`agent/nursery/frames.py`): `start KEY TO_COME HAS_STDOUT HAS_STDERR CWD ARGC ARGV...
  NAME=VALUE...`, `fork` with the same fields, `preload MODULES PER_ROUND CWD ARGC ARGV... NAME=VALUE...`, `signal N`,
  `forward N`, `kill_group KEY`, `kill`;
* from it, lines: `nursery PID CGROUP`, `started KEY PID`, `failed KEY REASON`, `unborn KEY REASON`,
  `exited KEY PID CODE DUMPED`, `emptied`, `unheard KEY N`, `preloaded SECONDS RSS_KIB PSS_KIB MODULES`,
  `unpreloaded REASON`, `note TEXT`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import UsageError

MARK = "ELASTIC_AGENT_NURSERY"
"""Variable in every worker's environment and the nursery's. By its value the agent finds what is left of a nursery that
died together with its guardian."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One worker to start. Strings may hold no NUL."""

    key: int
    """The worker's name in all facts: its local rank."""
    argv: tuple[str, ...]
    """Looked up on the PATH of `env` if its first word has no slash."""
    env: Mapping[str, str]
    """All of the worker's environment; `MARK` is added."""
    cwd: str
    """Absolute."""
    stdout_fd: int | None = None
    """Becomes the worker's stdout; the caller may close it once `start` returned. None: the agent's own."""
    stderr_fd: int | None = None
    forked: bool = False
    """Whether it may be forked with modules imported; then `argv` is `python -u [-m] SCRIPT ...`. See `preload`."""


def encode(launch: Launch, to_come: int, mark: str) -> bytes:
    """The frame's fields; `mark` is NAME=VALUE. Raises UsageError if one holds a NUL."""
    words = described(launch, mark)
    verb = b"fork" if launch.forked else b"start"
    has = [b"0" if fd is None else b"1" for fd in (launch.stdout_fd, launch.stderr_fd)]
    return b"\0".join([verb, b"%d" % launch.key, b"%d" % to_come, *has, *map(os.fsencode, words)])


def described(launch: Launch, mark: str) -> list[str]:
    words = [launch.cwd, str(len(launch.argv)), *launch.argv, *(f"{k}={v}" for k, v in launch.env.items() if k != MARK)]
    words.append(mark)
    if at := next((word for word in words if "\0" in word), None):
        raise UsageError(f"worker {launch.key} cannot start: {at!r} holds a NUL character; take it out")
    return words


def fds_of(launch: Launch) -> list[int]:
    return [fd for fd in (launch.stdout_fd, launch.stderr_fd) if fd is not None]
