"""Many schedules, and what they came to."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import multiprocessing
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from elastic_agent.worker.loop.log import NAME

from . import bits, figures, fold_times, in_process, io_faults, real, tolerance
from .real import pool_of
from .schedule import Life, Schedule, draw

IN_PROCESS, REAL, BITS = "in one process", "real processes", "digests at level bits"
IN_A_PART = 50
"""Schedules in one process that a job plays before it says what they came to."""
SAID_EVERY_S = 10.0


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


def judge(kind: str, seed: int, most_ranks: int, most_processes: int) -> tuple[int, int, list[str]]:
    """One schedule of any kind: its lives, the batches of one life, and what is wrong."""
    if kind == BITS:
        return bits.judge(seed, most_ranks, most_processes)
    played, wrong = judge_in_process(seed) if kind == IN_PROCESS else judge_real(seed, most_ranks, most_processes)
    return len(draw(seed).lives), len(played.seen), wrong


def judge_all(kind: str, seeds: Sequence[int], most_ranks: int, most_processes: int) -> Tally:
    """Some schedules of one kind, one after the other; what is wrong is written at once."""
    # More loader processes than cores are what is asked for here, and what runs say is not.
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    logging.getLogger(NAME).setLevel(logging.WARNING)
    # A spawned process would spawn its loader processes, too, and training scripts on Linux fork them.
    multiprocessing.set_start_method("fork", force=True)
    tally = Tally()
    for seed in seeds:
        lives, batches, wrong = judge(kind, seed, most_ranks, most_processes)
        tally.played += 1
        tally.lives += lives
        tally.batches += batches
        if wrong:
            tally.wrong.append(f"seed {seed}: {wrong[0]}")
            sys.stdout.write(f"seed {seed}: " + "\n  ".join(line[:600] for line in wrong) + "\n")
            sys.stdout.flush()
    return tally


def in_jobs(kind: str, first: int, count: int, jobs: int, most_ranks: int, most_processes: int) -> Tally:
    """The same in so many processes, part by part, whose results are taken in the order of the seeds: what is said of
    how far they are names the seed that a run which is cut off there goes on from."""
    size = max(1, min(count // (4 * jobs), IN_A_PART if kind == IN_PROCESS else 5))
    parts = [range(begins, min(begins + size, first + count)) for begins in range(first, first + count, size)]
    whole_tally, began_s = Tally(), time.monotonic()
    said_s = began_s
    with pool_of(jobs, forks=kind != IN_PROCESS) as pool:
        for future in [pool.submit(judge_all, kind, part, most_ranks, most_processes) for part in parts]:
            tally = future.result()
            whole_tally.played += tally.played
            whole_tally.lives += tally.lives
            whole_tally.batches += tally.batches
            whole_tally.wrong += tally.wrong
            if (now_s := time.monotonic()) >= said_s + SAID_EVERY_S:
                said_s = now_s
                played, wrong = whole_tally.played, len(whole_tally.wrong)
                sys.stdout.write(
                    f"{kind}: {played} of {count}, {wrong} wrong, {now_s - began_s:.0f} s; "
                    f"the rest: --seed {first + played} and {count - played}\n"
                )
                sys.stdout.flush()
    return whole_tally


def main(argv: Sequence[str]) -> int:
    """Plays the campaign and prints its table. Returns 1 where anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.resume", description="Kill and resize training.")
    parser.add_argument("--real", type=int, default=1000, help="schedules with real processes (default: 1000)")
    parser.add_argument("--in-process", type=int, default=100_000, help="schedules in one process (default: 100000)")
    parser.add_argument("--bits", type=int, default=200, help="digests at level bits, real processes (default: 200)")
    parser.add_argument("--jobs", type=int, default=2, help="processes that play schedules (default: 2)")
    parser.add_argument("--ranks", type=int, default=8, help="most ranks of a life (default: 8)")
    parser.add_argument("--loader-processes", type=int, default=3, help="most of each loader (default: 3)")
    parser.add_argument("--figures", action="store_true", help="only what the library costs, in some minutes")
    parser.add_argument("--no-figures", action="store_true", help="leave out what the library costs, and the shuffle")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**9), help="the first schedule")
    parser.add_argument("--faults", type=int, default=1, help="fail every n-th call of a save or start; 0: none")
    parser.add_argument(
        "--forms", default=io_faults.FORMS, type=lambda text: tuple(text.split(",")), help="of checkpoints, for faults"
    )
    parser.add_argument("--flips", type=int, default=1000, help="bits to flip in checkpoints (default: 1000)")
    asked = parser.parse_args(argv)
    if asked.figures:
        asked.in_process = asked.real = asked.bits = asked.faults = asked.flips = 0
    failed = False
    for kind, count in ((IN_PROCESS, asked.in_process), (REAL, asked.real), (BITS, asked.bits)):
        if not count:
            continue
        began_s = time.monotonic()
        jobs = max(1, min(asked.jobs, count))
        tally = in_jobs(kind, asked.seed, count, jobs, asked.ranks, asked.loader_processes)
        failed = failed or bool(tally.wrong)
        sys.stdout.write(
            f"{kind}: {tally.played} schedules from seed {asked.seed}, {tally.lives} lives, {tally.batches} batches: "
            f"{len(tally.wrong)} wrong, {time.monotonic() - began_s:.0f} s\n"
        )
        sys.stdout.flush()
    if asked.faults or asked.flips:
        failed = not io_faults.main(asked.faults, asked.flips, asked.seed, max(1, asked.jobs), asked.forms) or failed
    if not asked.no_figures:
        failed = tolerance.main() or failed
        failed = fold_times.main() or failed
        failed = bool(figures.main()) or failed
    return int(failed)
