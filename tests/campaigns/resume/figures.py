"""What the library costs, beside a plain DataLoader: the figures that the campaign prints, with their goals.

Processor time, of steps that take turns, because other work may share the cores. Ratios are what counts.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from elastic_agent.worker.data.cursors import Span
from elastic_agent.worker.ledger import TOGETHER, Ledger
from elastic_agent.worker.run import Run
from elastic_agent.worker.schedule import Every

from . import shuffle
from .checkpoint_figures import Figure, checkpoints

STEPS = 10
"""Of a turn: the price of a change from one side to the other is spread over them."""


class Tiny(Dataset[torch.Tensor]):
    """Rows of a tensor; as many of them as one says, all the same."""

    def __init__(self, count: int) -> None:
        self.rows, self.count = torch.randn(4096, 32), count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index & 4095]


class Drawing(Tiny):
    """Adds noise to them."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index & 4095] + torch.randn(32)


class Slow(Tiny):
    """Takes 200 us of processor time for each."""

    def __getitem__(self, index: int) -> torch.Tensor:
        until = time.process_time() + 200e-6
        while time.process_time() < until:
            pass
        return self.rows[index & 4095]


class Images(Tiny):
    """Images of 128 x 128 pixels, each decompressed in some 200 us."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        smooth = torch.nn.functional.interpolate(torch.rand(64, 3, 16, 16), size=(128, 128), mode="bilinear")
        noisy = (smooth * 200 + torch.rand(smooth.shape) * 32).byte()
        self.packed = [zlib.compress(image.numpy().tobytes()) for image in noisy]

    def __getitem__(self, index: int) -> torch.Tensor:
        pixels = bytearray(zlib.decompress(self.packed[index & 63]))
        return torch.frombuffer(pixels, dtype=torch.uint8).view(3, 128, 128).float().div_(255)


def linear() -> torch.nn.Module:
    """A model of 66 parameters."""
    return torch.nn.Linear(32, 2)


def convolutional() -> torch.nn.Module:
    """A small network for `Images`."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 5, stride=4),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 16, 3, stride=2),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.LazyLinear(2),
    )


class Training:
    """Plain SGD."""

    def __init__(self, net: torch.nn.Module, data: Dataset[torch.Tensor]) -> None:
        net(data[0].unsqueeze(0))
        self.net = net
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)

    def turns(
        self, batches: Callable[[], Iterable[torch.Tensor]], after: Callable[[], None]
    ) -> Generator[None, None, None]:
        """Ten steps at each `next`, over so many epochs as it takes."""
        number = 0
        while True:
            for x in batches():
                self.optimizer.zero_grad()
                self.net(x).square().mean().backward()
                self.optimizer.step()
                after()
                number += 1
                if number % STEPS == 0:
                    yield


def ratio(
    data: Dataset[Any],
    batch: int,
    rounds: int,
    processes: int = 0,
    net: Callable[[], torch.nn.Module] = linear,
) -> float:
    """Processor time of the training process, ours by the plain one's: the median over pairs of ten steps each that
    follow each other, of which ours are the first in every other pair, so that both see the machine alike."""
    given: dict[str, Any] = {"batch_size": batch, "shuffle": True, "num_workers": processes}
    plain = DataLoader(data, **given)
    with tempfile.TemporaryDirectory() as directory:
        run = Run(directory, every=Every(seconds=None))
        ours = run.loader(DataLoader(data, **given))
        trainings = Training(net(), data), Training(net(), data)
        sides = [trainings[0].turns(lambda: ours, run.step), trainings[1].turns(lambda: plain, lambda: None)]
        for side in sides:
            next(side)
        ratios = []
        for turn in range(rounds * len(data) // (batch * STEPS)):  # type: ignore[arg-type]
            took = [0.0, 0.0]
            for which in (0, 1) if turn % 2 else (1, 0):
                began_s = time.thread_time()
                next(sides[which])
                took[which] = time.thread_time() - began_s
            ratios.append(took[0] / took[1])
        for side in sides:
            side.close()
    return statistics.median(ratios)


def least_s(call: Callable[[], Any], rounds: int) -> float:
    """Processor time of a call, the smallest of so many."""
    took = []
    for _ in range(rounds):
        began_s = time.thread_time()
        call()
        took.append(time.thread_time() - began_s)
    return min(took)


def each_us(call: Callable[[], Any], count: int = 200) -> float:
    """Processor time of one call, microseconds."""

    def calls() -> None:
        for _ in range(count):
            call()

    return least_s(calls, 50) / count * 1e6


def costs(rounds: int) -> list[Figure]:
    """Processor time beside a plain DataLoader."""
    tiny, what = Tiny(32 * 300), "processor time, tiny model"
    return [
        Figure(f"{what}, batch 32, beside a plain loader", ratio(tiny, 32, rounds), 1.08, ""),
        Figure(f"{what}, batch 256", ratio(Tiny(256 * 60), 256, rounds), 1.08, ""),
        Figure(f"{what}, batch 32, the dataset draws", ratio(Drawing(32 * 150), 32, rounds), 1.25, ""),
        Figure("the same, images and convolutions", ratio(Images(32 * 60), 32, rounds, 0, convolutional), 1.005, ""),
        Figure("tiny model, samples of 200 us", ratio(Slow(32 * 150), 32, 3 * rounds), 1.005, ""),
        Figure("tiny model, main process with 2 loader processes", ratio(tiny, 32, rounds, 2), 1.0, ""),
    ]


def _at_the_middle(run: Run, loader: Any) -> tuple[float, float]:
    """Milliseconds and MiB until the first batch at 5e8 of 1e9."""
    run.account.cursors[loader.name].position = 500_000_000
    with Path("/proc/self/clear_refs").open("w") as file:
        file.write("5")  # the peak of this process's memory is measured from here
    before = _peak_kib()
    began_s = time.perf_counter()
    next(iter(loader))
    return (time.perf_counter() - began_s) * 1e3, (_peak_kib() - before) / 1024


def _peak_kib() -> int:
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


def places() -> list[Figure]:
    """The first batch in the middle, and what a checkpoint holds of the loaders."""
    took = []
    for _ in range(9):
        with tempfile.TemporaryDirectory() as directory:
            run = Run(directory, every=Every(seconds=None))
            took.append(_at_the_middle(run, run.loader(DataLoader(Tiny(10**9), batch_size=256, shuffle=True))))
    with tempfile.TemporaryDirectory() as directory:
        run = Run(directory, every=Every(seconds=None))
        for name in ("train", "held out", "test"):
            loader = run.loader(DataLoader(Tiny(10**6), batch_size=256), name=name)
            run.account.cursors[loader.name].position = 999_999
        size = len(json.dumps(run.account.places(), separators=(",", ":")))
    return [
        Figure("first batch at 5e8 of 1e9 samples", min(ms for ms, _ in took), 3.0, "ms"),
        Figure("the same, memory", max(0.0, min(mib for _, mib in took)), 2.0, "MiB"),
        Figure("state of three loaders in a checkpoint", size, 100, "bytes"),
    ]


def steps() -> list[Figure]:
    """`run.step()` with nothing due, as a loop over a loader calls it."""
    with tempfile.TemporaryDirectory() as directory:
        run = Run(directory, every=Every(seconds=None))
        keyed = each_us(run.step)
        loader = run.loader(DataLoader(Tiny(10**6), batch_size=2))
        next(batches := iter(loader))

        def step() -> None:
            run.keyed = True
            run.step()

        step()
        unkeyed = each_us(step)
        del batches
    return [
        Figure("run.step() with nothing due, keyed", keyed, 10.0, "us"),
        Figure("run.step() with nothing due, where the batch was keyed", unkeyed, 1.0, "us"),
    ]


def ledgers() -> list[Figure]:
    """The ledger of 1e7 samples: 39,063 batches of 256 in 10 epochs."""
    spans = [
        Span("train", epoch, first, min(first + 256, 10**6), first + 256 >= 10**6)
        for epoch in range(10)
        for first in range(0, 10**6, 256)
    ]
    ledger = Ledger()

    def add() -> None:
        nonlocal ledger
        ledger = Ledger()
        for first in range(0, len(spans), TOGETHER):
            ledger.add(spans[first : first + TOGETHER])

    took_s = least_s(add, 5)
    kept = ledger.to_bytes()
    verified_s = least_s(lambda: Ledger.from_bytes(kept).faults(), 5)
    return [
        Figure("ledger, a step", took_s / len(spans) * 1e6, 1.0, "us"),
        Figure("ledger, a step", len(kept) / len(spans), 16, "bytes"),
        Figure("ledger of 1e7 samples verified", verified_s, 0.1, "s"),
    ]


def main(rounds: int = 9) -> int:
    """Prints the table. Returns how many goals were missed."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    missed = 0
    kinds: list[Callable[[], list[Figure]]] = [lambda: costs(rounds), places, steps, ledgers, checkpoints]
    for kind in kinds:
        for figure in kind():
            missed += figure.value > figure.goal
            sys.stdout.write(figure.line() + "\n")
            sys.stdout.flush()
    for n, test, z in shuffle.worst():
        figure = Figure(f"shuffle of {n:,}: largest |z|, {test}", z, 4.0, "")
        missed += figure.value > figure.goal
        sys.stdout.write(figure.line() + "\n")
    for test, z in shuffle.draws(50_000).items():
        figure = Figure(f"draws of the training process: |z|, {test}", abs(z), 4.0, "")
        missed += figure.value > figure.goal
        sys.stdout.write(figure.line() + "\n")
    return missed
