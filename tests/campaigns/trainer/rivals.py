"""Beside Ray Train v2's TorchTrainer, with the same model and data on the same machine: `make trainer-rivals`."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from torch import nn

from . import digits_job

PASSES = 12
KILL_AT = 4
"""Pass in which a worker is killed."""


def begun(folder: str, epoch: int) -> None:
    """A batch begins, in this process."""
    with open(Path(folder, str(os.getpid())), "a", encoding="utf-8") as file:
        file.write(f"{time.time()} {epoch}\n")


class Watch(threading.Thread):
    """Kills a worker in a pass, and sees how much memory all processes have by then."""

    def __init__(self, folder: str) -> None:
        super().__init__(daemon=True)
        self.folder, self.killed_s, self.memory_mib = Path(folder), 0.0, 0.0

    def lines(self) -> list[tuple[float, int, int]]:
        read = [(path.name, path.read_text().splitlines()) for path in self.folder.iterdir() if path.name.isdigit()]
        return sorted((float(line.split()[0]), int(line.split()[1]), int(pid)) for pid, lines in read for line in lines)

    def run(self) -> None:
        tick = threading.Event()
        while True:
            tick.wait(0.02)
            if lines := [line for line in self.lines() if line[1] == KILL_AT]:
                family = [psutil.Process(), *psutil.Process().children(recursive=True)]
                self.memory_mib = sum(each.memory_full_info().pss for each in family if each.is_running()) / 2**20
                self.killed_s = time.time()
                os.kill(lines[0][2], signal.SIGKILL)
                return

    def found(self, began_s: float) -> dict[str, float]:
        """Seconds to the first batch, of a pass, and from the kill to the next batch; MiB by PSS."""
        self.join()
        lines = self.lines()
        firsts = [min(at_s for at_s, epoch, _ in lines if epoch == number) for number in range(KILL_AT)]
        again = min(at_s for at_s, _, pid in lines if at_s > self.killed_s + 0.1)
        took = min(later - earlier for earlier, later in itertools.pairwise(firsts))
        lost = sum(1 for at_s, epoch, _ in lines if epoch == KILL_AT)
        return {
            "start_s": lines[0][0] - began_s,
            "pass_s": took,
            "recovery_s": again - self.killed_s,
            "memory_mib": self.memory_mib,
            "batches_of_the_killed_pass": lost,
        }


def ours(folder: str) -> dict[str, float]:
    from elastic_agent.trainer import BATCH_SIZE, TorchTrainer, TrainingOperator

    class Shown(TrainingOperator):
        def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
            begun(self.config["times"], self.epoch)
            return super().train_batch(batch, batch_info)

    began_s = time.time()
    watch = Watch(folder)
    watch.start()
    with TorchTrainer(
        model_creator=digits_job.make_model,
        data_creator=digits_job.make_data,
        optimizer_creator=digits_job.make_optimizer,
        loss_creator=nn.CrossEntropyLoss,
        training_operator_cls=Shown,
        config={BATCH_SIZE: digits_job.BATCH, "times": folder},
        num_workers=2,
        use_gpu=False,
    ) as trainer:
        for _ in range(PASSES):
            trainer.train()
        return watch.found(began_s)


def loop(config: dict[str, Any]) -> None:
    """Ray's workers: a checkpoint after each pass, as its documentation shows."""
    import ray.train
    import ray.train.torch
    import torch

    model: Any = digits_job.make_model({})
    first = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as kept:
            state = torch.load(Path(kept, "state.pt"), weights_only=True)
        model.load_state_dict(state["model"])
        first = state["epoch"] + 1
    model = ray.train.torch.prepare_model(model)
    optimizer, criterion = digits_job.make_optimizer(model, {}), nn.CrossEntropyLoss()
    loss: Any = None
    loader: Any = ray.train.torch.prepare_data_loader(
        torch.utils.data.DataLoader(digits_job.make_set(), batch_size=digits_job.BATCH // 2, shuffle=True)
    )
    for epoch in range(first, PASSES):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            begun(config["times"], epoch)
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with tempfile.TemporaryDirectory() as kept:
            made = None
            if ray.train.get_context().get_world_rank() == 0:
                torch.save({"model": model.module.state_dict(), "epoch": epoch}, Path(kept, "state.pt"))
                made = ray.train.Checkpoint.from_directory(kept)
            ray.train.report({"loss": loss.item()}, checkpoint=made)


def rays(folder: str) -> dict[str, float]:
    import ray
    import ray.train.torch

    began_s = time.time()
    watch = Watch(folder)
    watch.start()
    ray.init(include_dashboard=False, log_to_driver=False, num_cpus=4)
    ray.train.torch.TorchTrainer(
        loop,
        train_loop_config={"times": folder},
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(
            storage_path=f"{folder}/kept", failure_config=ray.train.FailureConfig(max_failures=3)
        ),
    ).fit()
    return watch.found(began_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="trainings of each, in turns")
    parser.add_argument("--one", choices=("ours", "rays"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        with tempfile.TemporaryDirectory() as folder:
            print("found", json.dumps({"ours": ours, "rays": rays}[arguments.one](folder)), flush=True)
        return
    os.environ.update(OMP_NUM_THREADS="1", RAY_TRAIN_V2_ENABLED="1")
    rows: dict[str, list[dict[str, float]]] = {"ours": [], "rays": []}
    for _ in range(arguments.rounds):
        for name, kept in rows.items():
            done = subprocess.run(
                [sys.executable, "-m", __spec__.name, "--one", name],
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            )
            line = next((line for line in done.stdout.splitlines() if line.startswith("found ")), None)
            if line is None:
                raise SystemExit(f"{name} did not end:\n{done.stderr[-3000:]}")
            kept.append(json.loads(line[6:]))
    for what in rows["ours"][0]:
        middle = {name: statistics.median(row[what] for row in kept) for name, kept in rows.items()}
        print(f"{what}: ours {middle['ours']:.3g}, Ray Train {middle['rays']:.3g}", flush=True)


if __name__ == "__main__":
    main()
