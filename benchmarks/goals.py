"""What a row of the table must reach. Pure: judges two lists of samples, where None is one that never came."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

Samples = Sequence[float | None]


def came(samples: Samples) -> list[float]:
    """The samples that came."""
    return [sample for sample in samples if sample is not None]


def median_ratio(a: Samples, b: Samples) -> float | None:
    """Median of b over median of a; None when either has no sample or a's is 0."""
    of_a, of_b = came(a), came(b)
    if not of_a or not of_b or not statistics.median(of_a):
        return None
    return statistics.median(of_b) / statistics.median(of_a)


@dataclass(frozen=True)
class Ratio:
    """b's median is at most `limit` times a's, and every sample of b came."""

    limit: float

    def __str__(self) -> str:
        return f"b/a <= {self.limit:g}"

    def reached(self, a: Samples, b: Samples) -> bool | None:
        """None: not to be told from these samples."""
        if len(came(b)) < len(b):
            return False
        ratio = median_ratio(a, b)
        return None if ratio is None else ratio <= self.limit


@dataclass(frozen=True)
class Typical:
    """b's median is at most `most` and at most `limit` times a's, and every sample of b came."""

    most: float
    limit: float

    def __str__(self) -> str:
        return f"<= {self.most:g}, b/a <= {self.limit:.3g}"

    def reached(self, a: Samples, b: Samples) -> bool | None:
        """None: not to be told from these samples."""
        found = Ratio(self.limit).reached(a, b)
        return found and statistics.median(came(b)) <= self.most


@dataclass(frozen=True)
class Every:
    """Every sample of b came."""

    def __str__(self) -> str:
        return "all"

    def reached(self, a: Samples, b: Samples) -> bool | None:
        """None: b has no samples."""
        return len(came(b)) == len(b) if b else None


@dataclass(frozen=True)
class Within:
    """Every sample of b came, and the worst is at most `limit`."""

    limit: float

    def __str__(self) -> str:
        return f"all, <= {self.limit:g}"

    def reached(self, a: Samples, b: Samples) -> bool | None:
        """None: b has no samples."""
        return all(sample is not None and sample <= self.limit for sample in b) if b else None


Goal = Ratio | Typical | Every | Within
