"""Scripts of frameworks that are killed and started again, and what they saw compared with a run that was not."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from support.source_tree import ROOT

LIVES = ROOT / "tests" / "integration" / "resume" / "lives.py"
RUN_S = 800
KILLED = -9
BATCHES = 16
"""In an epoch of `tools_script`."""
QUIET = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}


class Job:
    """One training job, in a directory of its own, over as many lives as `lives` holds."""

    def __init__(self, directory: Path, name: str, **env: str) -> None:
        self.directory = directory / name
        self.directory.mkdir()
        self.checkpoints = self.directory / "checkpoints"
        self.env = {"SEEN": str(self.directory / "seen"), "CHECKPOINTS": str(self.checkpoints), **env}
        self.lives: list[dict[str, Any]] = []

    def life(self, ranks: int = 1, **env: str) -> Job:
        """Another life; KILL="place" ends it there."""
        self.lives.append({"ranks": ranks, "env": {**self.env, **env}})
        return self

    def seen(self) -> list[list[Any]]:
        """What all ranks of all lives wrote, in order for each rank."""
        files = sorted(self.directory.glob("seen.[0-9]"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def batches(self) -> dict[tuple[Any, ...], list[list[tuple[Any, ...]]]]:
        """Each batch's samples with their draws, once for each time that a rank has seen a part of it."""
        found: dict[tuple[Any, ...], list[list[tuple[Any, ...]]]] = {}
        for kind, first, second, third, what in self.seen():
            if kind in ("train", "val"):
                place = (kind, first, second) if kind == "train" else (kind, first, second, third)
                found.setdefault(place, []).append([tuple(sample) for sample in what])
        return found

    def reported(self) -> dict[tuple[Any, ...], list[Any]]:
        """What was said last at each place that is no batch."""
        return {(kind, first): rest for kind, first, *rest in self.seen() if kind not in ("train", "val")}


def play(python: str, script: Path, jobs: list[Job], imports: list[str]) -> None:
    """Plays all lives, one after the other. Raises AssertionError where one ended otherwise than it was to."""
    lives = [life | {"imports": imports} for job in jobs for life in job.lives]
    done = subprocess.run(
        [python, str(LIVES), str(script)],
        input=json.dumps(lives),
        env={**os.environ, **QUIET, "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), *_given("PYTHONPATH")])},
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    ends = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    wrong = [
        (number, end)
        for number, (life, end) in enumerate(zip(lives, ends, strict=False))
        if set(end) != ({KILLED} if "KILL" in life["env"] else {0})
    ]
    assert len(ends) == len(lives), done.stdout + done.stderr[-8000:]
    assert not wrong, f"{wrong}\n{done.stderr[-8000:]}"


def _given(name: str) -> list[str]:
    return [value] if (value := os.environ.get(name)) else []


def differences(whole: Job, job: Job) -> list[str]:
    """Batches of `job` that are not those of `whole`, whichever life saw them, whatever parts its ranks had."""
    expected = {place: sorted(sample for part in parts for sample in part) for place, parts in whole.batches().items()}
    found = {place: sorted({sample for part in parts for sample in part}) for place, parts in job.batches().items()}
    return [
        f"{place}: {str(expected.get(place))[:200]}, and {str(found.get(place))[:200]} over restarts"
        for place in sorted(expected.keys() | found.keys(), key=str)
        if expected.get(place) != found.get(place)
    ]


def unkept(job: Job) -> int:
    """How many batches a killed life had done that were in no checkpoint yet: how fast the disk is decides it."""
    done: list[tuple[int, int]] = [
        (epoch * BATCHES + number + 1, kept) for kind, epoch, number, kept, _ in job.seen() if kind == "killed"
    ]
    return max(number - kept for number, kept in done)


def again(job: Job) -> int:
    """How many batches were computed again after a restart; 0 where no restart happened."""
    return sum(len(parts) - 1 for parts in job.batches().values())
