"""How far the workers of the job around are: whether they stand still, and which of them makes the others wait."""

from __future__ import annotations

import time

from ...proto.durations import Durations
from ...proto.progress import Progress
from ..commands import NoAnswer
from ..decisions.hang import Finding, Mark, Patience, Standing, judge, look
from ..decisions.slow import Pace, straggler
from ..decisions.watches import Reading
from ..inside import Job
from ..table.kinds import LEARNED
from ..table.watch import Watch
from .reader import Reader, judged, not_yet

OUTPUT = "output"
"""The section of workers that show no progress but what they print."""
OUTPUT_LEAST_S = 60.0
OUTPUT_KNOWN = 100
"""Of output, which comes as a script likes, nothing is learned from fewer pauses, and no shorter limit."""
MISSED = 2.0
"""Of the time between two looks at most so many times what there should have been counts."""


class Stillness(Reader):
    """`hang` without a path: over while ranks stand still, by their own marks, else by the output of all."""

    def __init__(self, watch: Watch, job: Job | None = None) -> None:
        super().__init__(watch, job)
        self._standing: dict[int, Standing] = {}
        self._of_round = 0
        self._earlier: dict[str, Durations] = {}
        """What was learned in earlier rounds."""
        self._learned: dict[str, Durations] = {}
        """The same, with this round."""
        self.stands: tuple[int, ...] = ()
        """The ranks that stood still at the last look, the least advanced first."""

    def read(self, now: float) -> Reading:
        if self._job is None:
            raise NoAnswer("a hang without a path is watched by an agent only; give a path, or run it by --watch")
        if self._job.round != self._of_round:
            self._of_round, self._standing, self._earlier = self._job.round, {}, self._learned
        running = self._job.workers()
        if not running:
            self._standing, self.stands = {}, ()
            return not_yet("no worker of this node runs")
        marks = self._marks(self._job, running)
        self._standing = look(self._standing, marks, now, MISSED * self._watch.every_s)
        finding = self._judged()
        self.stands = finding.stands
        return judged(bool(finding.stands), finding.because)

    def _marks(self, job: Job, running: dict[int, int]) -> dict[int, Mark]:
        progress = {rank: each for rank, each in job.progress().items() if rank in running}
        if progress:
            self._learned = _together(self._earlier, progress)
            now_s = time.monotonic()
            return {rank: Mark(each.section, each.marks, now_s - each.at_s) for rank, each in progress.items()}
        written = {rank: size for rank, size in job.written().items() if rank in running}
        total, first = sum(written.values()), min(running)
        before = self._standing.get(first)
        if before is not None and before.mark.number and before.mark.number != total:
            known = self._learned.get(OUTPUT, Durations())
            self._learned = {**self._learned, OUTPUT: known.with_one(before.still_s)}
        return {first: Mark(OUTPUT, total)}

    def _judged(self) -> Finding:
        if self._threshold.side == LEARNED:
            least_s, known = self._watch.least_s, 1
            if any(each.mark.section == OUTPUT for each in self._standing.values()):
                least_s, known = max(least_s, OUTPUT_LEAST_S), OUTPUT_KNOWN
            return judge(self._standing, self._learned, Patience(least_s, known, self._watch.most_s))
        return judge(self._standing, {}, Patience(0.0, unknown_s=self._threshold.value))


def _together(earlier: dict[str, Durations], progress: dict[int, Progress]) -> dict[str, Durations]:
    """What all ranks have learned, by section."""
    learned = dict(earlier)
    for each in progress.values():
        for section, times in each.sections.items():
            learned[section] = learned.get(section, Durations()).plus(times)
    return learned


class Slow(Reader):
    """`slow`: over while one rank costs the others the threshold's share of the time, or more."""

    def __init__(self, watch: Watch, job: Job | None = None) -> None:
        super().__init__(watch, job)
        self._before: tuple[int, dict[int, Progress]] = (0, {})

    def read(self, now: float) -> Reading:
        if self._job is None:
            raise NoAnswer("slow ranks are found by an agent only; run the watch by --watch")
        progress = self._job.progress()
        number, before = self._before
        self._before = (self._job.round, progress)
        if not progress:
            return not_yet("no worker shows its steps; elastic_agent.worker does")
        if number != self._job.round:
            return not_yet("measuring the steps of each rank")
        paces = {rank: _pace(before[rank], each) for rank, each in progress.items() if rank in before}
        found = straggler(paces)
        if found is None:
            return not_yet("too few steps, or only one rank on this node")
        return judged(100.0 * found.lost >= self._threshold.value, f"{found.text} (limit {self._threshold.text})")


def _pace(before: Progress, after: Progress) -> Pace:
    steps = after.steps - before.steps
    if steps <= 0:
        return Pace(0, 0.0, 0.0)
    spent_s = after.stepped_s - before.stepped_s
    return Pace(steps, spent_s / steps, (after.own_s - before.own_s) / steps)
