"""What all guards on at once cost the digits job: `make guard-cost`.

Three parts, each measured where other work on the host disturbs it least:

- a step: in runs with guards, half of the epochs go without what a step shows to the agent. What its calls take is
  measured by itself, in some epochs, less what they take without guards. As a check, each other epoch is compared with
  its neighbour of the same process, by the median of its steps: wall time, and processor time of the training's thread.
  Runs without guards, which alternate with the others, are compared in the same way: what they differ by is the noise.
- the agent: processor time of its process and of its helpers, in runs with guards and without, while the training
  goes on and in all.
- the agent at rest: one job with and one without beside each other, for two looks of all watches.

All messages go to a web server of this host's.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from elastic_agent.control.in_agent.usual_watches import USUAL
from elastic_agent.launcher.preemption.notices import URL
from support.outside.web_server import WebServer, web_server
from support.workers import timed_digits

GOAL = 0.005
STEP_GOAL_S = 20e-6
WORKERS = 2
WATCHES = "".join(USUAL.values()) + '[[watch]]\nwhat = "worker-memory"\nthreshold = "30 minutes left"\nfor = "10 min"\n'
"""The usual watches, and the one of the workers' memory that a table of one's own may have."""
RESAMPLES = 2000
REST_EPOCH_S = 5.0
"""In the job at rest an epoch lasts so long."""
EVERY_S = 60.0
"""How often the usual watches look."""

Ratio = tuple[float, float, float]
"""How much more, and between which values it lies in 95 % of resamples."""


@dataclass
class Ran:
    """One run of the job."""

    pairs: Sequence[tuple[Sequence[float], Sequence[float]]] = field(default_factory=list)
    """Neighbouring epochs of one process, as `timed_digits` notes them: one that hides its steps, one that shows them.
    """
    calls_s: Sequence[float] = (0.0, 0.0)
    """What the calls of a step for guards took: in epochs that hide their steps, and in those that show them."""
    requests_s: float = 0.0
    """What the look of a step for requests took, which it makes without guards too."""
    wall_s: float = 0.0
    agent_s: float = 0.0
    """Processor time of the agent's process and of its helpers."""
    training_s: float = 0.0
    """Seconds of the training, without its warm-up."""
    agent_training_s: float = 0.0
    """What of `agent_s` was used in them."""


class Job:
    """One run of the job, that goes on until `ended` is called."""

    def __init__(
        self, folder: Path, epochs: int, flags: Sequence[str], metadata: str, arguments: Sequence[str] = ()
    ) -> None:
        self._folder, self._notes = folder, folder / "notes"
        job = ["--standalone", "--nproc-per-node", str(WORKERS), "--log-dir", str(folder / "logs"), *flags]
        saves = ["--checkpoint-dir", str(folder / "saves"), *arguments]
        script = [timed_digits.__file__, str(self._notes), "--epochs", str(epochs), *saves]
        # The agent's process is known to the workers only when it is there: so it begins as a shell that becomes it.
        command = f'{timed_digits.AGENT}=$$ exec "$0" "$@"'
        self._begun_s = time.monotonic()
        with open(folder / "log", "wb") as log:
            self._agent = subprocess.Popen(
                ["/bin/sh", "-c", command, sys.executable, "-m", "elastic_agent", *job, *script],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, env={**os.environ, URL: metadata},
            )  # fmt: skip

    def ended(self) -> Ran:
        """Waits. Raises RuntimeError where the job failed."""
        os.waitid(os.P_PID, self._agent.pid, os.WEXITED | os.WNOWAIT)
        wall_s = time.monotonic() - self._begun_s
        own_s, _ = timed_digits.agents_cpu_s(self._agent.pid)
        if self._agent.wait():
            log = (self._folder / "log").read_text()[-2000:]
            raise RuntimeError(f"the job ended with {self._agent.returncode}: {log}")
        found = [json.loads(Path(f"{self._notes}.{rank}").read_text()) for rank in range(WORKERS)]
        [before, after] = found[0]["agent"]
        return Ran(
            pairs=[pair for each in found for pair in pairs_of(each["epochs"])],
            calls_s=tuple(statistics.mean(each["calls_s"][shown] for each in found) for shown in (0, 1)),
            requests_s=statistics.mean(each["requests_s"] for each in found),
            wall_s=wall_s,
            agent_s=own_s + after[2],  # helpers that end behind the training are not counted: workers then are
            training_s=after[0] - before[0],
            agent_training_s=sum(after[1:]) - sum(before[1:]),
        )

    def close(self) -> None:
        """End what still goes on."""
        if self._agent.poll() is None:
            self._agent.terminate()
            self._agent.wait()


def pairs_of(epochs: Sequence[Sequence[float]]) -> list[tuple[Sequence[float], Sequence[float]]]:
    """(hidden, shown) of neighbouring epochs, the first of which shows its steps, the next two do not, and so on."""
    ordered = [(one, two) for one, two in zip(epochs[::2], epochs[1::2], strict=False)]
    return [(two, one) if timed_digits.shows(2 * at) else (one, two) for at, (one, two) in enumerate(ordered)]


def guards(folder: Path, server: WebServer) -> list[str]:
    """Flags that turn all guards on."""
    (folder / "watches.toml").write_text(WATCHES)
    return [
        "--watch", str(folder / "watches.toml"), "--notify", f"http://127.0.0.1:{server.port}/hook",
        "--kill-switch", str(folder / "stop"), "--save-switch", str(folder / "save"),
        "--save-signal", "USR2", "--kill-signal", "RTMIN", "--forward-signals", "USR1",
        "--exit-duration-in-mins", "600", "--spot-notices", "gcp",
    ]  # fmt: skip


def run(folder: Path, epochs: int, flags: list[str], metadata: str) -> Ran:
    """One job. Raises RuntimeError where it fails."""
    with closing(Job(folder, epochs, flags, metadata)) as job:
        return job.ended()


def measure(pairs: int, epochs: int, lasts_s: float) -> tuple[list[Ran], list[Ran]]:
    """Runs without guards, and with all of them, in pairs of which either is the first."""
    without: list[Ran] = []
    with_all: list[Ran] = []
    begun_s = time.monotonic()
    with web_server() as server:
        for number in range(pairs):
            took_s = time.monotonic() - begun_s
            if number and took_s * (number + 1) / number > lasts_s:
                break
            for guarded in (number % 2 == 0, number % 2 != 0):
                with tempfile.TemporaryDirectory(prefix="guard-cost-") as name:
                    folder = Path(name)
                    flags = guards(folder, server) if guarded else []
                    ran = run(folder, epochs, flags, f"http://127.0.0.1:{server.port}")
                (with_all if guarded else without).append(ran)
                sys.stderr.write("." if number % 10 else "|")
                sys.stderr.flush()
    sys.stderr.write("\n")
    return without, with_all


def measure_rest(lasts_s: float) -> tuple[Ran, Ran]:
    """A job without guards and one with all of them beside each other, whose workers mostly wait."""
    epochs = timed_digits.WARM_EPOCHS + round(lasts_s / REST_EPOCH_S)
    slow = ("--epoch-seconds", str(REST_EPOCH_S))
    with (
        web_server() as server,
        tempfile.TemporaryDirectory(prefix="guard-cost-") as one,
        tempfile.TemporaryDirectory(prefix="guard-cost-") as two,
    ):
        metadata = f"http://127.0.0.1:{server.port}"
        with (
            closing(Job(Path(one), epochs, [], metadata, slow)) as without,
            closing(Job(Path(two), epochs, guards(Path(two), server), metadata, slow)) as with_all,
        ):
            return without.ended(), with_all.ended()


def spread(values: Sequence[float]) -> Ratio:
    """The median, and between which values it lies in 95 % of resamples."""
    draw = random.Random(0)
    resampled = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return statistics.median(values), resampled[RESAMPLES // 40], resampled[-RESAMPLES // 40]


def more(runs: Sequence[Ran], what: int) -> Ratio:
    """By how much an epoch that shows its steps takes longer than its neighbour. what: of `timed_digits`' three."""
    return spread([shown[what] / hidden[what] - 1 for ran in runs for hidden, shown in ran.pairs])


def calls_s(runs: Sequence[Ran]) -> Ratio:
    """What a step takes for guards: its calls, less what they take where there is nothing to show."""
    return spread([ran.calls_s[1] - ran.calls_s[0] for ran in runs])


def usual(runs: Sequence[Ran], what: int) -> float:
    return statistics.median(epoch[what] for ran in runs for pair in ran.pairs for epoch in pair)


def percent(found: Ratio) -> str:
    return f"{100 * found[0]:+.2f} % ({100 * found[1]:+.2f} to {100 * found[2]:+.2f})"


def table(without: list[Ran], with_all: list[Ran], rest: tuple[Ran, Ran] | None = None) -> tuple[list[str], bool]:
    """The lines to print, and whether the goals are met: by what a step and the agent take while the training goes on,
    at the upper end of what resamples say, and, as far as their noise lets one say, by epochs beside epochs."""
    median = statistics.median
    lines = ["| a step, epochs beside epochs | usual | more with guards (95 % of resamples) | the same without any |"]
    lines.append("|---|---|---|---|")
    names = ("wall time, median of an epoch", "processor time of the training's thread", "of the process, with saves")
    for what, name in enumerate(names):
        values = f"{1e3 * usual(with_all, what):.3f} ms | {percent(more(with_all, what))}"
        lines.append(f"| {name} | {values} | {percent(more(without, what))} |")
    lines += ["", "| processor time of the agent | without | with all | more |", "|---|---|---|---|"]

    def line(what: str, rates: Sequence[float], unit: float, name: str) -> float:
        one, two = rates
        texts = [f"{unit * value:.2f} {name}" for value in (one, two)]
        lines.append(f"| {what} | {' | '.join(texts)} | {unit * (two - one):+.2f} {name} |")
        return two - one

    wall_s = median(ran.wall_s for ran in with_all)
    in_all = [median(ran.agent_s for ran in runs) for runs in (without, with_all)]
    in_all_s = line(f"a run of {wall_s:.0f} s", in_all, 1.0, "s")
    going = [median(ran.agent_training_s / ran.training_s for ran in runs) for runs in (without, with_all)]
    rate = line("in a second of the training", going, 1e3, "ms")
    if rest is not None:
        rates = [ran.agent_training_s / ran.training_s for ran in rest]
        rate = line(f"in a second at rest, of {rest[1].training_s:.0f} s", rates, 1e3, "ms")
    step_s = calls_s(with_all)
    us = [1e6 * value for value in step_s]
    worker, agent = max(0.0, step_s[0]) / usual(with_all, 2), max(0.0, rate) / WORKERS
    least, most = (max(0.0, bound) / usual(with_all, 2) + agent for bound in step_s[1:])
    once_s, total, slower = in_all_s - rate * wall_s, worker + agent, more(with_all, 1)[1] > GOAL
    count = sum(len(ran.pairs) for ran in with_all)
    lines += ["", f"{len(with_all)} pairs of runs, {count} pairs of epochs with guards; {load()}"]
    lines.append(f"what a step calls for guards takes {us[0]:.1f} us ({us[1]:.1f} to {us[2]:.1f} in 95 % of resamples)")
    looks_us = 1e6 * median(ran.requests_s for ran in (*with_all, *without))
    lines.append(f"with guards or without, a step looks for requests, which takes {looks_us:.1f} us")
    parts = f"{100 * worker:.2f} % of a step and {100 * agent:.2f} % of {WORKERS} cores for the agent"
    ranges = f"({100 * least:.2f} to {100 * most:.2f} in 95 % of resamples)"
    lines.append(f"{parts} are {100 * total:.2f} % {ranges}; the goal is at most {100 * GOAL:.1f} %")
    lines.append(f"and once, at its start and end, the agent takes {once_s:.2f} s more")
    if total < GOAL:
        lines.append(
            f"with that, the goal is met by jobs of {max(0.0, once_s) / (GOAL - total) / WORKERS:.0f} s or more"
        )
    if slower:
        lines.append("epochs beside epochs miss the goal, beyond their noise")
    return lines, most <= GOAL and step_s[0] <= STEP_GOAL_S and not slower


def load() -> str:
    return f"load {os.getloadavg()[0]:.1f} at the end, on {os.cpu_count()} cores"


def main() -> int:
    """Returns 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description="What all guards cost the digits job.")
    parser.add_argument("--pairs", type=int, default=12, help="runs with, and as many without (default: 12)")
    parser.add_argument("--epochs", type=int, default=104, help="of each run, 23 steps each (default: 104)")
    parser.add_argument(
        "--for", dest="lasts_s", type=float, default=420.0, help="at most so many seconds for them (default: 420)"
    )
    parser.add_argument(
        "--rest", type=float, default=2 * EVERY_S, help="seconds of the job at rest; 0: none (default: 120)"
    )
    given = parser.parse_args()
    rest = measure_rest(given.rest) if given.rest else None
    lines, met = table(*measure(given.pairs, given.epochs, given.lasts_s), rest)
    print("\n".join(lines))
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
