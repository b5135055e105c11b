"""Each tool's own resume in the middle of an epoch beside this library's: what it misses, repeats and draws anew.

64 samples, batches of 4, shuffled, a random draw in `__getitem__`; SIGKILL after 6 batches of the second epoch, then
the script is started again and runs to the end of the third.

Then what each tool's own saves cost and withstand: the seconds for which a save of 100 MB holds the training up, and
what a start finds after a SIGKILL at a random moment of a job that saves 20 MB after each step.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import support.resume
from support.resume.jobs import QUIET, Job, play
from support.source_tree import ROOT

SCRIPT = Path(support.resume.__path__[0]) / "tools_script.py"
IMPORTS = {
    "lightning": ["torch", "lightning.pytorch"],
    "accelerate": ["torch", "accelerate"],
    "torchdata": ["torch", "torchdata.stateful_dataloader"],
    "hugging_face": ["torch", "transformers.trainer", "accelerate"],
    "fabric": ["torch", "lightning.fabric"],
}
EPOCH = 1
SAMPLES = 64
SAVES_SCRIPT = SCRIPT.with_name("saves_script.py")
SAVERS = ("lightning", "accelerate", "torchdata", "hugging_face", "dcp", "dcp_async", "ours")
TRIALS, SAVED_MB = 20, 100


@dataclass(frozen=True)
class Row:
    """One tool."""

    mode: str
    processes: str
    missed: int
    repeated: int
    draws: int
    """Samples of the epoch that drew other numbers than in the run that was not killed."""


def epoch_of(job: Job) -> dict[int, tuple[tuple[float, ...], ...]]:
    """The batches of the epoch, by number; where two lives trained on one of that number, the later one stands."""
    return {place[2]: tuple(parts[-1]) for place, parts in job.batches().items() if place[:2] == ("train", EPOCH)}


def judge(whole: Job, killed: Job) -> tuple[int, int, int]:
    """Samples missed, samples repeated, samples with other draws."""
    seen = Counter(int(sample[0]) for batch in epoch_of(killed).values() for sample in batch)
    drew = {int(sample[0]): sample[1:] for batch in epoch_of(whole).values() for sample in batch}
    found = [sample for batch in epoch_of(killed).values() for sample in batch]
    others = {int(sample[0]) for sample in found if drew.get(int(sample[0])) != sample[1:]}
    return SAMPLES - len(seen), sum(count - 1 for count in seen.values()), len(others)


def play_all(python: str, modes: list[str], directory: Path) -> list[Row]:
    """Every tool with 0 and with 2 loader processes, one after the other."""
    jobs: dict[tuple[str, str], tuple[Job, Job]] = {}
    for mode in modes:
        for processes in ("0", "2"):
            name = f"{mode.replace(' ', '-')}-{processes}"
            options = {"MODE": mode, "PROCESSES": processes, "ELASTIC_AGENT_SAVE_EVERY": "1"}
            whole, killed = (Job(directory, f"{name}-{kind}", **options) for kind in ("whole", "killed"))
            jobs[mode, processes] = whole.life(), killed.life(KILL="1:5").life()
    for tool, imports in IMPORTS.items():
        mine = [job for (mode, _), both in jobs.items() if mode.split()[0] == tool for job in both]
        if mine:
            play(python, SCRIPT, mine, imports)
    return [Row(*place, *judge(*both)) for place, both in jobs.items()]


def table(rows: list[Row]) -> str:
    lines = [
        "| tool, whose resume | loader processes | missed | repeated | other draws |",
        "|---|---|---|---|---|",
        *(f"| {row.mode} | {row.processes} | {row.missed} | {row.repeated} | {row.draws} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Saver:
    """What a tool's saves cost, and how the starts after SIGKILLs went."""

    tool: str
    blocked_s: float
    """Wall time; which other work on the machine lengthens."""
    processor_s: float
    """The same of the training's own thread."""
    ends: Counter[str]

    @property
    def torn(self) -> int:
        """Starts that could not read the checkpoint, or read parts of two, or went back to none."""
        return self.ends.total() - self.ends["whole"]


def play_saves(python: str, tool: str, directory: Path, seed: int) -> Saver:
    """All trials of one tool. Raises CalledProcessError where its script fails."""
    told = subprocess.run(
        [python, str(SAVES_SCRIPT), tool, str(TRIALS), str(SAVED_MB), str(directory / tool), str(seed)],
        env={**os.environ, **QUIET},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    found = json.loads(told.stdout.splitlines()[-1])
    blocked_s, processor_s = found["blocked_s"]
    return Saver(tool, blocked_s, processor_s, Counter(found["ends"]))


def table_of_saves(rows: list[Saver]) -> str:
    lines = [
        "| tool | blocked, s | processor time of it, s | torn | of them unreadable, mixed, lost |",
        "|---|---|---|---|---|",
        *(
            f"| {row.tool} | {row.blocked_s:.3f} | {row.processor_s:.3f} | {row.torn} of {row.ends.total()} "
            f"| {row.ends['unreadable']}, {row.ends['mixed']}, {row.ends['lost']} |"
            for row in rows
        ),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Prints the tables. Returns 1 where this library missed, repeated or drew anything anew, or tore a checkpoint.

    Needs the environment .frameworks, which make makes."""
    python = str(ROOT / ".frameworks" / "bin" / "python")
    modes = [f"{tool} {whose}" for tool in IMPORTS for whose in ("own", "ours") if (tool, whose) != ("fabric", "own")]
    with tempfile.TemporaryDirectory(prefix="rivals-") as directory:
        rows = play_all(python, modes, Path(directory))
    sys.stdout.write(f"of {SAMPLES} samples of the epoch that a SIGKILL interrupted:\n\n{table(rows)}")
    sys.stdout.flush()
    seed = random.SystemRandom().randrange(10**9)
    with tempfile.TemporaryDirectory(prefix="rivals-") as directory:
        savers = [play_saves(python, tool, Path(directory), seed) for tool in SAVERS]
    what = f"a save of {SAVED_MB} MB, and {TRIALS} SIGKILLs while {SAVED_MB // 5} MB are saved, seed {seed}"
    sys.stdout.write(f"\n{what}:\n\n{table_of_saves(savers)}")
    failed = any(row.missed or row.repeated or row.draws for row in rows if row.mode.endswith("ours"))
    return int(failed or any(saver.torn for saver in savers if saver.tool == "ours"))


if __name__ == "__main__":
    sys.exit(main())
