"""A worker of torch's in the manner of libraries that every rank opens a store of their own with.

    clients.py MODE

`manager`: each rank opens a client of MASTER_ADDR:MASTER_PORT before anything else, as torchft's Manager does.
`early`: a process group over gloo, from which rank 0 returns first and the others only when it has gone.
`again`: as `manager`; in the first round rank 0 fails.
`watching`: a thread looks for a key of the default store until the process ends, as NCCL's monitor does; rank 0 ends at
once, the others at random times of their own, and none leaves its process group.
`failing`: as `watching`; in the first round rank 0 fails, and the others, asked to stop, take their time.
"""

import os
import random
import signal
import sys
import threading
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

BOUND = timedelta(seconds=20)
EVERY_S, LAST_S = 0.002, 1.5
"""Between two looks of a watching thread; the latest end of a rank."""
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def opened() -> Any:
    """A client of the workers' store, as every rank may open one."""
    where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(*where, is_master=False, wait_for_workers=False, timeout=BOUND)


def say(text: str) -> None:
    """In one call: `print` in an unbuffered worker makes two, and lines of two workers would mix."""
    os.write(1, f"{text}\n".encode())


def manager() -> None:
    store = opened()
    assert not store.check(["rank 0"]) or RANK > 0, "a key of an earlier round"
    store.set(f"rank {RANK}", str(os.getpid()))
    store.wait([f"rank {rank}" for rank in range(WORLD)])
    dist.init_process_group("gloo", timeout=BOUND)
    count = torch.ones(1)
    dist.all_reduce(count)
    assert int(count) == WORLD
    say(f"rank {RANK} of {WORLD} met the others")


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
    say(f"rank {RANK} had a store after rank 0")


def again() -> None:
    manager()
    if os.environ["ELASTIC_AGENT_ROUND"] == "1":
        dist.barrier()
        sys.exit(3 if RANK == 0 else 0)


def watching() -> None:
    asked_to_stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked_to_stop.set())
    dist.init_process_group("gloo", timeout=2 * BOUND)
    store = dist.distributed_c10d._get_default_store()
    looked = threading.Event()

    def look() -> None:
        while not never.wait(EVERY_S):
            store.check(["heartbeat monitor dump signal"])
            looked.set()

    never = threading.Event()
    threading.Thread(target=look, daemon=True).start()
    dist.all_reduce(torch.ones(1))
    looked.wait()
    dist.barrier()
    ends = random.Random(f"{os.environ['ELASTIC_AGENT_ROUND']} {RANK}").uniform(0.05, LAST_S)
    if os.environ["ELASTIC_AGENT_ROUND"] == "1" and sys.argv[1] == "failing":
        if RANK == 0:
            os._exit(3)
        asked_to_stop.wait()
    if RANK > 0:
        never.wait(ends)
    say(f"rank {RANK} of {WORLD} ends")
    os._exit(0)  # the threads run until then


if __name__ == "__main__":
    {"manager": manager, "early": early, "again": again, "watching": watching, "failing": watching}[sys.argv[1]]()
    dist.destroy_process_group()  # torch's threads may abort an interpreter that ends before them
