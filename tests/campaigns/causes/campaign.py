"""Many cases, a few at a time, under elastic-agent and under torchrun, and the scores of both."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from . import elastic_agent_jobs, torchrun_jobs
from .plan import KINDS, Answer, Case

AT_ONCE = 3
FIRST = 1000
RIGHT_MIN, CERTAIN_AND_WRONG_MAX = 0.98, 0.005
"""The goals: the share of causes that are right, and the share that are wrong although called certain."""


def score(answers: Iterable[Answer]) -> Counter[str]:
    """How many were right, and how many were wrong although called certain."""
    found: Counter[str] = Counter()
    for answer in answers:
        found += Counter(
            jobs=1,
            right=answer.right,
            certain=answer.certain and answer.right,
            certain_and_wrong=answer.certain and not answer.right,
            charged=answer.charged,
        )
    return found


def run(kinds: Sequence[str], seeds: range, torchruns: range, at_once: int, kept: bool) -> dict[str, Counter[str]]:
    """Run all cases. Prints a line for each kind, and each case of elastic-agent's that was not right, certain and
    charged."""
    totals: dict[str, Counter[str]] = {"elastic-agent": Counter(), "torchrun": Counter()}
    with ThreadPoolExecutor(at_once) as pool:
        submitted = [(kind, _submit(pool, kind, seeds, torchruns, kept)) for kind in kinds]
        try:
            for kind, answers in submitted:
                row = []
                for launcher, each in answers.items():
                    totals[launcher] += (found := score(future.result() for _, future in each))
                    wrong = found["certain_and_wrong"]
                    row.append(f"{launcher} {found['right']}/{found['jobs']} right, {wrong} certain and wrong")
                print(f"{kind:<24} {'; '.join(row)}", flush=True)
                for case, future in answers["elastic-agent"]:
                    answer = future.result()
                    if not (answer.right and answer.certain and answer.charged):
                        print(f"  {case}:\n    {answer}", flush=True)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return totals


def _submit(
    pool: ThreadPoolExecutor, kind: str, seeds: range, torchruns: range, kept: bool
) -> dict[str, list[tuple[Case, Future[Answer]]]]:
    own = [Case.draw(kind, seed) for seed in seeds]
    torchruns_cases = [Case.draw(kind, seed) for seed in torchruns]
    return {
        "elastic-agent": [(case, pool.submit(elastic_agent_jobs.answer, case, kept=kept)) for case in own],
        "torchrun": [(case, pool.submit(torchrun_jobs.answer, case)) for case in torchruns_cases],
    }


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.campaigns.causes", description="Which cause is named when jobs fail."
    )
    parser.add_argument("--seeds", type=int, default=20, help="how many of each kind (default: 20)")
    parser.add_argument("--first", type=int, default=FIRST, help=f"the first seed (default: {FIRST})")
    parser.add_argument(
        "--torchrun", type=int, default=3, metavar="SEEDS", help="how many of them under torchrun too (default: 3)"
    )
    parser.add_argument("--kinds", default=",".join(KINDS), help="some of these, separated by commas: %(default)s")
    parser.add_argument("--bare", action="store_true", help="do not keep the stderr of elastic-agent's workers")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help=f"jobs at a time (default: {AT_ONCE})")
    options = parser.parse_args(argv)
    seeds = range(options.first, options.first + options.seeds)
    torchruns = range(options.first, options.first + options.torchrun)
    began = time.monotonic()
    totals = run(options.kinds.split(","), seeds, torchruns, options.at_once, not options.bare)
    jobs = 0
    for launcher, found in totals.items():
        if found["jobs"]:
            jobs += found["jobs"]
            print(
                f"{launcher}: right {found['right']}/{found['jobs']} = {found['right'] / found['jobs']:.1%}, of these "
                f"certain {found['certain']}; certain and wrong {found['certain_and_wrong']} "
                f"= {found['certain_and_wrong'] / found['jobs']:.1%}"
            )
    found = totals["elastic-agent"]
    took_s = time.monotonic() - began
    print(f"charged as it should be: {found['charged']}/{found['jobs']}")
    print(f"{jobs} jobs in {took_s:.0f} s, {60 * jobs / took_s:.0f} a minute")
    reached = (
        found["right"] >= RIGHT_MIN * found["jobs"]
        and found["certain_and_wrong"] <= CERTAIN_AND_WRONG_MAX * found["jobs"]
    )
    return int(not reached)
