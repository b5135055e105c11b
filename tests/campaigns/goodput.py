"""Real jobs of two workers with random SIGKILLs: every account of their seconds against the campaign's own clock.

python -m campaigns.goodput [--runs N] [--seconds S] [--seed N]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from campaigns.chaos.goodput import check_accounts
from support.workers import counting_steps

WORKER = counting_steps.__file__ or ""
WORKERS, RESTARTS, RUN_S = 2, 5, 300


def play(folder: Path, seed: int) -> dict[str, Any]:
    """One job, killed up to three times. Returns its last account, with what was counted. Raises Violation."""
    rng, events = random.Random(seed), folder / "events"
    flags = [
        "--standalone",
        "--nproc-per-node",
        str(WORKERS),
        "--max-restarts",
        str(RESTARTS),
        "--log-dir",
        "/dev/null",
    ]
    argv = [sys.executable, "-m", "elastic_agent", *flags, WORKER, str(folder / "log"), str(folder / "kept")]
    began_s = time.monotonic()
    process = subprocess.Popen(argv, env={**os.environ, "ELASTIC_AGENT_EVENTS": str(events)}, stderr=subprocess.DEVNULL)
    killed = sum(_kill(rng, process, str(folder)) for _ in range(rng.randint(0, 3)))
    exit_code = process.wait(RUN_S)
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    checked = check_accounts([{"what": "start", "node": "a", "at_s": began_s}], {"a": lines})
    steps = [line.split() for line in (folder / "log").read_text().splitlines()]
    last: dict[str, Any] = [line for line in lines if line["what"] == "goodput"][-1]
    distinct = len({tuple(step) for step in steps})
    return {**last, "exit_code": exit_code, "checked": checked, "killed": killed, "steps": len(steps), "new": distinct}


def _kill(rng: random.Random, process: subprocess.Popen[bytes], folder: str) -> bool:
    """SIGKILL to one worker, some time from now, if the job still runs and has one."""
    select.select([], [], [], rng.uniform(0.3, 5.0))
    workers = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and _is_worker(pid, folder)]
    if process.poll() is not None or not workers:
        return False
    os.kill(rng.choice(workers), signal.SIGKILL)
    return True


def _is_worker(pid: str, folder: str) -> bool:
    try:
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return WORKER.encode() in argv and b"-m" not in argv and any(each.startswith(folder.encode()) for each in argv)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="How many. [200]")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="No new one after so many. [all]")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="Of the first. [random]")
    asked = parser.parse_args()
    until_s, runs, accounts, killed, ended = time.monotonic() + asked.seconds, 0, 0, 0, 0
    worst = 0.0
    for seed in range(asked.seed, asked.seed + asked.runs):
        if time.monotonic() >= until_s:
            break
        with tempfile.TemporaryDirectory(prefix="goodput-") as folder:
            found = play(Path(folder), seed)
        worst = max(worst, found["checked"].worst)
        runs, accounts, killed = runs + 1, accounts + found["checked"].number, killed + found["killed"]
        ended += found["exit_code"] == 0
        parts = {name: round(length_s, 2) for name, length_s in found["buckets"].items() if length_s > 0.005}
        print(
            f"seed {seed}: {found['killed']} kills, {found['steps']} steps, {found['new']} of them new: {parts}",
            flush=True,
        )
    print(f"{runs} jobs, {killed} kills, {ended} ended with 0; {accounts} accounts, at most {100 * worst:.5f} % off")


if __name__ == "__main__":
    main()
