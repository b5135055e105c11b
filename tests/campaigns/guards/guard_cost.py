"""What all guards on at once cost the digits job: `make guard-cost`.

Runs of the job with all guards and without alternate, so that both meet the same machine. In a run with guards, every
other epoch goes without what a step shows to the agent, so that one process measures both: less noise, and the workers'
part only. The agent's part is the processor time that it takes more than without guards, as a share of the time that
the job has on its workers' cores. All messages go to a web server of this host's.
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
from dataclasses import dataclass, field
from pathlib import Path

from elastic_agent.launcher.preemption.notices import URL
from support.outside.web_server import WebServer, web_server
from support.workers import timed_digits

GOAL = 0.005
WORKERS = 2
WATCHES = "hang,disk,inodes,memory,slow,gpu"
RESAMPLES = 2000


@dataclass
class Ran:
    """One run of the job."""

    shown_s: list[float] = field(default_factory=list)
    """Steps of all ranks; in a run without guards, of the epochs that would show them."""
    hidden_s: list[float] = field(default_factory=list)
    shown_cpu_s: float = 0.0
    """Processor time of the workers for one step and rank, saves included."""
    hidden_cpu_s: float = 0.0
    wall_s: float = 0.0
    agent_s: float = 0.0
    """Processor time of the agent's own processes."""


def guards(folder: Path, server: WebServer) -> list[str]:
    """Flags that turn all guards on."""
    return [
        "--watch", WATCHES, "--notify", f"http://127.0.0.1:{server.port}/hook",
        "--kill-switch", str(folder / "stop"), "--save-switch", str(folder / "save"),
        "--save-signal", "USR2", "--forward-signals", "USR1", "--exit-duration-in-mins", "600",
        "--spot-notices", "gcp",
    ]  # fmt: skip


def run(folder: Path, epochs: int, flags: list[str], metadata: str) -> Ran:
    """One job. Raises RuntimeError where it fails."""
    notes = folder / "notes"
    job = ["--standalone", "--nproc-per-node", str(WORKERS), "--log-dir", str(folder / "logs"), *flags]
    script = [timed_digits.__file__, str(notes), "--epochs", str(epochs), "--checkpoint-dir", str(folder / "saves")]
    begun_s = time.monotonic()
    with open(folder / "log", "wb") as log:
        agent = subprocess.Popen(
            [sys.executable, "-m", "elastic_agent", *job, *script],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL, env={**os.environ, URL: metadata},
        )  # fmt: skip
        _, status, used = os.wait4(agent.pid, 0)
        agent.returncode = os.waitstatus_to_exitcode(status)
    wall_s = time.monotonic() - begun_s
    if agent.returncode:
        raise RuntimeError(f"the job ended with {agent.returncode}: {(folder / 'log').read_text()[-2000:]}")
    found = [json.loads(Path(f"{notes}.{rank}").read_text()) for rank in range(WORKERS)]
    ran = Ran(wall_s=wall_s, agent_s=used.ru_utime + used.ru_stime - sum(each["process_s"] for each in found))
    for kind in ("shown", "hidden"):
        steps = [step for each in found for step in each[kind]["steps_s"]]
        setattr(ran, f"{kind}_s", steps)
        setattr(ran, f"{kind}_cpu_s", sum(each[kind]["cpu_s"] for each in found) / len(steps))
    return ran


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


def ratio(before: Sequence[float], after: Sequence[float]) -> tuple[float, float, float]:
    """The median of the pairs' ratios, less one, and between which values it lies in 95 % of resamples."""
    pairs = [two / one - 1 for one, two in zip(before, after, strict=True)]
    draw = random.Random(0)
    resampled = sorted(statistics.median(draw.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    return statistics.median(pairs), resampled[RESAMPLES // 40], resampled[-RESAMPLES // 40]


def table(without: list[Ran], with_all: list[Ran]) -> tuple[list[str], bool]:
    """The lines to print, and whether the goal is met: by the workers' part and the agent's together, and, as far as
    their noise lets one say, by runs beside runs."""
    median = statistics.median

    def line(what: str, one: Sequence[float], two: Sequence[float], unit: float, name: str) -> str:
        more, low, high = ratio(one, two)
        values = f"{unit * median(one):.3f} {name} | {unit * median(two):.3f} {name}"
        return f"| {what} | {values} | {100 * more:+.2f} % ({100 * low:+.2f} to {100 * high:+.2f}) |"

    plain_s = [median(ran.shown_s + ran.hidden_s) for ran in without]
    lines = ["| what | without | with all | more (95 % of resamples) |", "|---|---|---|---|"]
    guarded_s = [median(ran.shown_s) for ran in with_all]
    lines.append(line("a step, runs beside runs", plain_s, guarded_s, 1e3, "ms"))
    hidden, shown = ([median(getattr(ran, kind)) for ran in with_all] for kind in ("hidden_s", "shown_s"))
    lines.append(line("a step, epochs beside epochs of the same runs", hidden, shown, 1e3, "ms"))
    halves = [median(ran.hidden_s) for ran in without], [median(ran.shown_s) for ran in without]
    lines.append(line("the same of runs without guards: the noise", *halves, 1e3, "ms"))
    cpu = [ran.shown_cpu_s for ran in without], [ran.shown_cpu_s for ran in with_all]
    lines.append(line("processor time of a step, runs beside runs", *cpu, 1e3, "ms"))
    cpu = [ran.hidden_cpu_s for ran in with_all], [ran.shown_cpu_s for ran in with_all]
    lines.append(line("the same, epochs beside epochs", *cpu, 1e3, "ms"))
    agents = [ran.agent_s for ran in without], [ran.agent_s for ran in with_all]
    lines.append(line("processor time of the agent, its start included", *agents, 1.0, "s"))
    wall_s = sum(ran.wall_s for ran in with_all)
    agent = (sum(agents[1]) - sum(agents[0])) / (WORKERS * wall_s)
    worker = ratio(hidden, shown)[0]
    total = max(0.0, worker) + max(0.0, agent)
    parts = f"workers {100 * worker:+.2f} % (epochs beside epochs) and agent {100 * agent:+.2f} %"
    cores = f"(of {WORKERS} cores over runs of {wall_s / len(with_all):.0f} s)"
    lines += [
        "",
        f"{len(with_all)} pairs of runs, {sum(len(ran.shown_s) for ran in with_all)} steps that show themselves",
        f"{parts} {cores} are {100 * total:.2f} %; the goal is at most {100 * GOAL:.1f} %",
        f"load {os.getloadavg()[0]:.1f} at the end, on {os.cpu_count()} cores",
    ]
    _, low, high = ratio(plain_s, guarded_s)
    if low > GOAL:
        lines.append("runs beside runs miss the goal, beyond their noise")
    elif high > GOAL:
        lines.append("runs beside runs leave it open: their noise is larger than the goal")
    return lines, total <= GOAL and low <= GOAL


def main() -> int:
    """Returns 1 where the goal is missed."""
    parser = argparse.ArgumentParser(description="What all guards cost the digits job.")
    parser.add_argument("--pairs", type=int, default=16, help="runs with, and as many without (default: 16)")
    parser.add_argument("--epochs", type=int, default=40, help="of each run, 23 steps each (default: 40)")
    parser.add_argument(
        "--for", dest="lasts_s", type=float, default=280.0, help="at most so many seconds (default: 280)"
    )
    given = parser.parse_args()
    lines, met = table(*measure(given.pairs, given.epochs, given.lasts_s))
    print("\n".join(lines))
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
