"""Which reader a watch has."""

from __future__ import annotations

import importlib

from ..job_view import JobView
from ..table.watch import Watch
from .reader import Reader

_HOMES = {
    "disk": "filesystems:Disk",
    "inodes": "filesystems:Disk",
    "quota": "filesystems:Quota",
    "mount": "filesystems:Mount",
    "memory": "memory:Memory",
    "worker-memory": "memory:WorkerMemory",
    "swap": "memory:Swap",
    "load": "load:Load",
    "clock": "clock:Clock",
    "job": "job:JobReader",
    "hang": "job:Hang",
    "slow": "progress:Slow",
    "gpu": "gpu:Gpu",
}
"""Loaded when they are needed: a table without a clock needs no HTTP."""


def reader_of(watch: Watch, job: JobView | None = None) -> Reader:
    """The reader of a watch; `job`: the one around it. Loads only what its kind needs."""
    home = _HOMES[watch.what]
    if watch.what == "hang" and not watch.path:
        home = "progress:Stillness"
    elif watch.what == "clock" and not watch.reference:
        home = "clock:Clocks"
    module, _, name = home.partition(":")
    found: Reader = getattr(importlib.import_module(f".{module}", __package__), name)(watch, job)
    return found
