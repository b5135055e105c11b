"""1 to 4 nodes as processes: killed, late, replaced, the first one too, or all of them, in random order."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from support.source_tree import ROOT

PROGRAM = ROOT / "tests" / "support" / "trainers" / "trainer_program.py"
PASSES = 4
BOUND_S = 600.0


class Schedule:
    """One training."""

    def __init__(self, seed: int, work: Path) -> None:
        self.dice, self.work, self.seed = random.Random(seed), work, seed
        (work / "seen").mkdir()
        ports = []
        for _ in range(3):
            with socket.create_server(("127.0.0.1", 0)) as server:
                ports.append(server.getsockname()[1])
        self.endpoints = ",".join(f"127.0.0.1:{port}" for port in ports)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.begun = 0
        self.happened: list[str] = []

    def play(self) -> list[str]:
        """Plays it; what was wrong at its end."""
        for _ in range(self.dice.randint(1, 3)):
            self.start()
        for _ in range(self.dice.randint(1, 3)):
            threading.Event().wait(self.dice.uniform(2.0, 6.0))
            self.act()
        deadline_s = time.monotonic() + BOUND_S
        wrong = []
        for name, process in self.running.items():
            try:
                code = process.wait(max(0.1, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                wrong.append(f"{name} had not ended after {BOUND_S:g} s: {self.tail(name)}")
                continue
            if code:
                wrong.append(f"{name} ended with {code}: {self.tail(name)}")
        # None before all were looked at: the end of one is what the others would tell of last.
        for process in self.running.values():
            process.kill()
            process.wait()
        return wrong or self.differences()

    def start(self) -> None:
        self.begun += 1
        name = f"node{self.begun}"
        paths = f"{ROOT / '.typing'}:{ROOT / 'tests'}"
        variables = {
            "LOGLEVEL": "INFO",
            "PASSES": str(PASSES),
            "SLOW_S": "0.03",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": paths,
        }
        variables["STATES"] = str(self.work / "states")
        with open(self.work / f"{name}.err", "wb") as stderr:
            self.running[name] = subprocess.Popen(
                [sys.executable, str(PROGRAM), name, str(self.work), self.endpoints, "1:4", "4"],
                env={**os.environ, **variables}, stderr=stderr, stdout=subprocess.DEVNULL,
            )  # fmt: skip
        self.happened.append(f"start {name}")

    def act(self) -> None:
        living = [name for name, process in self.running.items() if process.poll() is None]
        if len(living) < len(self.running) or not living:
            return  # the training is over
        what = self.dice.choice(["first", "one", "all", "late", "late"])
        gone = {"first": living[:1], "one": [self.dice.choice(living)], "all": living, "late": []}[what]
        for name in gone:
            process = self.running.pop(name)
            process.send_signal(signal.SIGKILL)
            process.wait()
            self.happened.append(f"kill {name}")
        for _ in gone if len(self.running) else gone[:1]:
            self.start()
        if what == "late" and len(self.running) < 4:
            self.start()

    def tail(self, name: str) -> str:
        return " | ".join((self.work / f"{name}.err").read_text().splitlines()[-3:])

    def differences(self) -> list[str]:
        told: dict[str, list[Any]] = {}
        for name in self.running:
            told[name] = [json.loads(line)[1] for line in (self.work / name).read_text().splitlines()]
        first = next(iter(told.values()))
        wrong = [f"{name} was told otherwise" for name, stats in told.items() if stats != first]
        counted = [(stats["epoch"], stats["num_samples"], stats["batch_count"]) for stats in first]
        if counted != [(number, 250, 25) for number in range(1, PASSES + 1)]:
            wrong.append(f"epochs, samples and batches are {counted}")
        verified = subprocess.run(
            [sys.executable, "-m", "elastic_agent.worker", "verify", str(self.work / "states")],
            capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT / ".typing")},
        )  # fmt: skip
        if verified.returncode or f"{250 * PASSES} samples, each trained on exactly once" not in verified.stdout:
            wrong.append(f"the ledger says {verified.stdout.splitlines()[-1:]}")
        return wrong


def schedules(count: int, seed: int) -> int:
    """Plays so many; prints and returns how many ended wrong."""
    failed = 0
    for number in range(seed, seed + count):
        folder = Path(tempfile.mkdtemp(prefix=f"schedule-{number}-"))
        schedule = Schedule(number, folder)
        wrong = schedule.play()
        failed += bool(wrong)
        said = f"{'; '.join(wrong)}; all that its nodes wrote is in {folder}" if wrong else "right"
        print(f"schedule {number} ({', '.join(schedule.happened)}): {said}", flush=True)
        if not wrong:
            shutil.rmtree(folder)
    print(f"{count} schedules of nodes: {failed} ended wrong", flush=True)
    return failed
