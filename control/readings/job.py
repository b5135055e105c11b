"""Whether the job runs, and whether it moves: SLURM's queue, processes, the age of a log or heartbeat file."""

from __future__ import annotations

import time

from ...rendezvous.text import duration
from ..decisions.watches import Reading
from ..table.watch import Watch
from .processes import matching
from .reader import AskingReader, judged, not_yet

SQUEUE_S = 30.0
"""How long squeue may take; a controller that is busy answers late."""


class Job(AskingReader):
    """`job`: over while it neither runs nor waits, by the name of its SLURM jobs, by its processes, or by both."""

    def read(self, now: float) -> Reading:
        looked = []
        if self._watch.process:
            found = matching(self._watch.process)
            if found:
                return judged(False, f"pid {found[0]} runs" if len(found) == 1 else f"{len(found)} processes run")
            looked.append(f"no process matches {self._watch.process!r}")
        if self._watch.job:
            argv = ("squeue", "--noheader", "--me", "--name", self._watch.job, "--format", "%i %T %r")
            lines = self._asker.run(argv, SQUEUE_S).splitlines()
            if lines:
                return judged(False, f"SLURM job {lines[0].strip()}")
            looked.append(f"no SLURM job named {self._watch.job!r} runs or is queued")
        return judged(True, " and ".join(looked))


class Hang(AskingReader):
    """`hang`: how long the newest of the files has not changed. Under while no process of the job runs."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._last: list[float] = []
        self._changed_at = 0.0

    def read(self, now: float) -> Reading:
        if self._watch.process and not matching(self._watch.process):
            self._last = []
            return judged(False, f"no process matches {self._watch.process!r}: the job does not run")
        answer = self._asker.ask("newest", self._watch.path)
        if not answer:
            return not_yet(f"no file {self._watch.path} yet")
        if answer[0] != self._last:
            # The clock of a file server may be another: only the first look believes it.
            age_s = 0.0 if self._last else max(0.0, time.time() - answer[0][0])
            self._changed_at, self._last = now - age_s, answer[0]
        age_s = now - self._changed_at
        text = f"{self._watch.path} has not changed for {duration(age_s)} (limit {self._threshold.text})"
        return judged(age_s >= self._threshold.value, text)
