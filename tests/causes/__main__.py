"""How often the right cause is named: `make causes`, beside torchrun."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from causes import campaign


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--torchrun", type=int, default=3, metavar="SEEDS")
    parser.add_argument("--backend", default="memory", choices=("memory", "c10d"))
    parser.add_argument("--bare", action="store_true", help="stderr is not kept")
    parser.add_argument("--kinds", default=",".join(campaign.KINDS))
    args = parser.parse_args()
    began = time.monotonic()
    totals = {"ours": campaign.score([]), "torchrun": campaign.score([])}
    for kind in args.kinds.split(","):
        row = []
        for who, seeds in (("ours", args.seeds), ("torchrun", args.torchrun)):
            answers = []
            for seed in range(seeds):
                case = campaign.Case.draw(kind, seed)
                if who == "ours":
                    answer = campaign.ours(case, backend=args.backend, kept=not args.bare)
                else:
                    answer = campaign.torchruns(case)
                answers.append(answer)
                if who == "ours" and not (answer.right and answer.certain):
                    print(f"  {case}: {answer}", flush=True)
            totals[who] += (found := campaign.score(answers))
            row.append(f"{who} {found['right']}/{found['jobs']} right, {found['deceived']} certain and wrong")
        print(f"{kind:<24} {'; '.join(row)}", flush=True)
    for who, found in totals.items():
        if found["jobs"]:
            jobs = found["jobs"]
            print(
                f"{who}: right {found['right']}/{jobs} = {found['right'] / jobs:.1%}, of these certain "
                f"{found['certain']}, certain and wrong {found['deceived']} = {found['deceived'] / jobs:.1%}"
            )
    print(f"{time.monotonic() - began:.0f} s")
    found = totals["ours"]
    return int(found["right"] < 0.98 * found["jobs"] or found["deceived"] > 0.005 * found["jobs"])


if __name__ == "__main__":
    sys.exit(main())
