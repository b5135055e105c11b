"""Functions that tests have workers call."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any


def identity(*args: object) -> tuple[int, int, tuple[object, ...]]:
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), args


class Identity:
    """An object that can be called as `identity`, and has its first argument."""

    def __init__(self, first: str) -> None:
        self.first = first

    def __call__(self, *args: object) -> tuple[int, int, tuple[object, ...]]:
        return identity(self.first, *args)


def environment() -> dict[str, str]:
    return dict(os.environ)


def large(size: int) -> bytes:
    return bytes([int(os.environ["RANK"])]) * size


def boom(text: str) -> None:
    if os.environ["RANK"] == "1":
        raise ValueError(text)
    signal.pause()


def leave(code: object) -> None:
    sys.exit(code)  # type: ignore[arg-type]


def kill_itself(signum: int) -> None:
    os.kill(os.getpid(), signum)


def fail_once() -> tuple[str, str]:
    if os.environ["ELASTIC_AGENT_ROUND"] == "1":
        raise RuntimeError("only the first time")
    return os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["ELASTIC_AGENT_ROUND"]


def wait_for_ever() -> None:
    signal.pause()


def return_unpicklable() -> object:
    return lambda: None


class WorkersOnly:
    """Can be unpickled in a worker only."""

    def __reduce__(self) -> Any:
        return unpickle_workers_only, ()


def unpickle_workers_only() -> WorkersOnly:
    if "RANK" in os.environ:
        return WorkersOnly()
    raise LookupError("no such place here")


def return_workers_only() -> WorkersOnly:
    return WorkersOnly()


def add_up() -> float:
    """The sum of ranks + 1 over gloo, as every worker sees it."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    mine = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(mine)
    dist.destroy_process_group()
    return mine.item()


def store_value(text: str) -> str:
    """What rank 0 writes to the workers' store, as every rank reads it."""
    from datetime import timedelta

    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(*where, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=20))
    if os.environ["RANK"] == "0":
        store.set("text", text)
    return str(store.get("text").decode())


def lost(rank: str) -> str:
    """Changes what the process is known by, as a launcher within one does."""
    own = os.environ["RANK"]
    os.environ.clear()
    os.environ.update(RANK=rank, ELASTIC_AGENT_ROUND="9")
    return own


def vanish() -> None:
    """Ends the process behind Python's back."""
    os._exit(0)
