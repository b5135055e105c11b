"""Many seeds, on as many cores as there are."""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from . import run
from .checks.coverage import Reached
from .world import fast_values

MOST_OBJECTS = 500_000
"""More than the world of any seed leaves behind."""


@dataclass
class Played:
    """What the seeds of one process, or of all, led to."""

    count: int = 0
    cpu_s: float = 0.0
    """Processor time, without that of making a violation small."""
    reached: Reached = field(default_factory=Reached)
    failed: list[str] = field(default_factory=list)
    """For each process that ended at a violation: the violation, made small, but for a job of many nodes."""

    def merge(self, other: Played) -> None:
        self.count += other.count
        self.cpu_s += other.cpu_s
        self.reached.merge(other.reached)
        self.failed += other.failed


def play(start: int, runs: int, lasts_s: float | None = None, jobs: int = 1, nodes: int = 0) -> Played:
    """Seeds from `start` on: `runs` of them, or for `lasts_s` seconds. Each process ends at its first violation.

    jobs: processes; 0: one for each core. nodes: as in `draw.scenario`.
    """
    jobs = jobs or os.cpu_count() or 1
    ends = None if lasts_s is None else time.monotonic() + lasts_s  # one clock for all processes of a host
    shares = [(start + index, jobs, runs // jobs + (index < runs % jobs), ends, nodes) for index in range(jobs)]
    played = Played()
    if jobs == 1:
        played.merge(_share(*shares[0]))
        return played
    with multiprocessing.Pool(jobs) as pool:
        for share in pool.starmap(_share, shares, chunksize=1):
            played.merge(share)
    return played


def _share(start: int, stride: int, runs: int, ends: float | None, nodes: int) -> Played:
    played = Played()
    violation: run.SeedFailed | None = None
    began = time.process_time()
    with _quick():
        for seed in _seeds(start, stride, runs, ends):
            try:
                played.reached.merge(run.play(seed, nodes=nodes).reached)
            except run.SeedFailed as failed:
                violation = failed
                break
            played.count += 1
            _free(played.count, nodes)
    played.cpu_s = time.process_time() - began
    if violation is not None:  # with many nodes to try without each of them would take hours
        played.failed.append(str(violation if nodes else run.smallest(violation)))
    return played


@contextmanager
def _quick() -> Iterator[None]:
    """Values are made fast, and garbage is what `_free` collects; while a seed is played only beyond a bound."""
    held = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(MOST_OBJECTS, 5, 5)
    try:
        with fast_values.quick():
            yield
    finally:
        gc.set_threshold(*held)
        gc.unfreeze()


def _free(count: int, nodes: int) -> None:
    """Frees the world of the last of `count` seeds while the processor still has it in its caches: that takes a quarter
    of the time that it takes later, for many worlds at once. Of one of many nodes some objects are old by then."""
    gc.collect(2 if nodes or count % 1000 == 0 else 1)


def _seeds(start: int, stride: int, runs: int, ends: float | None) -> Iterator[int]:
    seed = start
    while time.monotonic() < ends if ends is not None else seed < start + stride * runs:
        yield seed
        seed += stride
