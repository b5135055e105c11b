"""The early end of a run: asked for by a signal, or because the job's time runs out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...proto.endings import PREEMPTED
from . import deadline as times
from .deadline import Deadline
from .forwarded_signals import Asked
from .log import RunLog


def known_s(held_s: float, took_s: float, busy: bool) -> float:
    """What a save needs from its begin until it is on the disk; 0: none was measured. held_s: how long one held the
    training up at most; took_s: how long the disk then took at most, 0 where this rank writes nothing or that is not
    known yet; busy: whether one is on its way."""
    return held_s + (took_s or (times.UNKNOWN_S if busy else 0.0)) if held_s else 0.0


class EarlyEnd:
    """When all ranks save and stop, whether there is time for the save, and how a process then ends."""

    def __init__(self, stop_before: float | bool | None, log: RunLog, disturb: Callable[[], None]) -> None:
        """stop_before: as `Run`. disturb: called when a signal has come, by its handler. Raises Misused."""
        self.deadline, self._log, self._disturb = Deadline(stop_before), log, disturb
        self.pending = self.deadline.stops
        """Whether a signal has come, or the job's time ends at some time."""
        self.within = self._left = False
        """Whether the loop over epochs or batches is going on."""
        self._asked = Asked(os.environ, self._pend)

    def _pend(self) -> None:
        self.pending = True
        self._disturb()

    def numbers(self, save_s: float) -> tuple[int, int, int]:
        """For the ranks to compare, the largest of each counts: whether a save is due to measure one, whether to stop,
        whether it is too late to save. save_s: as `known_s`."""
        stop = self.deadline.stop_now(save_s) or bool(self._asked.first)
        return int(self.deadline.measure(save_s)), int(stop), self.late(save_s)

    def late(self, save_s: float) -> int:
        """1 where a save that begins now would not surely be on the disk at the deadline."""
        return int(self.deadline.too_late(save_s))

    def tell_skipped(self, step: int, save_s: float) -> None:
        """Says why a save is not begun; what was committed last stands."""
        left_s = self.deadline.left_s() or 0.0
        cost = f"takes up to {save_s:.1f} s" if save_s else f"was not measured, and may take {times.UNKNOWN_S:g} s"
        self._log.warning(
            "no checkpoint of step %d: %.1f s are left until the deadline, and a save %s", step, left_s, cost
        )

    @contextmanager
    def noticing(self, stands: Callable[[], tuple[bool, int]]) -> Iterator[None]:
        """Around the loop over epochs or batches: says what a `break` out of it leaves out. stands: whether the run is
        stopping, and the steps behind the last checkpoint."""
        self.within = True
        try:
            yield
        except GeneratorExit:
            stopping, unsaved = stands()
            if self._left:
                raise
            if unsaved:
                self._log.info(
                    "the loop was left before its end, %d steps behind the last checkpoint; run.close() saves them",
                    unsaved,
                )
            if stopping and "ELASTIC_AGENT_ROUND" in os.environ:
                self._log.warning(
                    "the loop was left by the script while the run stops, so this process does not exit with %d, and "
                    "the job counts as finished; leave that break out: loops end by themselves then",
                    PREEMPTED,
                )
            raise
        finally:
            self.within = False

    def leave(self, step: int) -> None:
        """What follows in the script belongs to a training that goes on, or to one that is over, so that under an agent
        the process ends here, with the code that says that the job is to be started again."""
        if "ELASTIC_AGENT_ROUND" in os.environ:
            self._left = True
            self._asked.drop()
            self._log.info("stopped at step %d, to go on with the next start of the job: exit %d", step, PREEMPTED)
            raise SystemExit(PREEMPTED)
