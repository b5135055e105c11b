"""Many schedules, and what they came to."""

from __future__ import annotations

import argparse
import dataclasses
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import bits, fold_times, in_process, io_faults, real, tolerance
from .schedule import Life, Schedule, draw


@dataclass
class Tally:
    """What the schedules of one kind came to."""

    played: int = 0
    lives: int = 0
    batches: int = 0
    wrong: list[str] = field(default_factory=list)


def whole(schedule: Schedule) -> in_process.Played:
    """The same script in one life with one rank: what every other way of running it must equal."""
    return in_process.play(dataclasses.replace(schedule, lives=(Life(1, 0, None),)))


def judge_in_process(seed: int) -> tuple[in_process.Played, list[str]]:
    """One schedule with its checkpoints in memory."""
    schedule = draw(seed)
    played = in_process.play(schedule)
    return played, in_process.compare(played, whole(schedule))


def judge_real(seed: int, most_ranks: int, most_processes: int) -> tuple[in_process.Played, list[str]]:
    """One schedule with real ranks, loader processes, kills and files. What is wrong keeps its directory."""
    schedule = draw(seed, most_ranks, most_processes)
    directory = Path(tempfile.mkdtemp(prefix="resume-"))
    try:
        played = real.play(schedule, directory / "run")
    except AssertionError as error:
        return in_process.Played(), [str(error), f"kept in {directory}"]
    wrong = in_process.compare(played, whole(schedule))
    if wrong:
        wrong.append(f"kept in {directory}")
    else:
        shutil.rmtree(directory)
    return played, wrong


def main(argv: Sequence[str]) -> int:
    """Plays the campaign and prints its table. Returns 1 where anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.resume", description="Kill and resize training.")
    parser.add_argument("--real", type=int, default=1000, help="schedules with real processes (default: 1000)")
    parser.add_argument("--in-process", type=int, default=10_000, help="schedules in one process (default: 10000)")
    parser.add_argument("--bits", type=int, default=200, help="digests at level bits, real processes (default: 200)")
    parser.add_argument(
        "--figures",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also the distance at level batches, and the time of the sums at level bits",
    )
    parser.add_argument("--ranks", type=int, default=8, help="most ranks of a life (default: 8)")
    parser.add_argument("--loader-processes", type=int, default=3, help="most of each loader (default: 3)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**9), help="the first schedule")
    parser.add_argument("--faults", type=int, default=1, help="fail every n-th call of a save or start; 0: none")
    parser.add_argument("--flips", type=int, default=1000, help="bits to flip in checkpoints (default: 1000)")
    asked = parser.parse_args(argv)
    # More loader processes than cores are what is asked for here.
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    most = (asked.ranks, asked.loader_processes)
    kinds: dict[str, tuple[int, Callable[[int], tuple[int, int, list[str]]]]] = {
        "in one process": (asked.in_process, lambda seed: _counted(seed, *judge_in_process(seed))),
        "real processes": (asked.real, lambda seed: _counted(seed, *judge_real(seed, *most))),
        "digests at level bits": (asked.bits, lambda seed: bits.judge(seed, *most)),
    }
    failed = False
    for name, (count, judge) in kinds.items():
        began, tally = time.monotonic(), Tally()
        for seed in range(asked.seed, asked.seed + count):
            lives, batches, wrong = judge(seed)
            tally.played += 1
            tally.lives += lives
            tally.batches += batches
            if wrong:
                tally.wrong.append(f"seed {seed}: {wrong[0]}")
                sys.stdout.write(f"seed {seed}: " + "\n  ".join(line[:600] for line in wrong) + "\n")
        took_s = time.monotonic() - began
        failed = failed or bool(tally.wrong)
        sys.stdout.write(
            f"{name}: {tally.played} schedules from seed {asked.seed}, {tally.lives} lives, {tally.batches} batches: "
            f"{len(tally.wrong)} wrong, {took_s:.0f} s\n"
        )
    if asked.faults:
        failed = not io_faults.main(asked.faults, asked.flips, asked.seed) or failed
    if asked.figures:
        failed = tolerance.main() or failed
        failed = fold_times.main() or failed
    return int(failed)


def _counted(seed: int, played: in_process.Played, wrong: list[str]) -> tuple[int, int, list[str]]:
    return len(draw(seed).lives), len(played.seen), wrong
