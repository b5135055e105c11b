"""When a checkpoint is due, and when the ranks exchange what they were asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass

EXCHANGE_S = 0.5
"""About how often the ranks exchange requests. A request is acted upon within two of these."""


@dataclass(frozen=True)
class Every:
    """When to save: whatever comes first."""

    steps: int | None = None
    seconds: float | None = 600.0
    failures_s: float | None = None
    """Mean time between failures: the interval is then Young's for the measured cost of a save, not `seconds`."""


def advised_s(blocked_s: float, between_failures_s: float) -> float:
    """The interval that loses least: sqrt(2 x cost of a save x mean time between failures), Young 1974.

    J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9).
    """
    return math.sqrt(2 * max(blocked_s, 1e-3) * between_failures_s)


class Exchanges:
    """At which boundaries (between two batches or steps) the ranks exchange requests: the same on all, as each exchange
    says when the next one is. Boundaries are counted from the start of the process."""

    def __init__(self, alone: bool) -> None:
        self.next_boundary = 0
        self._alone = alone
        self._interval = 1
        self._at: tuple[int, float] | None = None

    def due(self, boundary: int) -> bool:
        return boundary >= self.next_boundary

    def proposal(self, boundary: int, now: float) -> int:
        """Boundaries until the next exchange, by this rank's own clock. The largest proposal of all ranks counts."""
        if self._alone:
            return 1
        if self._at is not None and boundary > self._at[0]:
            each_s = (now - self._at[1]) / (boundary - self._at[0])
            # At most twice as long at a time: the first steps of a run are slow.
            self._interval = max(1, min(2 * self._interval, int(EXCHANGE_S / max(each_s, 1e-7))))
        self._at = (boundary, now)
        return self._interval

    def agreed(self, boundary: int, interval: int) -> None:
        self._interval = interval
        self.next_boundary = boundary + interval
