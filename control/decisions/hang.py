"""Whether a job stands still: by how long it has shown no sign of life, and how long that takes in its section.

    look(before, marks, now, most_s) -> standing
    judge(standing, learned, bounds) -> Finding

A limit is learned for each section (a step, an evaluation, a save, the warm-up) from the job's own times. Pure: times
are seconds of any clock that never goes backwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...proto.durations import Durations
from ...proto.frozen import dataclass
from ...rendezvous.text import duration

FACTOR = 2.4
"""A limit is so many times the 99th percentile: with the width of a bucket less than three times."""
FEW = 200
"""With fewer times than this the 99th percentile is not known: what takes long now and then may not have been seen."""
SPREAD = 25.0
"""With few times, the limit is at least so many times the median: a job may jitter 20-fold."""
OUTLIER = 1.25
"""A limit is at least so many times the longest time that has been seen."""


@dataclass(frozen=True)
class LimitBounds:
    """The bounds of what is learned, in seconds."""

    least_s: float = 10.0
    """No limit is shorter."""
    known_from: int = 1
    """With fewer times than this a section counts as one that has not come to an end yet."""
    unknown_s: float = 1800.0
    """The limit of a section that has not come to an end yet; no limit is longer, unless the times themselves are."""


@dataclass(frozen=True)
class Mark:
    """The last sign of life of one rank."""

    section: str
    number: int
    """Another number is another sign."""
    age_s: float = 0.0
    """How old it is when it is seen for the first time, as far as that is known."""


@dataclass(frozen=True)
class Standing:
    """How long a rank has shown no other sign of life."""

    mark: Mark
    still_s: float
    looked_at: float


@dataclass(frozen=True)
class Finding:
    """What the ranks' standing says."""

    stands: tuple[int, ...]
    """The ranks that stand still, the least advanced first; none where the job moves, or waits for one that may."""
    because: str


def look(before: Mapping[int, Standing], marks: Mapping[int, Mark], now: float, most_s: float) -> dict[int, Standing]:
    """The standing of each rank that there is. Of the time since the last look at most `most_s` counts: whoever looks
    may itself have been stopped, with the whole host."""
    standing = {}
    for rank, mark in marks.items():
        last = before.get(rank)
        if last is None or (last.mark.section, last.mark.number) != (mark.section, mark.number):
            standing[rank] = Standing(mark, min(mark.age_s, most_s), now)
        else:
            standing[rank] = Standing(last.mark, last.still_s + min(now - last.looked_at, most_s), now)
    return standing


def limit_s(times: Durations, bounds: LimitBounds) -> float:
    """How long a section may last."""
    if times.count < max(1, bounds.known_from):
        return bounds.unknown_s
    p99_s = times.percentile(99)
    sure_s = max(FACTOR * p99_s, OUTLIER * times.longest_s)
    wide_s = max(sure_s, SPREAD * times.percentile(50)) if times.count < FEW else sure_s
    return max(bounds.least_s, min(wide_s, max(sure_s, bounds.unknown_s)))


def judge(standing: Mapping[int, Standing], learned: Mapping[str, Durations], bounds: LimitBounds) -> Finding:
    """A rank that is over the limit of its section stands still, unless another rank is in another section, and may be
    there as long: then it waits for that one."""
    limits = {
        each.mark.section: limit_s(learned.get(each.mark.section, Durations()), bounds) for each in standing.values()
    }
    over = {rank: each for rank, each in standing.items() if each.still_s >= limits[each.mark.section]}
    if not over:
        return Finding((), _longest(standing, limits))
    sections = {each.mark.section for each in over.values()}
    for rank, each in standing.items():
        if rank not in over and each.mark.section not in sections:
            waits = f"may wait for rank {rank}, which has been in {each.mark.section} for {duration(each.still_s)}"
            return Finding((), f"{named(over)} {waits} (limit {duration(limits[each.mark.section])})")
    order = sorted(over, key=lambda rank: (over[rank].mark.number, rank))
    worst = over[order[0]]
    section = worst.mark.section
    return Finding(
        tuple(order),
        f"{named(over)}: no progress for {duration(worst.still_s)} in {section} "
        f"({_why(limits[section], learned.get(section, Durations()), bounds)})",
    )


def named(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 0-2, 5`."""
    wanted = sorted(ranks)
    parts: list[tuple[int, int]] = []
    for rank in wanted:
        if parts and rank == parts[-1][1] + 1:
            parts[-1] = (parts[-1][0], rank)
        else:
            parts.append((rank, rank))
    text = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)
    return f"rank {text}" if len(wanted) == 1 else f"ranks {text}"


def _longest(standing: Mapping[int, Standing], limits: Mapping[str, float]) -> str:
    if not standing:
        return "no rank has shown progress yet"
    rank = max(standing, key=lambda rank: standing[rank].still_s / limits[standing[rank].mark.section])
    each = standing[rank]
    limit = duration(limits[each.mark.section])
    return f"rank {rank} showed progress {duration(each.still_s)} ago, in {each.mark.section} (limit {limit})"


def _why(limit: float, times: Durations, bounds: LimitBounds) -> str:
    if times.count < max(1, bounds.known_from):
        return f"limit {duration(limit)}, as too few times are known yet"
    if limit <= bounds.least_s:
        return f"limit {duration(limit)}, the smallest"
    known = f"of {times.count} so far 99 % took at most {duration(times.percentile(99))}"
    return f"limit {duration(limit)}: {known}, the longest {duration(times.longest_s)}"
