"""Workers in uninterruptible sleep: nothing ends such a process, and nothing reports it, so somebody has to look.

As under torchrun (torch 2.13, `LocalElasticAgent`), only where TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT is set. There
the job then ends with exit status 0; here the node leaves it, because a new worker of this host would meet the same
driver or file server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from ...rendezvous.text import shorten

LOOK_S = 1.0
"""The longest time between two looks."""


class StuckWatch:
    """Looks at the workers' states on a thread of its own."""

    def __init__(self, limit_s: float, pids: Callable[[], Mapping[int, int]], on_stuck: Callable[[str], None]) -> None:
        """`pids`: process ids by local rank. `on_stuck` is called once, on the thread, with a sentence."""
        self._limit_s = limit_s
        self._pids = pids
        self._on_stuck = on_stuck
        self._since_s: dict[int, float] = {}
        """When each process was first seen so, if it has been ever since."""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="elastic-agent-stuck", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(min(LOOK_S, self._limit_s / 4)):
            now_s = time.monotonic()
            sleeping = {pid: rank for rank, pid in self._pids().items() if is_uninterruptible(pid)}
            self._since_s = {pid: self._since_s.get(pid, now_s) for pid in sleeping}
            for pid, since_s in self._since_s.items():
                if now_s - since_s >= self._limit_s:
                    self._on_stuck(
                        f"the worker with local rank {sleeping[pid]} (pid {pid}) has been in uninterruptible sleep "
                        f"(state D) for {now_s - since_s:.1f} s; the limit is {self._limit_s:g} s{_where(pid)}"
                    )
                    return


def is_uninterruptible(pid: int) -> bool:
    """Whether the process is in state D (proc_pid_stat(5)); False if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[:1] == [b"D"]
    except OSError:
        return False


def _where(pid: int) -> str:
    """The kernel function in which it sleeps, if this user may know; in a clause."""
    try:
        with open(f"/proc/{pid}/wchan", encoding="ascii", errors="replace") as file:
            name = shorten(file.read().strip(), 60)
    except OSError:
        return ""
    return f", in the kernel's {name}" if name not in ("", "0") else ""
