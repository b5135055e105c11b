"""`python -m tests.simulation`: play many seeds, replay one with its trace, or plant bugs and search for them."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence

from . import campaign, run
from .checks import coverage


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="Play simulated jobs.")
    parser.add_argument("--seed", type=int, help="replay this seed, with its trace")
    parser.add_argument("--runs", type=int, default=coverage.ENOUGH, help=f"seeds to play (default: {coverage.ENOUGH})")
    parser.add_argument("--for", type=float, dest="lasts_s", help="instead of --runs: for this many seconds")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time; 0: one for each core (default: 1)")
    parser.add_argument("--nodes", type=int, default=0, help="jobs of so many nodes, behind the production drivers")
    parser.add_argument("--start", type=int, default=random.SystemRandom().randrange(10**9), help="the first seed")
    parser.add_argument(
        "--mutants", nargs="?", const="", metavar="TEXT", help="plant each known bug (TEXT: those with it in the name)"
    )
    asked = parser.parse_args(argv)
    try:
        if asked.seed is not None:
            run.play(asked.seed, _print, asked.nodes)
            return 0
        if asked.mutants is not None:
            from .mutants import catalogue, escapes, search

            return search.report([bug for bug in catalogue.MUTANTS if asked.mutants in bug.name], escapes.ESCAPES)
        return _many(asked)
    except run.SeedFailed as failed:
        sys.stderr.write(f"{failed}\n")
        return 1


def _many(asked: argparse.Namespace) -> int:
    began = time.monotonic()
    played = campaign.play(asked.start, asked.runs, asked.lasts_s, asked.jobs, asked.nodes)
    took_s = time.monotonic() - began
    for what, count in sorted(played.reached.counts.items()):
        sys.stdout.write(f"{count:8}  {what}\n")
    rates = f"{played.count / took_s:.3g} a second, {played.count / played.cpu_s:.3g} a second of processor time"
    sys.stdout.write(f"{played.count} schedules from seed {asked.start} in {took_s:.0f} s: {rates}\n")
    never = coverage.missing(played.reached) if played.count >= coverage.ENOUGH and not asked.nodes else []
    sys.stdout.writelines(f"never reached: {what}\n" for what in never)
    if played.failed:
        sys.stdout.write(f"processes that ended early, at a violation: {len(played.failed)}\n")
    sys.stderr.writelines(f"{violation}\n" for violation in played.failed)
    return 1 if never or played.failed else 0


def _print(now: float, what: str) -> None:
    sys.stdout.write(f"{now:9.3f}  {what}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
