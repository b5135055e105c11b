"""A worker that meets its peers in a process group of torch's, and fails in the way and at the rank it is told."""

import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from campaigns.causes.worker import PATIENCE_S, STEP_S, fail

PATIENCE = timedelta(seconds=PATIENCE_S)


def main() -> None:
    rank = int(os.environ["RANK"])
    folder, kind = Path(os.environ["TEST_MESH"]), os.environ["TEST_KIND"]
    dist.init_process_group("gloo")
    # Meeting for the first time takes as long as it takes; from then on nobody is patient.
    dist.distributed_c10d._set_pg_timeout(PATIENCE, dist.group.WORLD)
    count = torch.ones(1)
    for step in range(100000):
        if rank == int(os.environ["TEST_BAD"]) and step == int(os.environ["TEST_STEP"]):
            fail("hang" if kind == "barrier" else kind)
        if kind == "barrier":
            dist.monitored_barrier(timeout=PATIENCE)
        else:
            dist.all_reduce(count)
        if step == 3:
            (folder / f"runs.{rank}").touch()
        time.sleep(STEP_S)


if os.environ["TEST_RECORDED"] == "1":
    from torch.distributed.elastic.multiprocessing.errors import record

    main = record(main)
main()
