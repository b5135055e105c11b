"""What of a run is still there: processes by a mark in their environment, workers by the locks that they hold."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from support.procfs import read

MARK = "ELASTIC_AGENT_CHAOS"


def held(locks: Path, node: str) -> list[str]:
    """Workers of this node that live: each holds a lock of its own (`workers/obedient.py`)."""
    alive = []
    for path in locks.glob(f"{node}.*"):
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                alive.append(path.name)
    return alive


def marked(token: str) -> list[int]:
    """Processes that were started under this mark. A zombie has no environment and is not seen."""
    mark = f"{MARK}={token}\0".encode()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and mark in read(f"/proc/{name}/environ")]
