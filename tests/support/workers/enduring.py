"""A training that outlasts changes of its ranks: it goes on at its step, whatever their number.

Arguments: directory of the checkpoints, a file whose name begins what each rank of each round writes, steps, seconds a
step. Rank 0 writes the number of each step that it has done; at the end of the training it writes `complete`.
"""

from __future__ import annotations

import os
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
    run = Run(CHECKPOINTS, net=net, every=Every(seconds=None))
    loader = run.loader(DataLoader(TensorDataset(torch.arange(40960.0)), batch_size=4), global_batch=4)
    rounds = os.environ.get("ELASTIC_AGENT_ROUND", "0")
    with open(f"{NOTES}.{rounds}.{run.rank}", "a", buffering=1) as notes:
        for _ in run.batches(loader, steps=STEPS):
            dist.all_reduce(torch.ones(1))
            time.sleep(STEP_S)
            run.step()
            notes.write(f"{run.steps} {run.world_size}\n")
        run.complete()
        notes.write("complete 0\n")
    dist.destroy_process_group()


main()
