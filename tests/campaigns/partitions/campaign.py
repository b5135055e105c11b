"""Many partitions, several jobs at a time. A job that breaks a rule is kept, and named with its seed."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from support.network import why_unavailable

from .job import Job, now_s
from .judge import Verdict, judge
from .plan import draw

RUNS = 300
IN_A_JOB = 10
AT_ONCE = 4
KEPT = Path("build") / "partitions"
FOREVER_S = 1e9


def run_seed(
    seed: int, count: int, until_s: float, store: str = "etcd", keep: Path = KEPT
) -> tuple[Verdict, Counter[str]]:
    """Play and judge one job; how many partitions of each kind there were."""
    folder = Path(tempfile.mkdtemp(prefix="parts-"))
    job = Job(draw(seed, count, hosted=store == "c10d"), folder, store)
    try:
        failed = []
        try:
            job.play(until_s)
        except Exception as error:  # noqa: BLE001 - a job that cannot be played is a finding too, and is kept
            failed = [f"{type(error).__name__}: {error}"]
        verdict = judge(job.lives(), job.played)
        verdict.stuck += failed
        if verdict.wrong:
            shutil.rmtree(keep / f"seed-{seed}", ignore_errors=True)
            shutil.copytree(folder, keep / f"seed-{seed}", ignore=shutil.ignore_patterns("*.sock", "etcd0"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return verdict, Counter(each.kind for each in job.played)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.partitions", description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help="partitions")
    parser.add_argument("--jobs", type=int, default=AT_ONCE, help="at a time")
    parser.add_argument("--start", type=int, default=0, help="the first seed; each is a job of ten partitions")
    parser.add_argument("--seed", type=int, help="this one only")
    parser.add_argument("--for", type=float, dest="for_s", default=FOREVER_S, help="seconds after which none begins")
    parser.add_argument("--store", choices=("etcd", "c10d"), default="etcd", help="c10d: the first node hosts it")
    options = parser.parse_args(arguments)
    if why := why_unavailable():
        print(why)
        return 1
    until_s = now_s() + options.for_s
    first = options.start if options.seed is None else options.seed
    seeds = range(first, first + (max(1, options.runs // IN_A_JOB) if options.seed is None else 1))
    kinds, stopped, wrong = Counter[str](), 0, Counter[str]()
    with ThreadPoolExecutor(options.jobs) as pool:
        futures = {pool.submit(run_seed, seed, IN_A_JOB, until_s, options.store): seed for seed in seeds}
        for done in as_completed(futures):
            verdict, played = done.result()
            kinds += played
            stopped += verdict.stopped
            for name in ("two_worlds", "needless", "stuck"):
                for line in getattr(verdict, name):
                    wrong[name] += 1
                    print(f"seed {futures[done]}: {name}: {line}", flush=True)
    of_kinds = ", ".join(f"{kind} {number}" for kind, number in sorted(kinds.items()))
    print(
        f"{kinds.total()} partitions ({of_kinds}), of which {stopped} ended a round: {wrong['two_worlds']} moments "
        f"with two worlds, {wrong['needless']} needless stops, {wrong['stuck']} jobs stuck"
    )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
