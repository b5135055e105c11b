"""File systems: room, inodes, hours left, quotas, and whether they answer at all."""

from __future__ import annotations

import re

from ...rendezvous.text import duration
from ..commands import NoReading, TimedOut
from ..decisions import trend
from ..decisions.watches import Reading, ReadingResult
from ..job_view import JobView
from ..table.quantities import Dimension, quantity, size_text
from ..table.watch import Watch
from .reader import AskingReader, judged, not_yet, stock

QUOTA_S = 30.0
"""How long a quota's command may take."""
WALK_S = 30.0
"""How long the sizes of checkpoints may take to be found."""


_WORST = (ReadingResult.NOT_YET, ReadingResult.UNDER, ReadingResult.UNKNOWN, ReadingResult.OVER)
"""Of several readings, the one with the last of these is reported."""


class Disk(AskingReader):
    """`disk` and `inodes`: how much of a file system is used, or how long what is free will last."""

    def __init__(self, watch: Watch, job: JobView | None = None) -> None:
        super().__init__(watch, job)
        self._inodes = watch.what == "inodes"

    def read(self, now: float) -> Reading:
        if self._watch.path or self._job is None:
            return self._look(self._watch.path, now, "used")
        paths = self._job.directories()
        if not paths:
            return not_yet("no worker has named a directory of checkpoints yet")
        return max((self._of_job(path, now) for path in paths), key=lambda reading: _WORST.index(reading.verdict))

    def _of_job(self, path: str, now: float) -> Reading:
        try:
            found = self._look(path, now, path)
        except NoReading as error:
            return Reading(ReadingResult.UNKNOWN, str(error))
        return Reading(found.verdict, f"{path}: {found.text}")

    def _look(self, path: str, now: float, key: str) -> Reading:
        answer = self.file_systems.ask("statvfs", path)
        total, free, used = answer[1 if self._inodes else 0]
        if self._inodes and not total:
            raise NoReading(f"the file system of {path} does not count inodes")
        if self._threshold.dimension is not Dimension.TIME:
            return stock(self._threshold, total, free, used, "inodes" if self._inodes else "")
        trend.keep(self.samples.setdefault(key, []), (now, used), self._watch.window_s)
        return self._time_left(path, free, key)

    def _time_left(self, path: str, free: float, key: str) -> Reading:
        found = None
        if not self._inodes:
            pairs = self.file_systems.ask("checkpoints", path, WALK_S)
            found = trend.checkpoints_of((time, size) for time, size, _ in pairs)
        rate = trend.disk_rate(self.samples[key], found)
        if rate is None:
            return not_yet("measuring how fast it fills")
        left = trend.seconds_left(free, rate, found.size if found else 0.0)
        counted = f"{free:.0f} inodes" if self._inodes else size_text(free)
        per_hour = f"{3600 * rate:.0f} inodes" if self._inodes else size_text(3600 * rate)
        lasts = "lasts" if left == float("inf") else f"{duration(left)} left"
        text = f"{lasts}: {counted} free, {per_hour} an hour"
        if found:
            text += f", a checkpoint takes {size_text(found.size)}"
        return judged(left <= self._threshold.value, f"{text} (limit {self._threshold.text})")


class Quota(AskingReader):
    """`quota`: what a command of the user's prints: a percentage, or what is used and the limit."""

    def read(self, now: float) -> Reading:
        out = self._asker.run(self._watch.command, QUOTA_S)
        used, limit = parse_quota(out, self._watch.pattern)
        if self._threshold.dimension is Dimension.SIZE and limit == 100.0:
            raise NoReading(f"{self._watch.command[0]} printed a percentage, and the limit is {self._threshold.text}")
        return stock(self._threshold, limit, max(0.0, limit - used), used)


def parse_quota(out: str, pattern: str = "") -> tuple[float, float]:
    """(used, limit) of a command's output; a percentage has the limit 100. Raises NoReading with what was printed.

    With a pattern, its groups `percent`, or `used` and `limit`; else the first percentage, or the first two sizes.
    """
    first = out.strip().partition("\n")[0][:100]
    if pattern:
        match = re.search(pattern, out)
        if not match:
            raise NoReading(f"the pattern {pattern!r} is not in the output, which begins {first!r}")
        groups = match.groupdict()
        texts = [f"{groups['percent']} %"] if groups.get("percent") else [groups["used"], groups["limit"]]
    else:
        texts = re.findall(r"\d+(?:\.\d+)?\s*%", out)[:1] or re.findall(r"\d+(?:\.\d+)?\s*[KMGTP]?i?B?\b", out)[:2]
    values = [_size(text) for text in texts]
    if len(values) == 1 and "%" in texts[0]:
        return values[0], 100.0
    if len(values) != 2 or not values[1]:
        raise NoReading(f"neither a percentage nor two sizes in the output, which begins {first!r}")
    return values[0], values[1]


def _size(text: str) -> float:
    """Of `12G`, as quota commands print it, `12 GB`, `12 GiB` or a plain number."""
    short = re.fullmatch(r"\s*([\d.]+)\s*([KMGTP])\s*", text)
    found = quantity(f"{short[1]} {short[2]}iB" if short else text)
    if found is None:
        raise NoReading(f"{text!r} is no size")
    return found[0]


class Mount(AskingReader):
    """`mount`: whether a file system answers in time."""

    def read(self, now: float) -> Reading:
        try:
            self._asker.ask("statvfs", self._watch.path, self._threshold.value)
        except TimedOut as error:
            return judged(True, str(error))
        return judged(False, f"the file system of {self._watch.path} answers")
