"""A training of small steps with the worker library, whose ranks wait for each other in each step.

Arguments: directory of the checkpoints, a file whose name begins what each rank writes, steps, seconds a step. A rank
writes one line a step, `STEP TIME` with the time of the host's monotonic clock, and at its end `end STEP`.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from elastic_agent.worker import Every, Run

CHECKPOINTS, NOTES, STEPS, STEP_S = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])


def main() -> None:
    dist.init_process_group("gloo")
    net = torch.nn.Linear(2, 1)
    run = Run(CHECKPOINTS, net=net, every=Every(seconds=None, steps=50))
    loader = run.loader(DataLoader(TensorDataset(torch.arange(4096.0)), batch_size=4), global_batch=4 * run.world_size)
    with open(f"{NOTES}.{run.rank}", "a", buffering=1) as notes:
        for _ in run.batches(loader, steps=STEPS):
            dist.all_reduce(torch.ones(1))
            time.sleep(STEP_S)
            run.step()
            notes.write(f"{run.steps} {time.monotonic()}\n")
        notes.write(f"end {run.steps}\n")
    dist.destroy_process_group()


main()
