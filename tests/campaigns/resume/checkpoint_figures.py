"""What a checkpoint costs, beside torch's own: `python -m tests.campaigns.resume.checkpoint_figures`.

Each figure is the median of runs that take turns with what they are compared with.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict_saver import async_save

from elastic_agent.worker.checkpoints.fence import Claim
from elastic_agent.worker.checkpoints.files import load_tensors, sums_of
from elastic_agent.worker.checkpoints.folder import Folder
from elastic_agent.worker.checkpoints.manifest import Manifest
from elastic_agent.worker.checkpoints.pieces import Divided
from elastic_agent.worker.checkpoints.staging import Staging
from elastic_agent.worker.checkpoints.writer import Order, write

MB = 100
RUNS = 7


def state() -> dict[str, torch.Tensor]:
    """100 MB in 25 tensors."""
    return {f"layer{number}": torch.randn(1_000_000) for number in range(MB // 4)}


def timed(act: Callable[[], Any]) -> float:
    """Milliseconds of this thread's processor time, which other work on the machine changes least."""
    began = time.thread_time()
    act()
    return (time.thread_time() - began) * 1000


def in_turns(*acts: Callable[[], float]) -> list[float]:
    """The median of each; the first turn is not counted."""
    turns = [[act() for act in acts] for _ in range(RUNS + 1)][1:]
    return [statistics.median(turn[number] for turn in turns) for number in range(len(acts))]


def main() -> None:
    """Prints the figures."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="figures-") as place:
        directory, held, staging = Path(place), state(), Staging()
        numbers = iter(range(1, 1000))

        def staged() -> tuple[float, float]:
            began = time.perf_counter()
            used = timed(lambda: staging.copy(held))
            return (time.perf_counter() - began) * 1000, used

        def torchs() -> tuple[float, float]:
            waiting: list[Any] = []
            where = str(directory / f"dcp{next(numbers)}")
            began = time.perf_counter()
            used = timed(lambda: waiting.append(async_save({"model": held}, checkpoint_id=where)))
            blocked = (time.perf_counter() - began) * 1000
            waiting[0].result()
            return blocked, used

        turns = [(staged(), torchs()) for _ in range(RUNS + 1)][1:]
        for number, what in enumerate(("wall clock", "processor time")):
            ours, theirs = (statistics.median(turn[who][number] for turn in turns) for who in (0, 1))
            least = min(turn[0][number] for turn in turns)
            print(
                f"blocked by a save of {MB} MB, {what}: {ours:.1f} ms (least {least:.1f}); "
                f"dcp.async_save {theirs:.1f} ms: {ours / theirs:.2f}"
            )
        _writing(directory, held, numbers)
        _reading(directory, held)


def _writing(directory: Path, held: Any, numbers: Any) -> None:
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
    print(f"commit of {MB} MB: {took:.0f} ms; torch.save and fsync {plain:.0f} ms: {took - plain:+.0f} ms")


def _reading(directory: Path, held: Any) -> None:
    path = directory / "read.pt"
    torch.save(held, path)
    data = memoryview(bytearray(path.read_bytes()))

    def verified() -> float:
        began = time.process_time()
        sums_of(path)
        return (time.process_time() - began) * 1000

    def loaded() -> float:
        began = time.perf_counter()
        torch.load(path, weights_only=True)
        return (time.perf_counter() - began) * 1000

    def both() -> float:
        began = time.perf_counter()
        sums_of(path)
        load_tensors(path)
        return (time.perf_counter() - began) * 1000

    def bare() -> float:
        return timed(lambda: zlib.crc32(data))

    check, load, together, crc = in_turns(verified, loaded, both, bare)
    size = len(data) / 1e6
    print(f"verify: {size / check:.1f} GB a second of processor time; zlib.crc32 of memory {size / crc:.1f}")
    print(f"verify and load: {together:.0f} ms; torch.load {load:.0f} ms: {together / load:.2f}")


if __name__ == "__main__":
    main()
