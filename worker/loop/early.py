"""The early end of a run: asked for, or because the job's time runs out."""

from __future__ import annotations

import os
from collections.abc import Callable

from ...proto.endings import PREEMPTED
from .asked import Asked
from .deadline import UNKNOWN_S, Deadline
from .log import RunLog


class EarlyEnd:
    """When all ranks save and stop, whether there is time for the save, and how a process then ends."""

    def __init__(
        self, stop_before: float | bool | None, log: RunLog, cost: Callable[[], tuple[float, float, bool]]
    ) -> None:
        """stop_before: as `Run`. cost: how long a save held the training up at most, how long this rank took at most
        to bring one to the disk, 0 where that is not known, and whether one is on its way. Raises Misused."""
        self.deadline, self._asked = Deadline(stop_before), Asked(dict(os.environ))
        self._log, self._cost = log, cost
        self.requested = False

    def numbers(self) -> list[int]:
        """For the ranks to compare, the largest of each counts: whether a save is due to measure one, whether to stop,
        whether it is too late to save."""
        save_s = self._save_s()
        stop = self.deadline.stop_now(save_s) or self.requested or bool(self._asked.first)
        return [int(self.deadline.measure(save_s)), int(stop), self.late()]

    def late(self) -> int:
        """1 where a save that begins now would not surely be on the disk at the deadline."""
        return int(self.deadline.too_late(self._save_s()))

    def tell_skipped(self, step: int) -> None:
        """Says why a save is not begun; what was committed last stands."""
        left_s, save_s = self.deadline.left_s() or 0.0, self._save_s()
        known = (
            f"takes up to {save_s:.1f} s" if save_s else f"was not measured yet, and is taken to need {UNKNOWN_S:g} s"
        )
        self._log.warning(
            "no checkpoint of step %d: %.1f s are left until the deadline, and a save %s", step, left_s, known
        )

    def leave(self, step: int) -> None:
        """Behind the loop: what follows it in the script belongs to a training that is over, so that under an agent the
        process ends here, with the code that says that the job is to be started again."""
        if "ELASTIC_AGENT_ROUND" in os.environ:
            self._log.info("stopped at step %d, to go on with the next start of the job: exit %d", step, PREEMPTED)
            raise SystemExit(PREEMPTED)

    def _save_s(self) -> float:
        held_s, took_s, busy = self._cost()
        return held_s + (took_s or (UNKNOWN_S if busy else 0.0)) if held_s else 0.0
