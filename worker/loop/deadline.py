"""Until when the job may run, as its scheduler says."""

from __future__ import annotations

import os
import time

from ..errors import Misused

OURS = "ELASTIC_AGENT_DEADLINE"
"""Unix time in seconds at which the job ends. Whoever starts the job sets it; it takes precedence over SLURM's."""
SLURM = "SLURM_JOB_END_TIME"


class Deadline:
    """The end of the job's time, and how long before it the ranks save and stop."""

    def __init__(self, stop_before_s: float | None = None) -> None:
        """stop_before_s: seconds before the deadline; None: nothing is done about it. Raises Misused."""
        if stop_before_s is not None and stop_before_s < 0:
            raise Misused(f"stop_before={stop_before_s:g}: seconds before the deadline, at least 0")
        self._at_s = _from_environment()
        self._stop_before_s = stop_before_s
        self._looked_at_s: float | None = None
        self.stops = stop_before_s is not None and self._at_s is not None
        """Whether the ranks are to stop at some time."""

    def left_s(self) -> float | None:
        """Seconds until the deadline, negative after it; None where nobody set one."""
        return None if self._at_s is None else self._at_s - time.time()

    def stop_now(self) -> bool:
        """Whether the ranks are to stop here: the next look, as far from this one as this one from the last, would be
        too late."""
        left_s, now_s = self.left_s(), time.monotonic()
        if self._stop_before_s is None or left_s is None:
            return False
        gap_s = 0.0 if self._looked_at_s is None else now_s - self._looked_at_s
        self._looked_at_s = now_s
        return left_s <= self._stop_before_s + gap_s


def _from_environment() -> float | None:
    for name in (OURS, SLURM):
        if text := os.environ.get(name, ""):
            try:
                return float(text)
            except ValueError:
                if name == OURS:
                    raise Misused(f"{OURS} is {text!r}: set it to a Unix time in seconds") from None
    return None
