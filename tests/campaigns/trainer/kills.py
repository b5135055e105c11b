"""SIGKILLs of workers at random moments of a pass; the end is compared with that of an undisturbed training."""

from __future__ import annotations

import os
import random
import signal
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from elastic_agent.trainer import BATCH_SIZE, TorchTrainer, TrainingOperator

from . import digits_job

A_TRAINING = 5
"""Passes, and kills, of one training."""
BATCHES = 220
GOAL_S = 0.5
"""From a kill to the next batch."""


class Shown(TrainingOperator):
    """Writes when each batch began."""

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        with open(Path(self.config["times"], str(os.getpid())), "a", encoding="utf-8") as file:
            file.write(f"{time.monotonic()} {self.epoch} {batch_info['batch_idx']}\n")
        return super().train_batch(batch, batch_info)


def small(config: dict[str, Any]) -> Any:
    return torch.utils.data.DataLoader(digits_job.make_set(), batch_size=config[BATCH_SIZE], shuffle=True)


def kills(count: int, seed: int) -> int:
    """Until so many kills have hit a pass: prints what differed after them, and how long they took; returns how many
    trainings differed."""
    os.environ["OMP_NUM_THREADS"] = "1"
    dice, wrong, trainings = random.Random(seed), 0, 0
    whole = _train(None)[0]
    again: list[float] = []
    later: list[float] = []
    while len(again) < count:
        found, times = _train(dice)
        trainings += 1
        again += [first for first, _ in times]
        later += [new for _, new in times]
        wrong += any(not torch.equal(whole[name], found[name]) for name in whole)
        took = ", ".join(f"{first:.2f}" for first, _ in times)
        print(
            f"training {trainings}: next batch after {took} s; {len(again)} of {count} kills have hit a pass",
            flush=True,
        )
    within = sum(each <= GOAL_S for each in again)
    print(
        f"{trainings * A_TRAINING} kills of a worker, of which {len(again)} hit a pass: {wrong} of {trainings} "
        f"trainings ended with other weights; next batch after {statistics.median(again):.2f} s (at most "
        f"{max(again):.2f}, {within} of {len(again)} within {GOAL_S:g} s), one that was not begun before after "
        f"{statistics.median(later):.2f} s (at most {max(later):.2f})",
        flush=True,
    )
    return wrong


def _train(dice: random.Random | None) -> tuple[dict[str, torch.Tensor], list[tuple[float, float]]]:
    times: list[tuple[float, float]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        TorchTrainer(
            model_creator=digits_job.make_model,
            data_creator=small,
            optimizer_creator=digits_job.make_optimizer,
            loss_creator=nn.CrossEntropyLoss,
            training_operator_cls=Shown,
            config={BATCH_SIZE: 8, "times": folder},
            num_workers=2,
            use_gpu=False,
        ) as trainer,
    ):
        trainer.train(num_steps=20)
        for _ in range(A_TRAINING):
            killed: list[float] = []
            if dice is None:
                trainer.train(num_steps=BATCHES)
                continue
            pid = dice.choice(trainer.apply_all_workers(os.getpid))
            timer = threading.Timer(dice.uniform(0.0, 0.5), _kill, (pid, killed))
            timer.start()
            trainer.train(num_steps=BATCHES)
            timer.join()
            if (took := _took(Path(folder), killed[0])) is not None:
                times.append(took)
        return trainer.get_model().state_dict(), times


def _kill(pid: int, killed: list[float]) -> None:
    killed.append(time.monotonic())
    os.kill(pid, signal.SIGKILL)


def _took(folder: Path, killed_s: float) -> tuple[float, float] | None:
    """Seconds from a kill to the next batch, and to the next that nobody had begun before; None where the pass was over
    by then."""
    lines = [line.split() for path in folder.iterdir() for line in path.read_text().splitlines()]
    begun = sorted((float(at_s), int(epoch), int(number)) for at_s, epoch, number in lines)
    before = max((each[1:] for each in begun if each[0] <= killed_s), default=(0, 0))
    # The other worker may begin one more batch, in which it waits for the one that is gone.
    after = [each for each in begun if each[0] > killed_s + 0.1]
    if not after or after[0][1] != before[0]:
        return None
    new = next((each[0] for each in after if each[1:] > before), None)
    return None if new is None else (after[0][0] - killed_s, new - killed_s)
