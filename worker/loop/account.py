"""How this process spends its time from its Run on: steps, steps repeated, checkpoints, pauses; for its agent to read.

Sums in the slot of the page that both share (`proto/steps.py`). A step costs one look at the clock and some writes to
memory; a system call only the first step, and a checkpoint. Without an agent nothing is counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ...proto import steps


class Account:
    """Of one process, on the training's own thread. Every nanosecond since it was made is in one of four sums, or is
    part of what goes on now."""

    def __init__(self, slot: memoryview, reached: int, done: int, report: Callable[[], None]) -> None:
        """slot: this worker's words. reached: the last step that is a repetition. done: the step at which the run goes
        on. report: has the agent look."""
        self._slot, self._reached, self._done, self._report = slot, reached, done, report
        self._last_ns = time.monotonic_ns()
        self._first = True
        self._taken: int | None = None
        self._saved_in = steps.IN_STEP
        """What the last checkpoint interrupted."""
        slot[steps.STEPS] = done
        slot[steps.LAST_NS] = slot[steps.BEGAN_NS] = self._last_ns

    def step(self) -> None:
        """A step is done."""
        self._book_step()
        self._done += 1
        self._slot[steps.STEPS] = self._done
        self._slot[steps.DOING] = steps.IN_STEP
        if self._first:
            self._first = False
            self._report()

    def goes_on(self, done: int) -> None:
        """Another run of this process goes on at this step; what it repeats is not known here."""
        self._reached, self._done = 0, done
        self._slot[steps.STEPS] = done

    def ended(self) -> None:
        """The loop is over; if another begins, the time until then is part of its first step."""
        self._book_step()
        self._slot[steps.DOING] = steps.AFTER

    def begin_save(self) -> None:
        """All stand still for a checkpoint from here on. What has passed since the last step is part of the next."""
        self._saved_in = steps.IN_PAUSE if self._slot[steps.DOING] == steps.IN_PAUSE else steps.IN_STEP
        if self._saved_in == steps.IN_PAUSE:
            self._book(steps.PAUSED_NS)
        else:
            self._book_step()
        self._slot[steps.DOING] = steps.IN_SAVE

    def took(self, step: int) -> None:
        """The checkpoint of this step is taken now; it may be written behind the training's back."""
        self._taken = step

    def wrote(self, size: int) -> None:
        """A checkpoint of so many bytes is on the disk. From the thread that wrote it."""
        self._slot[steps.WRITTEN_BYTES] = size
        self._report()

    def end_save(self) -> None:
        """The training goes on, or the wait for what is to be done next."""
        self._book(steps.SAVING_NS)
        self._slot[steps.DOING] = self._saved_in
        if self._taken is not None:
            self._slot[steps.SAVED], self._taken = self._taken, None
            self._report()

    def attend(self, attends: bool) -> None:
        """Whether steps follow, or the program of this worker has nothing for it to do."""
        if attends and self._slot[steps.DOING] == steps.IN_PAUSE:
            self._book(steps.PAUSED_NS)
            self._slot[steps.DOING] = steps.IN_STEP
        elif not attends and self._slot[steps.DOING] == steps.IN_STEP:
            self._book_step()
            self._slot[steps.DOING] = steps.IN_PAUSE

    def _book_step(self) -> None:
        self._book(steps.REPEATED_NS if self._done < self._reached else steps.USEFUL_NS)

    def _book(self, word: int) -> None:
        now_ns = time.monotonic_ns()
        self._slot[word] += now_ns - self._last_ns
        self._slot[steps.LAST_NS] = self._last_ns = now_ns


current: Account | None = None
"""That of this process; None where no agent reads it. Set by `channel.channel_of`."""
