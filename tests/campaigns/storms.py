"""Send ten signals to an agent at random times and check how it exits: `make storms`.

Each trial starts a real agent with two workers, alone or as one of two nodes, and sends it ten signals within a random
time, from the moment at which it has its signal handlers (/proc/<pid>/status). So signals arrive in every phase:
imports, joining, workers that start, run, crash and are restarted, workers that exit 0, stopping, finishing, ending. It
must exit with a status that docs/exit-codes.md gives for what happened, name it in its last line, print no traceback,
and leave no process.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

from support.procfs import kill_and_read, marked, outlast, read

SIGNALS = 10
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
FORWARDED = (signal.SIGUSR1, signal.SIGUSR2)
WITHIN_S = (0.0, 0.1, 0.5, 1.0, 2.0)
SCRIPTS = {
    "crashes": "sleep 0.05; exit 3",
    "exits 0": "sleep 0.2",
    "has a child in another session": "setsid sh -c \"trap '' TERM; sleep 1000\" & sleep 1000",
    "handles TERM": "trap 'exit 0' TERM; trap : USR1; while :; do sleep 0.1; done",
    "ignores signals": "trap '' TERM INT HUP QUIT; while :; do sleep 1; done",
    "works": "sleep 1000",
}
BOUND_S = 60.0
LEFT_S = 1.0
TOKEN = "ELASTIC_AGENT_STORMS"


@dataclass(frozen=True)
class Storm:
    """What is sent when, and to what."""

    script: str
    nodes: int
    signals: tuple[int, ...]
    times_s: tuple[float, ...]

    @property
    def statuses(self) -> set[int]:
        """Those documented for what may happen here: stopped by one of the signals, or done before any arrived."""
        stopped = {128 + signum for signum in self.signals if signum in STOPS}
        return stopped | ({0} if self.script == "exits 0" else set())


def plan(seed: int, index: int) -> Storm:
    rng = random.Random(f"{seed}.{index}")
    scripts = list(SCRIPTS)
    # The last one always ends the agent.
    signals = (*(rng.choice((*STOPS, *FORWARDED)) for _ in range(SIGNALS - 1)), rng.choice(STOPS))
    within_s = rng.choice(WITHIN_S)
    start_s = rng.choice((0.0, rng.uniform(0, 1.5)))
    times = sorted(start_s + rng.uniform(0, within_s) for _ in signals)
    return Storm(scripts[index % len(scripts)], 1 + (index // len(scripts)) % 2, signals, tuple(times))


def run(storm: Storm) -> tuple[list[int], str]:
    """Send it to every node of the job at once. Returns the exit statuses, and what is wrong; empty if nothing."""
    token = f"{os.getpid()}.{time.monotonic_ns()}"
    env = {**os.environ, TOKEN: token, "OMP_NUM_THREADS": "1"}
    agents = [
        subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for argv in commands(storm)
    ]
    try:
        for agent in agents:
            wait_handlers(agent)
        began = time.monotonic()
        for signum, at_s in zip(storm.signals, storm.times_s, strict=True):
            select.select([], [], [], max(0.0, began + at_s - time.monotonic()))
            for agent in agents:
                agent.send_signal(signum)
        for agent in agents:
            with suppress(subprocess.TimeoutExpired):
                agent.communicate(timeout=BOUND_S)
    finally:
        texts = [kill_and_read(agent, token, TOKEN)[1] for agent in agents]
    codes = [agent.returncode for agent in agents]
    troubles = [trouble(storm, code, text) for code, text in zip(codes, texts, strict=True)]
    return codes, "; ".join(filter(None, [*troubles, left_behind(token)]))


def commands(storm: Storm) -> list[list[str]]:
    flags = ["--nproc-per-node", "2", "--max-restarts", "1000", "--shutdown-timeout", "1", "--log-dir", os.devnull]
    flags += ["--forward-signals", "USR1,USR2", "--no-python"]
    if storm.nodes == 1:
        places = [["--standalone"]]
    else:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        meet = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "storm"]
        places = [[*meet, "--rdzv-conf", f"is_host={int(at == 0)}"] for at in range(storm.nodes)]
    return [
        [sys.executable, "-m", "elastic_agent", *place, *flags, "/bin/sh", "-c", SCRIPTS[storm.script]]
        for place in places
    ]


def wait_handlers(agent: subprocess.Popen[str]) -> None:
    """Wait until the agent handles SIGTERM, which the first line of its program sets."""
    until = time.monotonic() + BOUND_S
    while time.monotonic() < until and agent.poll() is None:
        for line in read(f"/proc/{agent.pid}/status").splitlines():
            if line.startswith(b"SigCgt:") and int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1:
                return
        select.select([], [], [], 0.0005)
    raise AssertionError("the agent never set its handler of SIGTERM")


def trouble(storm: Storm, code: int, text: str) -> str:
    if code not in storm.statuses:
        return f"status {code}, not one of {sorted(storm.statuses)}: {text[-2000:]!r}"
    if "Traceback" in text:
        return f"a traceback: {text[-2000:]!r}"
    last = text.splitlines()[-1] if text else ""
    return "" if last.startswith(f"elastic-agent: exit {code}: ") else f"status {code}, but the last line is {last!r}"


def left_behind(token: str) -> str:
    deadline = time.monotonic() + LEFT_S
    left = outlast(lambda: marked(token, TOKEN), deadline)
    return f"processes are left: {left}" if left else ""


def campaign(seed: int, first: int, count: int) -> tuple[Counter[int], list[str]]:
    """Run `count` storms: how often each status was seen, and a line for each storm in which something was wrong."""
    statuses: Counter[int] = Counter()
    wrong = []
    # A shell starts background jobs with SIGINT ignored, and the agents would inherit that.
    before = {signum: signal.signal(signum, signal.SIG_DFL) for signum in STOPS}
    try:
        for index in range(first, first + count):
            storm = plan(seed, index)
            codes, what = run(storm)
            statuses.update(codes)
            if what:
                wrong.append(f"storm {index} of seed {seed} ({storm}): {what}")
                print(wrong[-1], flush=True)
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    return statuses, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--storms", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="number of the first storm")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    statuses, wrong = campaign(given.seed, given.first, given.storms)
    print(f"{given.storms - len(wrong)} of {given.storms} as documented; statuses {dict(sorted(statuses.items()))}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
