"""Until when the job may run, as its scheduler says, and whether a save still ends in time."""

from __future__ import annotations

import os
import time
from collections import deque

from ..errors import Misused

OURS = "ELASTIC_AGENT_DEADLINE"
"""Unix time in seconds at which the job ends. The agent sets it, or whoever starts the job; it takes precedence over
SLURM's."""
SLURM = "SLURM_JOB_END_TIME"

MARGIN_S = 5.0
"""What is left beyond a save and a half when it begins: for processes that have imported torch to end, 1.5 s on a busy
host, and then the agents."""
UNKNOWN_S = 5.0
"""What a save is taken to need before one was measured."""
MEASURE_S = 1800.0
"""Nearer to the deadline than this, the first thing that is done is a save, by which one is measured."""
_LOOKS = 8
"""Times between looks of which the longest counts."""


class Deadline:
    """The end of the job's time, and how long before it the ranks save and stop."""

    def __init__(self, stop_before: float | bool | None = None) -> None:
        """stop_before: seconds before the deadline; None: as long as a save needs, measured; False: nothing is done
        about it. A deadline that has passed is none: there is nothing that could be in time. Raises Misused."""
        if stop_before is True or (stop_before is not None and stop_before < 0):
            raise Misused(f"stop_before={stop_before!r}: seconds before the deadline, at least 0, or False")
        self._at_s = _from_environment()
        self._heeded = stop_before is not False and (self.left_s() or 0.0) > 0
        self._stop_before_s = None if stop_before is False else stop_before
        self._looked_at_s: float | None = None
        self._gaps_s: deque[float] = deque(maxlen=_LOOKS)
        self.stops = self._heeded and self._at_s is not None
        """Whether the ranks are to stop at some time."""

    def left_s(self) -> float | None:
        """Seconds until the deadline, negative after it; None where nobody set one."""
        return None if self._at_s is None else self._at_s - time.time()

    def stop_now(self, save_s: float = 0.0) -> bool:
        """Whether the ranks are to stop here: the next look, as far from this one as the longest of late, would be too
        late for a save. save_s: what the longest save so far needed until it was on the disk; 0: none was made."""
        left_s, now_s = self.left_s(), time.monotonic()
        if left_s is None or not self._heeded:
            return False
        if self._looked_at_s is not None:
            self._gaps_s.append(now_s - self._looked_at_s)
        self._looked_at_s = now_s
        return left_s <= self._needed_s(save_s) + max(self._gaps_s, default=0.0)

    def too_late(self, save_s: float) -> bool:
        """Whether a save that begins now would not surely be on the disk at the deadline."""
        left_s = self.left_s()
        return left_s is not None and self._heeded and left_s < 1.25 * (save_s or UNKNOWN_S)

    def measure(self, save_s: float) -> bool:
        """Whether a save is due because none was measured, and the deadline is near."""
        left_s = self.left_s()
        if left_s is None or not self._heeded or save_s:
            return False
        return self._stop_before_s is None and 1.25 * UNKNOWN_S < left_s < MEASURE_S

    def _needed_s(self, save_s: float) -> float:
        if self._stop_before_s is not None:
            return self._stop_before_s
        return 1.5 * (save_s or UNKNOWN_S) + MARGIN_S


def _from_environment() -> float | None:
    for name in (OURS, SLURM):
        if text := os.environ.get(name, ""):
            try:
                return float(text)
            except ValueError:
                if name == OURS:
                    raise Misused(f"{OURS} is {text!r}: set it to a Unix time in seconds") from None
    return None
