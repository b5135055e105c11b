"""Each tool's own resume in the middle of an epoch beside this library's: what it misses, repeats and draws anew.

64 samples, batches of 4, shuffled, a random draw in `__getitem__`; SIGKILL after 6 batches of the second epoch, then
the script is started again and runs to the end of the third.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import support.resume
from support.resume.jobs import Job, play
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


def main() -> int:
    """Prints the table. Returns 1 where this library missed, repeated or drew anything anew.

    Needs the environment .frameworks, which make makes."""
    python = str(ROOT / ".frameworks" / "bin" / "python")
    modes = [f"{tool} {whose}" for tool in IMPORTS for whose in ("own", "ours") if (tool, whose) != ("fabric", "own")]
    with tempfile.TemporaryDirectory(prefix="rivals-") as directory:
        rows = play_all(python, modes, Path(directory))
    sys.stdout.write(f"of {SAMPLES} samples of the epoch that a SIGKILL interrupted:\n\n{table(rows)}")
    return int(any(row.missed or row.repeated or row.draws for row in rows if row.mode.endswith("ours")))


if __name__ == "__main__":
    sys.exit(main())
