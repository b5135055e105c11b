"""What is left of a run: processes, found by a mark in their environment; workers, by the locks that they hold."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from support.procfs import read

MARK = "ELASTIC_AGENT_CHAOS"


def locks_held(locks: Path, node: str) -> list[str]:
    """The workers of this node that are alive: each holds a lock of its own (`workers/obedient.py`)."""
    alive = []
    for path in locks.glob(f"{node}.*"):
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                alive.append(path.name)
    return alive


def marked_processes(token: str) -> list[int]:
    """Processes with this mark in their environment. A zombie has no environment and is not found."""
    mark = f"{MARK}={token}\0".encode()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and mark in read(f"/proc/{name}/environ")]
