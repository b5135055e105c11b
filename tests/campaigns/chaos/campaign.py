"""Many runs, a few at a time. A run that breaks a rule is kept, and its report gives the command that repeats it."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from . import judge, plan
from .etcd import judge as etcd_judge
from .etcd import plan as etcd_plan
from .etcd.runner import EtcdRun
from .judge import Verdict
from .runner import Run

RUNS = 200
AT_ONCE = 2
KEPT = Path("build") / "chaos"
"""Where failing runs are kept, below the working directory."""


@dataclass(frozen=True)
class Kind:
    """A kind of campaign: what its seeds mean, how they are run, and how the runs are judged."""

    draw: Callable[[int], plan.Plan]
    run: Callable[[plan.Plan, Path], Run]
    judge: Callable[[Path], Verdict]
    start: int | None
    """The first seed, unless the command line gives one; None: a random one."""


KINDS = {
    "c10d": Kind(plan.draw, Run, judge.judge, None),
    "etcd": Kind(
        etcd_plan.draw, EtcdRun, etcd_judge.judge, 0
    ),  # the first seeds are the grid of all faults in all phases
}


def run_seed(seed: int, keep: Path = KEPT, keep_all: bool = False, store: str = "c10d") -> Verdict:
    """Run one seed and judge it. If anything is wrong its folder is kept, and the verdict names it."""
    kind = KINDS[store]
    # A socket's path may have 107 characters, so the run lives in the temporary directory.
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    try:
        try:
            kind.run(kind.draw(seed), folder).play()
            verdict = kind.judge(folder)
        except Exception as error:  # noqa: BLE001 - a history that cannot be judged is a finding too, and is kept
            verdict = Verdict([f"{type(error).__name__}: {error}"])
        kept = keep / (f"seed-{seed}" if store == "c10d" else f"{store}-seed-{seed}")
        if verdict.wrong or keep_all:
            shutil.rmtree(kept, ignore_errors=True)
            keep.mkdir(parents=True, exist_ok=True)
            shutil.copytree(folder, kept)
        if verdict.wrong:
            verdict.wrong.append(
                f"kept in {kept}; repeat it with python -m tests.campaigns.chaos --store {store} --seed {seed}, "
                f"judge it again with python -m tests.campaigns.chaos --store {store} --judge {kept}"
            )
        return verdict
    finally:
        shutil.rmtree(folder)


def run_many(
    start: int, runs: int, at_once: int, keep_all: bool = False, store: str = "c10d"
) -> tuple[Counter[str], list[int], float]:
    """Seeds `start` to `start + runs - 1`; returns how often each thing was seen, the seeds that went wrong, and the
    largest part by which an account was off."""
    seen: Counter[str] = Counter()
    worst = 0.0
    failed: list[int] = []
    seeds = range(start, start + runs)
    with ThreadPoolExecutor(at_once) as pool:
        verdicts = pool.map(lambda seed: run_seed(seed, KEPT, keep_all, store), seeds)
        for seed, verdict in zip(seeds, verdicts, strict=True):
            seen += verdict.seen
            worst = max(worst, verdict.worst)
            if verdict.wrong:
                failed.append(seed)
                sys.stdout.write(f"seed {seed}: " + "\n  ".join(verdict.wrong) + "\n")
                sys.stdout.flush()
    return seen, failed, worst


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.chaos", description="Real jobs, real faults.")
    parser.add_argument("--store", choices=KINDS, default="c10d", help="the rendezvous store (default: c10d)")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"how many (default: {RUNS})")
    parser.add_argument("--start", type=int, help="the first seed (default: a random one)")
    parser.add_argument("--seed", type=int, help="run only this seed")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help=f"runs at a time (default: {AT_ONCE})")
    parser.add_argument("--judge", type=Path, help="judge a kept run again, without running anything")
    parser.add_argument("--keep-all", action="store_true", help="keep also the runs in which nothing is wrong")
    options = parser.parse_args(argv)
    if options.judge is not None:
        verdict = KINDS[options.store].judge(options.judge)
        sys.stdout.write("\n  ".join(verdict.wrong or ["nothing is wrong"]) + "\n")
        return bool(verdict.wrong)
    runs = 1 if options.seed is not None else options.runs
    start = options.seed if options.seed is not None else options.start
    start = KINDS[options.store].start if start is None else start
    start = random.SystemRandom().randrange(10**6) if start is None else start
    began = time.monotonic()
    seen, failed, worst = run_many(start, runs, options.at_once, options.keep_all, options.store)
    for what, count in sorted(seen.items()):
        sys.stdout.write(f"{count:8}  {what}\n")
    took_s = time.monotonic() - began
    sys.stdout.write(f"{seen[judge.ACCOUNTS]} {judge.ACCOUNTS}, at most {100 * worst:.5f} % off the wall clock\n")
    sys.stdout.write(f"{runs} runs from seed {start} in {took_s:.0f} s: {len(failed)} went wrong {failed or ''}\n")
    return bool(failed)
