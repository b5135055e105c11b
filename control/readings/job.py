"""Whether the job runs, and whether it moves: SLURM's queue, processes, the age of a log or heartbeat file."""

from __future__ import annotations

import time

from ...proto.durations import Durations
from ...rendezvous.text import count, duration
from ..decisions import hang
from ..decisions.watches import Reading
from ..job_view import JobView
from ..table.kinds import LEARNED
from ..table.watch import Watch
from . import in_store
from .reader import AskingReader, judged, not_yet

KNOWN = 20
"""Of fewer changes of a file no limit is learned."""
SQUEUE_S = 30.0
"""How long squeue may take; a controller that is busy answers late."""


class JobReader(AskingReader):
    """`job`: over while it neither runs nor waits, by its run id in its store, by the name of its
    SLURM jobs, or by its processes; of several, by none."""

    def read(self, now: float) -> Reading:
        looked = []
        if self._watch.process or (self._job is not None and not self._watch.job and not self._watch.store):
            found = self._processes()
            if found:
                return judged(False, f"pid {found[0]} runs" if len(found) == 1 else f"{len(found)} processes run")
            looked.append(f"no {self._whose}")
        if self._watch.job:
            argv = ("squeue", "--noheader", "--me", "--name", self._watch.job, "--format", "%i %T %r")
            lines = self._asker.run(argv, SQUEUE_S).splitlines()
            if lines:
                return judged(False, f"SLURM job {lines[0].strip()}")
            looked.append(f"no SLURM job named {self._watch.job!r} runs or is queued")
        if self._watch.store:
            if in_store.runs(self._watch.store, self._watch.run_id):
                return judged(False, f"job {self._watch.run_id!r} has nodes in {self._watch.store}")
            looked.append(f"no node of job {self._watch.run_id!r} is in {self._watch.store}")
        return judged(True, " and ".join(looked))


class Hang(AskingReader):
    """`hang`: how long the newest of the files has not changed. Under while no process of the job runs."""

    def __init__(self, watch: Watch, job: JobView | None = None) -> None:
        super().__init__(watch, job)
        self._last: list[float] = []
        self._changed_at = 0.0
        self._gaps = Durations()

    def read(self, now: float) -> Reading:
        if (self._watch.process or self._job is not None) and not self._processes():
            self._last = []
            return judged(False, f"no {self._whose}: the job does not run")
        answer = self._asker.ask("newest", self._watch.path)
        if not answer:
            return not_yet(f"no file {self._watch.path} yet")
        if answer[0] != self._last:
            # The clock of a file server may be another: only the first look believes it.
            age_s = 0.0 if self._last else max(0.0, time.time() - answer[0][0])
            if self._last:
                self._gaps = self._gaps.with_one(now - self._changed_at)
            self._changed_at, self._last = now - age_s, answer[0]
        age_s = now - self._changed_at
        limit_s = self._threshold.value
        limit = self._threshold.text
        if self._threshold.side == LEARNED:
            limit_s = hang.limit_s(self._gaps, hang.LimitBounds(self._watch.least_s, KNOWN, self._watch.most_s))
            limit = f"{duration(limit_s)}, learned from {count(self._gaps.count, 'change')}"
        text = f"{self._watch.path} has not changed for {duration(age_s)} (limit {limit})"
        return judged(age_s >= limit_s, text)
