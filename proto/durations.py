"""How long something took, each time, in buckets of a quarter octave: from 0.1 ms to 29 hours. Pure."""

from __future__ import annotations

from bisect import bisect_left

from .frozen import dataclass

BUCKETS = 120
FIRST_S = 1e-4
"""Upper edge of the first bucket."""
PER_OCTAVE = 4
UPPER_S = tuple(float(FIRST_S * 2.0 ** (bucket / PER_OCTAVE)) for bucket in range(BUCKETS))
"""The longest duration that each bucket counts."""


def bucket_of(seconds: float) -> int:
    """The bucket that a duration is counted in: the first whose upper edge is not below it."""
    return min(bisect_left(UPPER_S, seconds), BUCKETS - 1)


@dataclass(frozen=True)
class Durations:
    """How long something took, each time."""

    count: int = 0
    total_s: float = 0.0
    longest_s: float = 0.0
    buckets: tuple[int, ...] = (0,) * BUCKETS

    def percentile(self, percent: int) -> float:
        """Seconds that so many of them did not exceed; at most a quarter octave (19 %) too much, never too little. 0
        without any."""
        wanted, seen = -(-self.count * percent // 100), 0
        for at, number in enumerate(self.buckets):
            seen += number
            if number and seen >= wanted:
                return min(UPPER_S[at], self.longest_s)
        return self.longest_s

    def plus(self, other: Durations) -> Durations:
        """Both together."""
        buckets = tuple(one + two for one, two in zip(self.buckets, other.buckets, strict=True))
        longest_s = max(self.longest_s, other.longest_s)
        return Durations(self.count + other.count, self.total_s + other.total_s, longest_s, buckets)

    def with_one(self, seconds: float) -> Durations:
        """With one more."""
        at = bucket_of(seconds)
        return self.plus(Durations(1, seconds, seconds, tuple(int(at == each) for each in range(BUCKETS))))
