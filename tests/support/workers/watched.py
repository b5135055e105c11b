"""A training whose steps do what a test says: go on, stand still, leak, or compute more on one rank.

    watched.py DIRECTORY MODE [STEPS]

MODE: `evaluate` (rank 0 alone evaluates for 8 s in its 40th step), `hang` (rank 1 stands still in its 40th step, in the
first round), `jitter` (rank 1 waits 10 to 200 ms in each step, and stands still behind the last one; it prints
the 99th percentile of them and the longest), `leak` (10 MB a step, until it is
restarted), `slow` (rank 1 computes six times as much), `steady`.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import time

import torch
import torch.distributed as dist

from elastic_agent.worker import Every, Run

HUNG_STEP = 40
EVALUATION_S = 8.0
LEAK_BYTES = 10_000_000


def stands_still() -> None:
    while True:
        time.sleep(1.0)


def jittery_s(number: int) -> list[float]:
    """The lengths of so many steps, the longest 20 times as long as the shortest."""
    draw = random.Random(7)
    return [0.01 * 20.0 ** draw.random() for _ in range(number)]


def compute(seconds: float) -> None:
    """Use the processor for so long."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def main(directory: str, mode: str, steps: int) -> None:
    dist.init_process_group("gloo")
    rank, first_round = dist.get_rank(), os.environ["ELASTIC_AGENT_ROUND"] == "1"
    run = Run(directory, seed=1, every=Every(seconds=None), model=torch.nn.Linear(2, 2))
    kept = []
    lengths_s, ended_s = jittery_s(steps), [time.monotonic()]
    if mode == "jitter":
        steps += 1
    while run.steps < steps and not run.stopping:
        if mode == "hang" and rank == 1 and first_round and run.steps == HUNG_STEP:
            stands_still()
        if mode == "evaluate" and rank == 0 and run.steps == HUNG_STEP:
            with run.section("evaluation"):
                time.sleep(EVALUATION_S)
        if mode == "leak" and rank == 1 and first_round:
            kept.append(bytearray(os.urandom(1)) * LEAK_BYTES)
        if mode == "jitter" and rank == 1:
            if run.steps == len(lengths_s):
                took_s = sorted(later - earlier for earlier, later in itertools.pairwise(ended_s))
                print(f"rank 1 stands still behind {run.steps} steps {took_s[-11]:.3f} {took_s[-1]:.3f}", flush=True)
                stands_still()
            time.sleep(lengths_s[run.steps])
        elif mode == "slow":
            compute(0.06 if rank == 1 else 0.01)
        elif mode != "jitter":
            time.sleep(0.02)
        dist.all_reduce(torch.ones(1))
        run.step()
        ended_s.append(time.monotonic())
    run.close()
    dist.destroy_process_group()
    print(f"rank {rank} ended at step {run.steps}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 200)
