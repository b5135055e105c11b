"""The start of a trainer beside that of the same model in a plain DDP script under the agent, taking turns."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from torch import nn

from elastic_agent.trainer import BATCH_SIZE, TorchTrainer, TrainingOperator

from . import digits_job


class Timed(TrainingOperator):
    """Knows when its first batch began."""

    def setup(self, config: dict[str, Any]) -> None:
        self.first_s = 0.0

    def train_epoch(self, iterator: Any, info: dict[str, Any]) -> dict[str, Any]:
        self.first_s = self.first_s or time.time()
        return super().train_epoch(iterator, info)


def _first_s(operator: Any) -> float:
    return float(operator.first_s)


def starts(rounds: int) -> None:
    """Prints medians of `rounds` starts of each."""
    os.environ["OMP_NUM_THREADS"] = "1"
    plain_s: list[float] = []
    ours_s: list[float] = []
    for _ in range(rounds):
        plain_s.append(_plain())
        ours_s.append(_trainer())
    ratios = [ours / plain for ours, plain in zip(ours_s, plain_s, strict=True)]
    print(
        f"start to first batch, {rounds} in turns: TorchTrainer {statistics.median(ours_s):.2f} s, plain DDP "
        f"{statistics.median(plain_s):.2f} s, median of the ratios {statistics.median(ratios):.2f}",
        flush=True,
    )


def _plain() -> float:
    with tempfile.TemporaryDirectory() as folder:
        began_s = time.time()
        command = ["-m", "elastic_agent", "--standalone", "--nproc-per-node", "2", "--no-python", sys.executable]
        command += ["-m", "campaigns.trainer.digits_job", folder]
        ended = subprocess.run([sys.executable, *command], check=False, capture_output=True, text=True)
        if ended.returncode:
            raise RuntimeError(f"the plain script ended with {ended.returncode}: {ended.stderr[-4000:]}")
        return float(Path(folder, "first").read_text()) - began_s


def _trainer() -> float:
    began_s = time.time()
    with TorchTrainer(
        model_creator=digits_job.make_model,
        data_creator=digits_job.make_data,
        optimizer_creator=digits_job.make_optimizer,
        loss_creator=nn.CrossEntropyLoss,
        training_operator_cls=Timed,
        config={BATCH_SIZE: digits_job.BATCH},
        num_workers=2,
        use_gpu=False,
    ) as trainer:
        trainer.train()
        # Of rank 0, as that of the plain script.
        return float(trainer.apply_all_operators(_first_s)[0]) - began_s
