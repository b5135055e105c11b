"""The goals of the table's rows. Pure: takes the samples of a and b, where None is a missing sample."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

Samples = Sequence[float | None]


def present(samples: Samples) -> list[float]:
    """The samples that are not missing."""
    return [sample for sample in samples if sample is not None]


def median_ratio(a: Samples, b: Samples) -> float | None:
    """Median of b over median of a; None when either has no sample or a's is 0."""
    of_a, of_b = present(a), present(b)
    if not of_a or not of_b or not statistics.median(of_a):
        return None
    return statistics.median(of_b) / statistics.median(of_a)


@dataclass(frozen=True)
class Ratio:
    """b's median is at most `limit` times a's, and no sample of b is missing."""

    limit: float

    def __str__(self) -> str:
        return f"b/a <= {self.limit:g}"

    def reached(self, a: Samples, b: Samples) -> bool | None:
        """None: these samples do not decide it."""
        if len(present(b)) < len(b):
            return False
        ratio = median_ratio(a, b)
        return None if ratio is None else ratio <= self.limit


@dataclass(frozen=True)
class Typical:
    """b's median is at most `most` and at most `limit` times a's, and no sample of b is missing."""

    most: float
    limit: float

    def __str__(self) -> str:
        return f"<= {self.most:g}, b/a <= {self.limit:.3g}"

    def reached(self, a: Samples, b: Samples) -> bool | None:
        """None: these samples do not decide it."""
        found = Ratio(self.limit).reached(a, b)
        return found and statistics.median(present(b)) <= self.most


@dataclass(frozen=True)
class Every:
    """No sample of b is missing."""

    def __str__(self) -> str:
        return "all"

    def reached(self, a: Samples, b: Samples) -> bool | None:
        """None: b has no samples."""
        return len(present(b)) == len(b) if b else None


@dataclass(frozen=True)
class Within:
    """No sample of b is missing, and the worst is at most `limit`."""

    limit: float

    def __str__(self) -> str:
        return f"all, <= {self.limit:g}"

    def reached(self, a: Samples, b: Samples) -> bool | None:
        """None: b has no samples."""
        return all(sample is not None and sample <= self.limit for sample in b) if b else None


Goal = Ratio | Typical | Every | Within
