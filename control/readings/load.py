"""Processor time of processes that are not the job's."""

from __future__ import annotations

import os

from ..decisions.watches import Reading
from ..job_view import JobView
from ..table.watch import Watch
from .processes import Stat, pids, stat
from .reader import Reader, judged, not_yet

KTHREADD = 2
"""The parent of the kernel's own threads."""


class Load(Reader):
    """`load`: cores that others use, between two looks. What started and ended between them is not seen."""

    def __init__(self, watch: Watch, job: JobView | None = None) -> None:
        super().__init__(watch, job)
        self._before: tuple[float, dict[tuple[int, int], float]] | None = None

    def read(self, now: float) -> Reading:
        cores = self.cores(now)
        if cores is None:
            return not_yet("measuring the load of others")
        text = f"others use {sum(cores.values()):.1f} cores"
        if cores:
            busiest = max(cores, key=lambda pid: cores[pid])
            found = stat(busiest)
            text += (
                f", most of them {found.name if found else 'one that ended'} (pid {busiest}) with {cores[busiest]:.1f}"
            )
        return judged(sum(cores.values()) >= self._threshold.value, f"{text} (limit {self._threshold.text})")

    def cores(self, now: float) -> dict[int, float] | None:
        """Cores that each foreign process has used since the last call; None at the first."""
        stats = {pid: found for pid in pids() if (found := stat(pid))}
        before, self._before = self._before, (now, {(each.pid, each.started): each.cpu_s for each in stats.values()})
        if before is None or now <= before[0]:
            return None
        # This process and its helpers are not the job's, but not worth an alarm either.
        jobs = _families(stats, {*self._processes(), os.getpid()})
        return {
            pid: (each.cpu_s - before[1].get((pid, each.started), 0.0)) / (now - before[0])
            for pid, each in stats.items()
            if pid not in jobs and KTHREADD not in (pid, each.parent)
        }


def _families(stats: dict[int, Stat], roots: set[int]) -> set[int]:
    """These processes and all below them."""
    children: dict[int, list[int]] = {}
    for each in stats.values():
        children.setdefault(each.parent, []).append(each.pid)
    found, waiting = set(), list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, [])
    return found
