"""What a checkpoint costs, beside torch's own: `python -m tests.campaigns.resume --figures`.

Each figure is the median of runs that take turns with what they are compared with; processor time, which other work on
the machine changes least.
"""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.state_dict_saver import async_save

from elastic_agent.worker.checkpoints.crc import crc32
from elastic_agent.worker.checkpoints.fence import Claim
from elastic_agent.worker.checkpoints.files import load_tensors, sums_of
from elastic_agent.worker.checkpoints.folder import Folder
from elastic_agent.worker.checkpoints.manifest import Manifest
from elastic_agent.worker.checkpoints.pieces import Divided
from elastic_agent.worker.checkpoints.staging import Staging
from elastic_agent.worker.checkpoints.writer import Order, write

from . import real

MB = 100
RUNS = 15
NEW_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "0"}
"""Each large block of memory is new to the process (glibc), as it is in one that begins: there a checkpoint is loaded,
once. In a process that has freed as much, torch.load takes a third of the time, as nothing has to be mapped."""


class Figure(NamedTuple):
    """One line of the table; reached where the value is at most the goal."""

    what: str
    value: float
    goal: float
    unit: str

    def line(self) -> str:
        verdict = "reached" if self.value <= self.goal else "MISSED"
        return f"{self.what:<66} {self.value:>9.3g} {self.unit:<6} goal {self.goal:>7.4g}  {verdict}"


def state() -> dict[str, torch.Tensor]:
    """100 MB in 25 tensors."""
    return {f"layer{number}": torch.randn(1_000_000) for number in range(MB // 4)}


def timed(act: Callable[[], Any]) -> float:
    """Milliseconds of this thread's processor time."""
    began = time.thread_time()
    act()
    return (time.thread_time() - began) * 1000


def timed_by_all(act: Callable[[], Any]) -> float:
    """Milliseconds of this process's processor time, that of its threads included."""
    began = time.process_time()
    act()
    return (time.process_time() - began) * 1000


def in_turns(*acts: Callable[[], float]) -> list[float]:
    """The median of each; the first turn is not counted."""
    turns = [[act() for act in acts] for _ in range(RUNS + 1)][1:]
    return [statistics.median(turn[number] for turn in turns) for number in range(len(acts))]


def checkpoints() -> list[Figure]:
    """Saves and loads of 100 MB."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="figures-") as place:
        directory, held, numbers = Path(place), state(), itertools.count(1)
        on_host = [*_blocked(directory, held, numbers), *_writing(directory, held, numbers), *_reading(directory, held)]
        return [*on_host, *(_blocked_on_a_gpu(held) if torch.cuda.is_available() else [])]


def _blocked(directory: Path, held: Any, numbers: Iterator[int]) -> list[Figure]:
    staging = Staging()

    def ours() -> float:
        os.sync()  # else what torch has just written goes to the disk meanwhile, through the same memory
        return timed(lambda: staging.copy(held))

    def by_the_clock() -> float:
        os.sync()
        began = time.perf_counter()
        staging.copy(held)
        return (time.perf_counter() - began) * 1000

    def torchs() -> float:
        waiting: list[Any] = []
        where = str(directory / f"dcp{next(numbers)}")
        used = timed(lambda: waiting.append(async_save({"model": held}, checkpoint_id=where)))
        waiting[0].result()
        return used

    what, computes = f"blocked by a save of {MB} MB, by the clock", torch.get_num_threads()
    figures = []
    for threads in (len(os.sched_getaffinity(0)), 1):  # as a script computes by itself; and as under a launcher
        torch.set_num_threads(threads)
        (took,) = in_turns(by_the_clock)
        figures.append(Figure(f"{what}; torch computes with {threads} threads", took, 8.0, "ms"))
    torch.set_num_threads(computes)
    took, theirs = in_turns(ours, torchs)
    return [*figures, Figure("the same, beside dcp.async_save, processor time of the thread", took / theirs, 1.0, "")]


def _blocked_on_a_gpu(held: dict[str, torch.Tensor]) -> list[Figure]:
    staging, there = Staging(), {name: tensor.cuda() for name, tensor in held.items()}

    def copied() -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        staging.copy(there)
        return (time.perf_counter() - began) * 1000

    (took,) = in_turns(copied)
    name = torch.cuda.get_device_name()
    return [Figure(f"blocked by a save of {MB} MB on {name}, by the clock", took, 8.0, "ms")]


def _writing(directory: Path, held: Any, numbers: Iterator[int]) -> list[Figure]:
    folder = Folder(directory / "checkpoints", lambda text: None)

    def manifest(contents: Any) -> Manifest:
        return Manifest(next(numbers), "token", 0, {}, {}, "", contents)

    def ours() -> float:
        return timed(lambda: write(folder, Claim("token"), Order(1, Divided(held), {}, manifest)))

    def saved() -> float:
        path = directory / f"plain{next(numbers)}.pt"

        def act() -> None:
            with path.open("wb") as file:
                torch.save(held, file)
                file.flush()
                os.fsync(file.fileno())

        return timed(act)

    took, plain = in_turns(ours, saved)
    return [Figure(f"commit of {MB} MB beyond torch.save and fsync", took - plain, 5 + 0.2 * MB, "ms")]


def _reading(directory: Path, held: Any) -> list[Figure]:
    path = directory / "read.pt"
    torch.save(held, path)
    with real.pool_of(1, forks=False, variables=NEW_MEMORY) as pool:
        check, load, together = pool.submit(_read, path).result()
    by = crc32.__module__ or "zlib"
    return [
        Figure(f"verify a GB, by {by}: seconds on one core", check / 1000 / (path.stat().st_size / 1e9), 0.25, "s"),
        Figure("verify and load, beside torch.load", together / load, 1.3, ""),
    ]


def _read(path: Path) -> list[float]:
    """Milliseconds that it takes to verify a file, to load it by torch.load, and to verify and load it."""

    def verified() -> float:
        return timed_by_all(lambda: sums_of(path))

    def loaded() -> float:
        return timed_by_all(lambda: torch.load(path, weights_only=True))

    def both() -> float:
        return timed_by_all(lambda: (sums_of(path), load_tensors(path)))

    return in_turns(verified, loaded, both)
