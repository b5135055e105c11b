"""A worker of torch's in the manner of libraries that every rank opens a store of their own with.

    clients.py MODE

`manager`: each rank opens a client of MASTER_ADDR:MASTER_PORT before anything else, as torchft's Manager does.
`early`: a process group over gloo, from which rank 0 returns first and the others only when it has gone.
`again`: as `manager`; in the first round rank 0 fails.
"""

import os
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

BOUND = timedelta(seconds=20)
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def opened() -> Any:
    """A client of the workers' store, as every rank may open one."""
    where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(*where, is_master=False, wait_for_workers=False, timeout=BOUND)


def manager() -> None:
    store = opened()
    assert not store.check(["rank 0"]) or RANK > 0, "a key of an earlier round"
    store.set(f"rank {RANK}", str(os.getpid()))
    store.wait([f"rank {rank}" for rank in range(WORLD)])
    dist.init_process_group("gloo", timeout=BOUND)
    count = torch.ones(1)
    dist.all_reduce(count)
    assert int(count) == WORLD
    print(f"rank {RANK} of {WORLD} met the others", flush=True)


def early() -> None:
    dist.init_process_group("gloo", timeout=BOUND)
    count = torch.ones(1)
    dist.all_reduce(count)
    store = opened()
    store.set(f"pid {RANK}", str(os.getpid()))
    first = int(store.get("pid 0"))
    dist.barrier()
    if RANK == 0:
        os._exit(0)  # without announcing it to the others
    # The exit of another process, as an event; the agent's own descriptors do not matter here.
    import select

    try:
        pidfd = os.pidfd_open(first)
        select.select([pidfd], [], [], BOUND.total_seconds())
    except ProcessLookupError:
        pass
    store.set(f"after {RANK}", "1")
    store.wait([f"after {rank}" for rank in range(1, WORLD)])
    print(f"rank {RANK} had a store after rank 0", flush=True)


def again() -> None:
    manager()
    if os.environ["ELASTIC_AGENT_ROUND"] == "1":
        dist.barrier()
        sys.exit(3 if RANK == 0 else 0)


if __name__ == "__main__":
    {"manager": manager, "early": early, "again": again}[sys.argv[1]]()
    dist.destroy_process_group()  # torch's threads may abort an interpreter that ends before them
