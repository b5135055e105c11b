"""One host, one agent, no store; and which of its processes live."""

from __future__ import annotations

import os
import time
from pathlib import Path

from support.desk import WORKER, Desk
from support.harness import ProcessNode
from support.procfs import wait_exit

SLOW_GRACE_S = 60


class Host:
    """One host, one agent, no store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.desk = Desk(folder)
        self._nodes: list[ProcessNode] = []

    def start(self, *flags: str, **env: str) -> ProcessNode:
        base = {
            **os.environ,
            "TEST_NODE": "one",
            "TEST_DESK": self.desk.path,
            "LOGLEVEL": "INFO",
            "OMP_NUM_THREADS": "1",
        }
        logs = ("--log-dir", str(self.folder / "logs"))
        node = ProcessNode("one", ["--standalone", *logs, *flags, WORKER], {**base, **env}, self.folder)
        self._nodes.append(node)
        return node

    def close(self) -> None:
        for node in self._nodes:
            node.end()
        self.desk.close()


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def spawned(host: Host, worker_index: int = 0) -> int:
    """Have a worker start a child that outlives it; return the child's pid."""
    worker = host.desk.workers[worker_index]
    worker.order("spawn")
    lines = host.desk.wait(lambda: [line for line in worker.sent if line.startswith("spawned")], "a child")
    return int(lines[0].split()[1])


def wait_gone(pids: list[int], bound_s: float) -> None:
    deadline = time.monotonic() + bound_s
    for pid in pids:
        wait_exit(pid, deadline)
    assert not [pid for pid in pids if alive(pid)]
