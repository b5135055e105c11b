"""How far the workers of the job around are: whether they stand still, and which of them makes the others wait."""

from __future__ import annotations

import time
from math import isfinite
from typing import Any

from ...proto.durations import Durations
from ...proto.progress import Progress
from ..commands import NoReading
from ..decisions import ranks_elsewhere
from ..decisions.hang import Finding, LimitBounds, Mark, Standing, judge, look
from ..decisions.questions import PACES, STANDING
from ..decisions.slow import Counts, pace, straggler
from ..decisions.watches import Reading
from ..job_view import Answers, JobView
from ..table.kinds import LEARNED
from ..table.watch import Watch
from .reader import Reader, judged, not_yet

OUTPUT = "output"
"""The section of workers that show no progress but what they print."""
BEFORE_OUTPUT = "start-up"
"""The section of such workers until one of them has printed in this round: they import, and load what a start loads."""
OUTPUT_LEAST_S = 600.0
OUTPUT_KNOWN = 100
"""Of output, which comes as a script likes, nothing is learned from fewer pauses, and no shorter limit: a script that
prints all the time may be silent through its first evaluation, or save."""
PACES_S = 5.0
"""How long the nodes have to answer how far their ranks are."""
STANDING_S, STANDING_AGAIN_S = 5.0, 10.0
"""How long the nodes have to answer where their ranks are, and how long that is believed."""
MISSED = 2.0
"""Of the time between two looks at most so many times what there should have been counts."""


class Stillness(Reader):
    """`hang` without a path: over while ranks stand still, by their own marks, else by the output of all."""

    def __init__(self, watch: Watch, job: JobView | None = None) -> None:
        super().__init__(watch, job)
        self._standing: dict[int, Standing] = {}
        self._of_round = 0
        self._earlier: dict[str, Durations] = {}
        """What was learned in earlier rounds."""
        self._learned: dict[str, Durations] = {}
        """The same, with this round."""
        self._by_output = False
        """No worker of this node shows progress."""
        self.stands: tuple[int, ...] = ()
        """The ranks that stood still at the last look, the least advanced first."""

    def read(self, now: float) -> Reading:
        if self._job is None:
            raise NoReading("a hang without a path is watched by an agent only; give a path, or run it by --watch")
        if self._job.round != self._of_round:
            self._of_round, self._standing, self._earlier = self._job.round, {}, self._learned
        running = self._job.workers()
        if not running:
            self._standing, self.stands = {}, ()
            return not_yet("no worker of this node runs")
        marks = self._marks(self._job, running)
        self._standing = look(self._standing, marks, now, MISSED * self._watch.every_s)
        finding = self._judged(self._standing, self._learned)
        if finding.stands and self._job.nodes > 1 and not self._by_output:
            # In the words of this node, unless it is to wait for another.
            with_others = self._judged_with_others(self._job)
            finding = finding if with_others.stands else with_others
        self.stands = finding.stands
        return judged(bool(finding.stands), finding.because)

    def _marks(self, job: JobView, running: dict[int, int]) -> dict[int, Mark]:
        progress = {rank: each for rank, each in job.progress().items() if rank in running}
        self._by_output = not progress
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
        return {first: Mark(OUTPUT if total else BEFORE_OUTPUT, total)}

    def _judged_with_others(self, job: JobView) -> Finding:
        """Ranks of other nodes may be where these have to wait for them."""
        found, _ = job.conclude(
            STANDING,
            {},
            STANDING_S,
            lambda answers: ranks_elsewhere.summed_up(answers.found.values()),
            STANDING_AGAIN_S,
        )
        others, learned = ranks_elsewhere.read(found)
        return self._judged({**others, **self._standing}, {**learned, **self._learned})

    def _judged(self, ranks: dict[int, Standing], learned: dict[str, Durations]) -> Finding:
        if self._threshold.side == LEARNED:
            least_s, known = self._watch.least_s, 1
            if self._by_output:
                least_s, known = max(least_s, OUTPUT_LEAST_S), OUTPUT_KNOWN
            return judge(ranks, learned, LimitBounds(least_s, known, self._watch.most_s))
        return judge(ranks, {}, LimitBounds(0.0, unknown_s=self._threshold.value))


def _together(earlier: dict[str, Durations], progress: dict[int, Progress]) -> dict[str, Durations]:
    """What all ranks have learned, by section."""
    learned = dict(earlier)
    for each in progress.values():
        for section, times in each.sections.items():
            learned[section] = learned.get(section, Durations()).plus(times)
    return learned


class Slow(Reader):
    """`slow`: over while one rank costs the others the threshold's share of the time, or more. One node compares the
    ranks of all nodes, unless each is to compare its own."""

    def __init__(self, watch: Watch, job: JobView | None = None) -> None:
        super().__init__(watch, job)
        self._before: tuple[int, dict[int, Counts]] = (0, {})

    def read(self, now: float) -> Reading:
        if self._job is None:
            raise NoReading("slow ranks are found by an agent only; run the watch by --watch")
        several = self._watch.whole_job and self._job.nodes > 1
        number, before = self._before
        answers = self._job.ask_nodes(PACES, {}, PACES_S) if several else Answers({"": shown_paces(self._job)})
        nodes, counts = _counts(self._job, answers, several)
        self._before = (self._job.round, counts)
        if not counts:
            return not_yet("no worker reports its steps; a Run of elastic_agent.worker does")
        if number != self._job.round:
            return not_yet("measuring the steps of each rank")
        paces = {rank: pace(before[rank], each) for rank, each in counts.items() if rank in before}
        found = straggler(paces, nodes if several else {})
        silent = f"; no answer from {answers.silent[0]}" if answers.silent else ""
        silent += f" and {len(answers.silent) - 1} more" if len(answers.silent) > 1 else ""
        if found is None:
            return not_yet(f"too few steps, or only one rank to compare{silent}")
        return judged(
            100.0 * found.lost >= self._threshold.value, f"{found.text} (limit {self._threshold.text}){silent}"
        )


def shown_standing(job: JobView) -> dict[str, Any]:
    """A node's answer: in which sections its ranks are, as `decisions/ranks_elsewhere.py` says."""
    progress, now_s = job.progress(), time.monotonic()
    last: dict[str, int] = {}
    for rank, each in sorted(progress.items()):
        if each.section and (each.section not in last or each.at_s > progress[last[each.section]].at_s):
            last[each.section] = rank
    found = {}
    for section, rank in last.items():
        times = Durations()
        for each in progress.values():
            times = times.plus(each.sections.get(section, Durations()))
        found[section] = ranks_elsewhere.row(rank, max(0.0, now_s - progress[rank].at_s), times)
    return {"sections": found}


def shown_paces(job: JobView) -> dict[str, Any]:
    """A node's answer: what each of its ranks has counted."""
    return {"ranks": {str(rank): [each.steps, each.stepped_s, each.own_s] for rank, each in job.progress().items()}}


def _counts(job: JobView, answers: Answers, several: bool) -> tuple[dict[int, str], dict[int, Counts]]:
    """(node by rank, what it has counted); what a node says of ranks of others is left out."""
    nodes, counts = {}, {}
    for node, answer in answers.found.items():
        shown = answer.get("ranks")
        for text, row in shown.items() if isinstance(shown, dict) else ():
            rank = int(text) if text.isdecimal() else -1
            if several and rank not in job.ranks_of(node):
                continue
            match row:
                case [int(steps), float() | int() as stepped_s, float() | int() as own_s] if isfinite(
                    stepped_s + own_s
                ):
                    counts[rank] = Counts(steps, stepped_s, own_s)
                    if several:
                        nodes[rank] = node
    return nodes, counts
