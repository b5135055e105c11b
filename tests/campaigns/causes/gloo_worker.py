"""A worker that uses a process group of torch. Its environment says how and at which rank it fails."""

import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from campaigns.causes.worker import STEP_S, TIMEOUT_S, fail

TIMEOUT = timedelta(seconds=TIMEOUT_S)


def main() -> None:
    rank = int(os.environ["RANK"])
    folder, kind = Path(os.environ["TEST_MESH"]), os.environ["TEST_KIND"]
    dist.init_process_group("gloo")
    # The process group is made without this timeout, as that may take long; the steps have it.
    dist.distributed_c10d._set_pg_timeout(TIMEOUT, dist.group.WORLD)
    count = torch.ones(1)
    for step in range(100000):
        if rank == int(os.environ["TEST_BAD"]) and step == int(os.environ["TEST_STEP"]):
            fail("hang" if kind == "barrier" else kind)
        if kind == "barrier":
            dist.monitored_barrier(timeout=TIMEOUT)
        else:
            dist.all_reduce(count)
        if step == 3:
            (folder / f"runs.{rank}").touch()
        time.sleep(STEP_S)


if os.environ["TEST_RECORDED"] == "1":
    from torch.distributed.elastic.multiprocessing.errors import record

    main = record(main)
main()
