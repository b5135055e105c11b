"""Passes of a trainer and of a plain DDP script in turns, in jobs that live at the same time: the ratio of their times.

What else the machine does meets both passes of a pair alike, so ratios hold where seconds do not.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from elastic_agent.trainer import BATCH_SIZE, TorchTrainer, TrainingOperator
from support.trainers.reports import Reports, tell

from . import digits_job

WORKERS = 2
WARM_UP = 3
"""Pairs that do not count."""


class Took(NamedTuple):
    """One pass."""

    wall_s: float
    """From the first batch asked for to the end of the last, on the slowest worker."""
    processor_s: float
    """Of all workers, since the end of their last pass."""


class Clocked(TrainingOperator):
    """Tells what each pass took, by both clocks."""

    def setup(self, config: dict[str, Any]) -> None:
        self.ended_s = time.process_time()

    def train_epoch(self, iterator: Any, info: dict[str, Any]) -> dict[str, Any]:
        began_s = time.perf_counter()
        made = super().train_epoch(iterator, info)
        now_s = time.process_time()
        tell(self.config["told"], [time.perf_counter() - began_s, now_s - self.ended_s])
        self.ended_s = now_s
        return made


def _took(told: Reports, pid: int = 0) -> Took:
    parts = [told.next(pid) for _ in range(WORKERS)]
    return Took(max(wall_s for wall_s, _ in parts), sum(processor_s for _, processor_s in parts))


class Plain:
    """The script, one pass at a time."""

    def __init__(self, folder: Path) -> None:
        self._told = Reports(folder / "told")
        self._go = [Reports(folder / f"go{rank}") for rank in range(WORKERS)]
        command = ["-m", "elastic_agent", "--standalone", "--nproc-per-node", str(WORKERS)]
        command += ["--no-python", sys.executable, "-m", "campaigns.trainer.digits_job", str(folder)]
        self._process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL)

    def train(self) -> Took:
        self._say("go")
        return _took(self._told, self._process.pid)

    def close(self) -> None:
        self._say("end")
        self._process.wait(60)
        for pipe in (self._told, *self._go):
            pipe.close()

    def _say(self, what: str) -> None:
        for pipe in self._go:
            tell(pipe.path, what)


@contextmanager
def _plain() -> Iterator[Plain]:
    with tempfile.TemporaryDirectory() as folder:
        made = Plain(Path(folder))
        try:
            yield made
        finally:
            made.close()


def pairs(count: int) -> None:
    """Prints medians of the ratios of so many pairs of passes, with the middle half of them, and what a call costs."""
    os.environ["OMP_NUM_THREADS"] = "1"
    ours: list[Took] = []
    theirs: list[Took] = []
    besides: list[float] = []
    program: list[float] = []
    with _plain() as plain, _told() as told, _trainer(told) as trainer:
        for number in range(WARM_UP + count):
            if number % 2:
                theirs.append(plain.train())
            began_s, processor_s = time.perf_counter(), time.process_time()
            trainer.train()
            whole_s, spent_s = time.perf_counter() - began_s, time.process_time() - processor_s
            ours.append(_took(told))
            besides.append(whole_s - ours[-1].wall_s)
            program.append(spent_s)
            if not number % 2:
                theirs.append(plain.train())
    for name in Took._fields:
        ratios = [getattr(a, name) / getattr(b, name) for a, b in zip(ours, theirs, strict=True)][WARM_UP:]
        low, middle, high = statistics.quantiles(ratios, n=4)
        total = sum(getattr(a, name) for a in ours[WARM_UP:]) / sum(getattr(b, name) for b in theirs[WARM_UP:])
        print(
            f"{name.removesuffix('_s')} time of a pass, TorchTrainer / plain DDP, {count} pairs: median {middle:.3f} "
            f"(middle half {low:.3f} to {high:.3f}), of all together {total:.3f}"
        )
    low, middle, high = (1e3 * each for each in statistics.quantiles(besides[WARM_UP:], n=4))
    print(f"a call besides the pass: median {middle:.2f} ms (middle half {low:.2f} to {high:.2f}), ", end="")
    print(f"{1e3 * statistics.median(program[WARM_UP:]):.2f} ms processor time of the program", flush=True)


def calls(count: int) -> None:
    """Prints what so many calls of `train()` cost besides their pass, of one batch, one right after the other."""
    os.environ["OMP_NUM_THREADS"] = "1"
    besides: list[float] = []
    with _told() as told, _trainer(told, one_batch) as trainer:
        for _ in range(WARM_UP + count):
            began_s = time.perf_counter()
            trainer.train()
            whole_s = time.perf_counter() - began_s
            besides.append(whole_s - _took(told).wall_s)
    low, middle, high = (1e3 * each for each in statistics.quantiles(besides[WARM_UP:], n=4))
    print(
        f"a call of train() besides a pass of one batch, {count} back to back: median {middle:.3f} ms "
        f"(middle half {low:.3f} to {high:.3f})",
        flush=True,
    )


@contextmanager
def _told() -> Iterator[Reports]:
    with tempfile.TemporaryDirectory() as folder:
        made = Reports(Path(folder) / "told")
        yield made
        made.close()


def one_batch(config: dict[str, Any]) -> Any:
    """As many samples as one step has."""
    samples = torch.utils.data.Subset(digits_job.make_set(), range(digits_job.BATCH))
    return torch.utils.data.DataLoader(samples, batch_size=config[BATCH_SIZE], shuffle=True)


def _trainer(told: Reports, data: Any = digits_job.make_data) -> TorchTrainer:
    return TorchTrainer(
        model_creator=digits_job.make_model,
        data_creator=data,
        optimizer_creator=digits_job.make_optimizer,
        loss_creator=nn.CrossEntropyLoss,
        training_operator_cls=Clocked,
        config={BATCH_SIZE: digits_job.BATCH, "told": str(told.path)},
        num_workers=WORKERS,
        use_gpu=False,
    )
