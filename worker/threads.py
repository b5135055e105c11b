"""Work that several threads share, where one processor alone would be the limit."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

MOST = 4
"""Threads at one piece of work: they use all that the memory of a host can move."""


def share(work: Callable[[], None], most: int, name: str) -> None:
    """Runs `work`, which takes one part after the other until none is left, on this thread and others: as many as there
    are processors, `MOST` and `most` at most. Returns when all are through; raises what any of them raised."""
    others = min(most, MOST, len(os.sched_getaffinity(0))) - 1
    if others < 1:
        work()
        return
    with ThreadPoolExecutor(others, name) as pool:
        waiting = [pool.submit(work) for _ in range(others)]
        work()
    for each in waiting:
        each.result()
