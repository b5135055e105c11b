"""Who judges others doubts itself first: for how long the store has answered this node's own heartbeats in time."""

from __future__ import annotations

import time


class Pulse:
    """Told of each answer by the thread that beats; may be asked by any."""

    def __init__(self, most_s: float) -> None:
        """`most_s`: the longest time between two answers that raises no doubt."""
        self._most_s = most_s
        self._state = (time.monotonic(), time.monotonic())
        """Since when they have come in time, and when the last one came. One value, as threads share it."""

    def answered(self) -> None:
        since, last = self._state
        now = time.monotonic()
        self._state = (now if now - last > self._most_s else since, now)

    def steady_s(self) -> float:
        """Seconds since the last doubt; 0 while an answer is overdue."""
        since, last = self._state
        return 0.0 if time.monotonic() - last > self._most_s else last - since
