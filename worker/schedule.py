"""When a checkpoint is due, and when the ranks exchange what they were asked for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from .errors import Misused

EXCHANGE_S = 0.5
"""About how often the ranks exchange requests. A request is acted upon within two of these."""


LEAST_S = 1e-3
"""What a save is taken to cost at least: below it, the clock measures other things."""


@dataclass(frozen=True)
class Every:
    """When to save: whatever comes first."""

    steps: int | None = None
    seconds: float | None = 600.0
    failures_s: float | None = None
    """Mean time between failures: the interval is then Young's for the measured cost of a save, not `seconds`."""

    def __post_init__(self) -> None:
        if (self.steps is not None and self.steps < 1) or (self.failures_s is not None and not self.failures_s > 0):
            raise Misused(f"{self}: `steps` is 1 or more and `failures_s` greater than 0, or None")


def checked(every: Every | None) -> Every:
    """The schedule that was asked for. Raises Misused where it is something else."""
    if every is not None and not isinstance(every, Every):
        raise Misused(f"every={every!r} is no schedule: say every=Every(steps=100), or Every(seconds=600)")
    return every or Every()


def advised_s(blocked_s: float, between_failures_s: float) -> float:
    """The interval that loses least: sqrt(2 x cost of a save x mean time between failures), Young 1974.

    J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9).
    """
    return math.sqrt(2 * max(blocked_s, LEAST_S) * between_failures_s)


class Advice:
    """The interval that Young's formula advises, said with its arithmetic whenever it has changed by a fifth."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log, self._said_s = log, 0.0

    def interval_s(self, blocked_s: float, between_failures_s: float) -> float:
        """blocked_s: how long the last save held the training up; 0: none was made yet, and nothing is said."""
        advised = advised_s(blocked_s, between_failures_s)
        if blocked_s and not 0.8 * self._said_s <= advised <= 1.25 * self._said_s:
            self._said_s = advised
            self._log(
                f"a checkpoint every {advised:.3g} s: sqrt(2 x {max(blocked_s, LEAST_S):.3g} s blocked by a save x "
                f"{between_failures_s:.3g} s between failures); saves then cost {blocked_s / advised:.2g} of the time, "
                f"and a failure {advised / 2:.3g} s on average"
            )
        return advised


class Timetable:
    """When the next checkpoint is due by the clock."""

    due_s: float
    """By the monotonic clock; infinite where it is never due."""

    def __init__(self, every: Every, log: Callable[[str], None]) -> None:
        self._every, self._advice = every, Advice(log)
        self.longest_s = 0.0
        """How long a save held the training up at most; 0: none was made."""
        self._set(time.monotonic(), 0.0)

    def saved(self, began_s: float) -> None:
        """A save, which began then, holds the training up no more."""
        now_s = time.monotonic()
        self.longest_s = max(self.longest_s, now_s - began_s)
        self._set(now_s, now_s - began_s)

    def paused(self, seconds: float) -> None:
        """Nothing was trained for so long, so that no more could be lost: an interval by Young's formula is that much
        longer."""
        if self._every.failures_s is not None:
            self.due_s += seconds

    def _set(self, now_s: float, blocked_s: float) -> None:
        interval_s = self._every.seconds
        if self._every.failures_s is not None:
            interval_s = self._advice.interval_s(blocked_s, self._every.failures_s)
        self.due_s = math.inf if interval_s is None else now_s + interval_s


class Exchanges:
    """At which boundaries (between two batches or steps) the ranks exchange requests: the same on all, as each exchange
    says when the next one is. Boundaries are counted from the start of the process."""

    def __init__(self) -> None:
        self.next_boundary = 0
        self._interval = 1
        self._at: tuple[int, float] | None = None

    def due(self, boundary: int) -> bool:
        return boundary >= self.next_boundary

    def proposal(self, boundary: int, now: float) -> int:
        """Boundaries until the next exchange, by this rank's own clock. The largest proposal of all ranks counts."""
        if self._at is not None and boundary > self._at[0]:
            each_s = (now - self._at[1]) / (boundary - self._at[0])
            # At most twice as long at a time: the first steps of a run are slow.
            self._interval = max(1, min(2 * self._interval, int(EXCHANGE_S / max(each_s, 1e-7))))
        self._at = (boundary, now)
        return self._interval

    def paused(self, seconds: float) -> None:
        """For so long there was no boundary to come to."""
        if self._at is not None:
            self._at = (self._at[0], self._at[1] + seconds)

    def agreed(self, boundary: int, interval: int) -> None:
        self._interval = interval
        self.next_boundary = boundary + interval
