"""Many cases, a few at a time, under elastic-agent and under torchrun, and the score of both."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from . import ours, theirs
from .plan import KINDS, Answer, Case

AT_ONCE = 3
FIRST = 1000
RIGHT_LEAST, DECEIVED_MOST = 0.98, 0.005
"""What is to be reached: named rightly, and named wrongly though called certain."""


def score(answers: Iterable[Answer]) -> Counter[str]:
    """How many were right, and how many wrong though said to be certain."""
    found: Counter[str] = Counter()
    for answer in answers:
        found += Counter(
            jobs=1,
            right=answer.right,
            certain=answer.certain and answer.right,
            deceived=answer.certain and not answer.right,
            charged=answer.charged,
        )
    return found


def run(kinds: Sequence[str], seeds: range, torchruns: range, at_once: int, kept: bool) -> dict[str, Counter[str]]:
    """All cases; prints a line for each kind, and one for each case of ours that was not named rightly and for sure."""
    totals: dict[str, Counter[str]] = {"elastic-agent": Counter(), "torchrun": Counter()}
    with ThreadPoolExecutor(at_once) as pool:
        asked = [(kind, _ask(pool, kind, seeds, torchruns, kept)) for kind in kinds]
        try:
            for kind, answers in asked:
                row = []
                for who, each in answers.items():
                    totals[who] += (found := score(future.result() for _, future in each))
                    row.append(f"{who} {found['right']}/{found['jobs']} right, {found['deceived']} certain and wrong")
                print(f"{kind:<24} {'; '.join(row)}", flush=True)
                for case, future in answers["elastic-agent"]:
                    answer = future.result()
                    if not (answer.right and answer.certain and answer.charged):
                        print(f"  {case}:\n    {answer}", flush=True)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return totals


def _ask(
    pool: ThreadPoolExecutor, kind: str, seeds: range, torchruns: range, kept: bool
) -> dict[str, list[tuple[Case, Future[Answer]]]]:
    mine = [Case.draw(kind, seed) for seed in seeds]
    yours = [Case.draw(kind, seed) for seed in torchruns]
    return {
        "elastic-agent": [(case, pool.submit(ours.answer, case, kept=kept)) for case in mine],
        "torchrun": [(case, pool.submit(theirs.answer, case)) for case in yours],
    }


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.campaigns.causes", description="Who is named when jobs fail."
    )
    parser.add_argument("--seeds", type=int, default=20, help="of each kind (default: 20)")
    parser.add_argument("--first", type=int, default=FIRST, help=f"the first of them (default: {FIRST})")
    parser.add_argument("--torchrun", type=int, default=3, metavar="SEEDS", help="how many of them, there (default: 3)")
    parser.add_argument("--kinds", default=",".join(KINDS), help="some of: %(default)s")
    parser.add_argument("--bare", action="store_true", help="stderr of our workers is not kept")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help=f"jobs at a time (default: {AT_ONCE})")
    asked = parser.parse_args(argv)
    seeds = range(asked.first, asked.first + asked.seeds)
    torchruns = range(asked.first, asked.first + asked.torchrun)
    began = time.monotonic()
    totals = run(asked.kinds.split(","), seeds, torchruns, asked.at_once, not asked.bare)
    jobs = 0
    for who, found in totals.items():
        if found["jobs"]:
            jobs += found["jobs"]
            print(
                f"{who}: right {found['right']}/{found['jobs']} = {found['right'] / found['jobs']:.1%}, of these "
                f"certain {found['certain']}; certain and wrong {found['deceived']} "
                f"= {found['deceived'] / found['jobs']:.1%}"
            )
    found = totals["elastic-agent"]
    took_s = time.monotonic() - began
    print(f"charged as it should be: {found['charged']}/{found['jobs']}")
    print(f"{jobs} jobs in {took_s:.0f} s, {60 * jobs / took_s:.0f} a minute")
    reached = found["right"] >= RIGHT_LEAST * found["jobs"] and found["deceived"] <= DECEIVED_MOST * found["jobs"]
    return int(not reached)
