"""Whether a job has failed more often than its program allows."""

from __future__ import annotations


class Retries:
    """Failures of a job's workers, as one node counts them."""

    def __init__(self, allowed: int, several_nodes: bool) -> None:
        """allowed: how many are answered with a restart. several_nodes: where it can, the workers count then, so that
        all programs end alike (`in_worker/call_agreement.py`); here are those counted that they never came to."""
        self.allowed, self._several = allowed, several_nodes
        self._used = self._base = 0
        self._rounds = 0
        self._came = 0
        """Failures when workers of a round came last."""

    def allow(self, allowed: int) -> None:
        """From now on so many."""
        self.allowed, self._base = allowed, self._used

    @property
    def used(self) -> int:
        """Failures so far."""
        return self._used

    def exceeded(self, used: int, rounds: int) -> bool:
        """Something happened; whether the job is to end. used: failures by now. rounds: whose workers came so far."""
        if rounds != self._rounds:
            self._rounds, self._came = rounds, self._used
        self._used = used
        if not self._several or not rounds:
            return used - self._base > self.allowed
        # The failure of the round whose workers came is counted by those of the next one, unless none ever come.
        return used - max(self._came, self._base) - 1 > self.allowed
