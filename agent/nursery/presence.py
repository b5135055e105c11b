"""The presence of an agent: a file in this host's memory, locked as long as the agent or a nursery of it lives.

The agent makes it (`agent/processes/neighbours.py`); the nursery gets the open file along with the fence, and holds it
for as long as a worker may run below it. Lines name the processes: a header, then `PID START MARK` of the agent, and
of each guardian and nursery. Part of the nursery; imports as little as it does.
"""

from __future__ import annotations

import os

from .descendants import stat_of

MARK = b"ELASTIC_AGENT_NURSERY"
"""As in `agent/processes/nursery_process.py`."""


def enter(fd: int) -> None:
    """Name this process, which is a nursery, and its guardian. Raises OSError."""
    mark = os.environb.get(MARK, b"-")
    os.write(fd, line(os.getpid(), mark) + line(os.getppid(), mark))


def line(pid: int, mark: bytes = b"-") -> bytes:
    """The line of a process. `mark`: in its environment and in those of all processes that it starts; `-`: none."""
    return b"%d %d %s\n" % (pid, started(pid), mark)


def started(pid: int) -> int:
    """When it was started, in the kernel's ticks since the boot, which tells it from another one that gets its number;
    0 if it has exited."""
    _, fields = stat_of(pid)
    return int(fields[19]) if fields and fields[0] not in (b"Z", b"X") else 0
