"""The digits job, with the times of its steps written down: `timed_digits.py NOTES [arguments of the job]`.

Where an agent watches the job, or has switches for it, every other epoch goes without what shows the steps to it, so
that one process measures both.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elastic_agent.worker import Run
from elastic_agent.worker.loop.marks import Marks

SCRIPT = Path(__file__).parents[3] / "examples" / "digits" / "train.py"
WARM_EPOCHS = 2


@dataclass
class Times:
    """Of the steps of one kind."""

    steps_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    """Processor time of the process in all of them, saves included."""


class Timed:
    """Stands in for `Run.step`."""

    def __init__(self) -> None:
        self.shown, self.hidden = Times(), Times()
        self._step = Run.step
        self._last: tuple[float, float] | None = None
        self._epoch = -1
        self._shows: tuple[Any, Any] | None = None

    def step(self, run: Run) -> None:
        """One step, and the time since the one before it."""
        now_s, cpu_s = time.perf_counter(), time.process_time()
        if run.epoch != self._epoch:
            self._epoch, self._last = run.epoch, None
            self._show(run, run.epoch % 2 == 0)
        elif self._last is not None and self._epoch >= WARM_EPOCHS:
            times = self.shown if self._epoch % 2 == 0 else self.hidden
            times.steps_s.append(now_s - self._last[0])
            times.cpu_s += cpu_s - self._last[1]
        self._last = (now_s, cpu_s)
        self._step(run)

    def _show(self, run: Run, shows: bool) -> None:
        if self._shows is None:
            self._shows = (run._marks, run._requests._channel)
        run._marks, run._requests._channel = self._shows if shows else (Marks(None), None)

    def finish(self, notes: str) -> None:
        found = {"shown": vars(self.shown), "hidden": vars(self.hidden), "process_s": time.process_time()}
        Path(f"{notes}.{os.environ['RANK']}").write_text(json.dumps(found))


def main() -> None:
    notes = sys.argv.pop(1)
    timed = Timed()

    def step(run: Run) -> None:
        timed.step(run)

    Run.step = step  # type: ignore[method-assign,assignment]
    sys.argv[0] = str(SCRIPT)
    runpy.run_path(str(SCRIPT), run_name="__main__")
    timed.finish(notes)


if __name__ == "__main__":
    main()
