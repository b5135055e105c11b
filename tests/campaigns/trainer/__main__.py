"""Counts what differs from an undisturbed training after random kills, and measures a trainer beside plain DDP."""

from __future__ import annotations

import argparse

from .kills import kills
from .pairs import calls, pairs
from .schedules import schedules
from .starts import starts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="SIGKILLs of workers that hit a pass")
    parser.add_argument("--schedules", type=int, default=50, help="of kills, late and new nodes")
    parser.add_argument("--pairs", type=int, default=100, help="passes of a trainer and of plain DDP, in turns")
    parser.add_argument("--calls", type=int, default=300, help="of train(), back to back, for what one costs")
    parser.add_argument("--starts", type=int, default=5, help="of a trainer and of plain DDP, in turns")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    wrong = 0
    if arguments.pairs:
        pairs(arguments.pairs)
    if arguments.calls:
        calls(arguments.calls)
    if arguments.starts:
        starts(arguments.starts)
    if arguments.kills:
        wrong += kills(arguments.kills, arguments.seed)
    if arguments.schedules:
        wrong += schedules(arguments.schedules, arguments.seed)
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
