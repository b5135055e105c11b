"""Takes a secret out of this process's environment, and out of what the kernel shows as that: `/proc/PID/environ`.

That file is the memory in which execve(2) put the environment (proc(5), env_start and env_end in `/proc/PID/stat`).
No function of the C library writes there: unsetenv(3) only drops the pointer. Many tools read it: `ps e`, crash
reporters, monitoring.
"""

from __future__ import annotations

import os

ENV_START, ENV_END = 50 - 3, 51 - 3
"""Indexes among the fields of `/proc/PID/stat` that follow the program's name, as numbered in proc(5) from 1."""


def take(name: str) -> tuple[str | None, str]:
    """Remove the variable; returns its value (None: it was not set), and why the kernel goes on to show it (empty: it
    does not). Processes started from now on do not have it in any case."""
    value = os.environ.pop(name, None)
    if value is not None:
        try:
            _overwrite(os.fsencode(name) + b"=")
        except OSError as error:  # no /proc, or one that lets no process write to its own memory
            return value, f"{error.filename or '/proc/self/mem'}: {error.strerror or error}"
    return value, ""


def _overwrite(begin: bytes) -> None:
    """Put zeros over each entry of the environment block that begins so."""
    with open("/proc/self/stat", "rb") as stat:
        fields = stat.read().rpartition(b")")[2].split()
    start, end = int(fields[ENV_START]), int(fields[ENV_END])
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(start)
        at = start
        for entry in memory.read(end - start).split(b"\0"):
            if entry.startswith(begin):
                memory.seek(at)
                memory.write(bytes(len(entry)))
            at += len(entry) + 1
