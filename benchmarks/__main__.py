"""Command line of the benchmarks; see README.md."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from . import driver, report, rows
from .launchers import ROOT, TORCHRUN, Launcher, candidate
from .processes import guarded
from .run import BenchError

RESULTS = ROOT / "build" / "bench"


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(prog="python -m benchmarks", description=driver.__doc__, allow_abbrev=False)
    out.add_argument("rows", nargs="*", help="names of rows (default: the whole table); 'list' lists them")
    out.add_argument("--a", default=TORCHRUN, help="the reference, a command template (default: torchrun)")
    out.add_argument("--b", default=candidate(), help="the candidate, likewise (default: elastic-agent)")
    out.add_argument("--quick", action="store_true", help="few samples, no rows in which torchrun runs into the limit")
    out.add_argument("--samples", nargs=2, type=int, metavar=("A", "B"), help="samples of a and b, for every row")
    out.add_argument("--out", type=Path, default=RESULTS, help="directory of the results (default: build/bench)")
    out.add_argument("--table", type=Path, metavar="RAW", help="run nothing; print the table of a raw file again")
    return out


def measure(args: argparse.Namespace, wanted: list[rows.Row]) -> int:
    """Run these rows. Returns the exit status: 1 when a goal is missed."""
    launchers = [Launcher("a", args.a), Launcher("b", args.b)]
    args.out.mkdir(parents=True, exist_ok=True)
    raw = args.out / time.strftime("%Y%m%d-%H%M%S.jsonl")
    try:
        driver.warm_up(launchers, rows.named(["launch"])[0])
    except BenchError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    report.write_line(raw, driver.circumstances(launchers))
    for row in wanted:
        driver.run_row(row, launchers, args.samples or (row.quick if args.quick else row.samples), raw)
    results = report.read(raw)
    table = report.markdown(wanted, results)
    raw.with_suffix(".md").write_text(table)
    print(f"\n{table}\nraw results: {raw}; this table: {raw.with_suffix('.md')}")
    return 1 if any(report.verdict(row, results) is False for row in wanted) else 0


def main() -> int:
    args = parser().parse_args()
    if args.table:
        print(report.markdown([*rows.TABLE, *rows.EXTRA], report.read(args.table)), end="")
        return 0
    if args.rows == ["list"]:
        for row in (*rows.TABLE, *rows.EXTRA):
            print(f"{row.name:18} {row.what} [{row.unit}; {row.goal or 'for information, run only when named'}]")
        return 0
    try:
        wanted = rows.named(args.rows)
    except ValueError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    return guarded(lambda: measure(args, wanted))


if __name__ == "__main__":
    sys.exit(main())
