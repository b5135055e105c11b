"""A training with the worker library that is fastest on three nodes: a step is work that nodes share, and an exchange
that takes longer with each of them.

Arguments: directory of the checkpoints, seconds of work in a step, seconds of exchange for each node.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from elastic_agent.worker import Every, Run

CHECKPOINTS, WORK_S, EXCHANGE_S = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])

dist.init_process_group("gloo")
run = Run(CHECKPOINTS, net=torch.nn.Linear(2, 1), every=Every(seconds=None, steps=1000))
loader = run.loader(DataLoader(TensorDataset(torch.arange(96000.0)), batch_size=12), global_batch=12)
for _ in run.batches(loader, steps=1_000_000):
    time.sleep(WORK_S / run.world_size + EXCHANGE_S * run.world_size)
    dist.all_reduce(torch.ones(1))
    run.step()
dist.destroy_process_group()
