"""What samples over time say: how fast a number grows, and how long a stock lasts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...proto.frozen import dataclass

Sample = tuple[float, float]
"""(seconds, value)."""
LEAST_SAMPLES = 5
"""Fewer say nothing about a trend."""


def keep(samples: list[Sample], sample: Sample, window_s: float, most: int = 500) -> None:
    """Add a sample; drop those older than the window, and every second one where there are more than `most`."""
    samples.append(sample)
    while samples and samples[0][0] < sample[0] - window_s:
        samples.pop(0)
    if len(samples) > most:
        del samples[1:-1:2]


def slope(samples: Sequence[Sample]) -> float:
    """Growth a second, by least squares; 0 where all samples are of one moment."""
    count = len(samples)
    if count < 2:
        return 0.0
    middle_t = sum(at for at, _ in samples) / count
    middle_v = sum(value for _, value in samples) / count
    spread = sum((at - middle_t) ** 2 for at, _ in samples)
    if not spread:
        return 0.0
    return sum((at - middle_t) * (value - middle_v) for at, value in samples) / spread


def steady_growth(samples: Sequence[Sample]) -> float | None:
    """Growth a second that lasts: the least of all samples', their earlier and their later half's; at least 0.

    What grows once, or falls back now and then, does not grow steadily. None with fewer than 2 x LEAST_SAMPLES.
    """
    half = len(samples) // 2
    if half < LEAST_SAMPLES:
        return None
    return max(0.0, min(slope(samples), slope(samples[:half]), slope(samples[half:])))


def leak(samples: Sequence[Sample], available: float) -> tuple[float, float] | None:
    """(seconds until steady growth has used up what is available, growth a second); None with too few samples.

    Also what has begun to grow only lately counts: the last 10, 20, 40 samples and so on, each believed for twice as
    long ahead as it looks back.
    """
    growth = steady_growth(samples)
    if growth is None:
        return None
    found = [(seconds_left(available, growth), growth)]
    number = 2 * LEAST_SAMPLES
    while number < len(samples):
        last = samples[-number:]
        growth = steady_growth(last) or 0.0
        left = seconds_left(available, growth)
        if left <= 2 * (last[-1][0] - last[0][0]):
            found.append((left, growth))
        number *= 2
    return min(found)


@dataclass(frozen=True)
class Checkpoints:
    """The last checkpoints of a directory."""

    size: float
    """Bytes of one: the largest of the last ones."""
    interval_s: float
    """Mean time between two."""

    @property
    def rate(self) -> float:
        """Bytes a second if none is ever deleted."""
        return self.size / self.interval_s if self.interval_s > 0 else 0.0


def checkpoints_of(last: Iterable[tuple[float, float]]) -> Checkpoints | None:
    """From (time, bytes) of the last checkpoints; None with fewer than two."""
    found = sorted(last)
    if len(found) < 2:
        return None
    return Checkpoints(max(size for _, size in found), (found[-1][0] - found[0][0]) / (len(found) - 1))


def disk_rate(samples: Sequence[Sample], checkpoints: Checkpoints | None) -> float | None:
    """Bytes a second by which a file system fills. None while that is not known yet.

    Measured, once the samples are over two intervals of checkpoints: what retention deletes is in it. Before, as if all
    checkpoints stayed.
    """
    over_s = samples[-1][0] - samples[0][0] if samples else 0.0
    if checkpoints is not None and over_s < 2 * checkpoints.interval_s:
        return checkpoints.rate
    if len(samples) < LEAST_SAMPLES:
        return checkpoints.rate if checkpoints else None
    return max(0.0, slope(samples))


def seconds_left(free: float, rate: float, next_size: float = 0.0) -> float:
    """How long `free` lasts at `rate` until the next piece of `next_size` no longer fits. Infinite where nothing grows
    and it fits now."""
    room = free - next_size
    if room <= 0:
        return 0.0
    return room / rate if rate > 0 else float("inf")
