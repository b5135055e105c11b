"""The digits job, with the times of its steps written down: `timed_digits.py NOTES [arguments of the job]`.

Where an agent watches the job, half of the epochs go without what shows the steps to it, so that one process measures
both, each pair of epochs in the other order than the one before. In other epochs it is timed what the calls that show a
step take by themselves, less what it takes to time them, which is in no epoch that is compared. `ELASTIC_AGENT_TIMED`
is the process of the agent: what processor time it has used when the epochs that count begin, and at the end, is noted
by the first rank.
"""

from __future__ import annotations

import itertools
import json
import os
import runpy
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elastic_agent.worker import Run
from elastic_agent.worker.data.cursors import Account
from elastic_agent.worker.loop.channel import Channel
from elastic_agent.worker.loop.marks import Marks

SCRIPT = Path(__file__).parents[3] / "examples" / "digits" / "train.py"
AGENT = "ELASTIC_AGENT_TIMED"
WARM_EPOCHS = 4
CALLS = ((Marks, "step"), (Marks, "asked"), (Marks, "got"), (Account, "evaluating"))
"""What a step does for guards. Without guards they do what is done anyway, or are not called."""
REQUESTS = (Channel, "reached")
"""How a step learns of requests, such as a switch's: without guards too, as an agent may be asked without them."""
PREEMPTED_S = 1e-3
"""A call that took longer did not have a processor all the time: it does not count."""


def shows(epoch: int) -> bool:
    """Whether this epoch shows its steps: the first and the last of four do."""
    return epoch % 4 in (0, 3)


def timed(epoch: int) -> bool:
    """Whether the calls of this epoch are timed, which is not compared then: of sixteen, the second four."""
    return 4 <= epoch % 16 < 8


def agents_cpu_s(pid: int) -> tuple[float, float]:
    """Processor time of the agent's own process, in nanoseconds' steps, and of its children that have ended, in steps
    of 10 ms."""
    own_s = time.clock_gettime((~pid << 3) | 2)  # CPUCLOCK_SCHED of another process, as clock_getcpuclockid(3) makes it
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return own_s, (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def _nothing(*_args: Any, **_named: Any) -> None:
    """To time a call of this is what it takes to time a call: no guard costs that."""


class Timed:
    """Stands in for `Run.step`."""

    def __init__(self) -> None:
        self.epochs: list[tuple[float, float, float]] = []
        """Of each epoch that is compared: the median step, the processor time of the training's thread in the median
        step, and that of the process for a step, saves included."""
        self._agent = int(os.environ.get(AGENT, "0")) if os.environ["RANK"] == "0" else 0
        self._noted: list[tuple[float, float, float]] = []
        self._step = Run.step
        self._times: list[tuple[float, float, float]] = []
        self._epoch = -1
        self._shown: Marks | None = None
        self._now_shown = True
        self._timing = False
        self._spent_s = {True: 0.0, False: 0.0}
        """In calls of epochs that time them: of those that show their steps, and of those that do not."""
        self._requests_s = 0.0
        """In looks for requests of such epochs."""
        self._counted = {True: 0, False: 0}
        """Steps of such epochs."""
        self._plain = {(owner, name): getattr(owner, name) for owner, name in (*CALLS, REQUESTS)}

    def _time_calls(self, on: bool) -> None:
        if on == self._timing:
            return  # each change of a class empties the interpreter's caches, which takes time that no guard costs
        self._timing = on
        for (owner, name), call in self._plain.items():
            setattr(owner, name, self._timed(call, (owner, name) == REQUESTS) if on else call)

    def _timed(self, call: Callable[..., Any], looks: bool) -> Callable[..., Any]:
        def timed_call(*args: Any, **named: Any) -> Any:
            began_s = time.perf_counter()
            found = call(*args, **named)
            ended_s = time.perf_counter()
            _nothing(*args, **named)
            took_s = ended_s - began_s - (time.perf_counter() - ended_s)
            if took_s >= PREEMPTED_S:
                return found
            if looks:
                self._requests_s += took_s
            else:
                self._spent_s[self._now_shown] += took_s
            return found

        return timed_call

    def step(self, run: Run) -> None:
        """One step, and the time since the one before it."""
        now = time.perf_counter(), time.thread_time(), time.process_time()
        if run.epoch != self._epoch:
            self._close()
            self._epoch = run.epoch
            if run.epoch == WARM_EPOCHS:
                self._note()
            self._show(run, shows(run.epoch))
            self._time_calls(timed(run.epoch))
        self._times.append(now)
        self._step(run)

    def _close(self) -> None:
        times, self._times = self._times, []
        if self._epoch < WARM_EPOCHS:
            return
        if timed(self._epoch):
            self._counted[shows(self._epoch)] += len(times)
            return
        lengths = [
            [two - one for one, two in zip(earlier, later, strict=True)] for earlier, later in itertools.pairwise(times)
        ]
        walls, threads, processes = zip(*lengths, strict=True)
        self.epochs.append((statistics.median(walls), statistics.median(threads), statistics.mean(processes)))

    def _note(self) -> None:
        if self._agent:
            self._noted.append((time.monotonic(), *agents_cpu_s(self._agent)))

    def _show(self, run: Run, shows: bool) -> None:
        if self._shown is None:
            self._shown = run._marks
        run._marks = self._shown if shows else Marks(None)
        self._now_shown = shows

    def finish(self, notes: str) -> None:
        self._close()
        self._note()
        calls_s = [self._spent_s[shown] / self._counted[shown] for shown in (False, True)]
        requests_s = self._requests_s / sum(self._counted.values())
        found = {"epochs": self.epochs, "calls_s": calls_s, "requests_s": requests_s, "agent": self._noted}
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
