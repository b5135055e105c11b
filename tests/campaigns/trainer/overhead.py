"""A trainer beside the same model in a plain DDP script under the agent, taking turns."""

from __future__ import annotations

import json
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
    """Knows when its first batch began, and how long its passes took."""

    def setup(self, config: dict[str, Any]) -> None:
        self.first_s = 0.0
        self.took: list[float] = []

    def train_epoch(self, iterator: Any, info: dict[str, Any]) -> dict[str, Any]:
        began_s = time.perf_counter()
        self.first_s = self.first_s or time.time()
        made = super().train_epoch(iterator, info)
        self.took.append(time.perf_counter() - began_s)
        return made


def _first_s(operator: Any) -> float:
    return float(operator.first_s)


def _took_s(operator: Any) -> list[float]:
    return list(operator.took)


def overhead(rounds: int) -> None:
    """Prints medians of `rounds` starts of each, and the least pass of each start."""
    os.environ["OMP_NUM_THREADS"] = "1"
    found: dict[str, list[tuple[float, float, float]]] = {"plain": [], "trainer": []}
    for _ in range(rounds):
        found["plain"].append(_plain())
        found["trainer"].append(_trainer())
    middle = {name: [statistics.median(values) for values in zip(*rows, strict=True)] for name, rows in found.items()}
    for name, (start_s, pass_s, call_s) in middle.items():
        print(f"{name}: start to first batch {start_s:.2f} s, pass {1e3 * pass_s:.1f} ms, call {1e3 * call_s:.2f} ms")
    (start_s, pass_s, _), (ours_s, our_pass_s, call_s) = middle["plain"], middle["trainer"]
    print(
        f"start {ours_s / start_s:.2f} times the plain script's, pass {our_pass_s / pass_s - 1:+.1%}, "
        f"{1e3 * call_s:.2f} ms a call besides the pass",
        flush=True,
    )


def _plain() -> tuple[float, float, float]:
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "said"
        began_s = time.time()
        command = ["-m", "elastic_agent", "--standalone", "--nproc-per-node", "2", "--no-python", sys.executable]
        subprocess.run(
            [sys.executable, *command, "-m", "campaigns.trainer.digits_job", str(said)], check=True, capture_output=True
        )
        kept = json.loads(said.read_text())
        return kept["first_s"] - began_s, min(kept["took_s"]), 0.0


def _trainer() -> tuple[float, float, float]:
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
        whole = []
        for _ in range(digits_job.PASSES):
            call_s = time.perf_counter()
            trainer.train()
            whole.append(time.perf_counter() - call_s)
        firsts = trainer.apply_all_operators(_first_s)
        took = trainer.apply_all_operators(_took_s)[0]
    besides = statistics.median(all_s - pass_s for all_s, pass_s in zip(whole, took, strict=True))
    return min(firsts) - began_s, min(took), besides
