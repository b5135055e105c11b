"""Two nodes' programs with one mistake after the other: `trainer_refused.py NAME DIRECTORY PORT,... CASE...`.

Each writes a line for each mistake: the case, the exception's name, its text, and when it was raised.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from elastic_agent.trainer import BATCH_SIZE, TorchTrainer
from support.outside.mounts import fill
from support.trainers import training

FULL: dict[str, Any] = {
    **training.CREATORS,
    "config": {BATCH_SIZE: 50},
    "num_workers": 2,
    "nnodes": "2",
    "preload": (),
    "launch": {"rdzv_configs": {"last_call_timeout": 5}},
}


def frozen(config: dict[str, Any]) -> nn.Module:
    return training.make_model(config).requires_grad_(False)


def unrelated(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)


CHANGED: dict[str, dict[str, Any]] = {
    "model": {"model_creator": lambda config: 3},
    "data": {"data_creator": lambda config: [1, 2, 3]},
    "empty": {"data_creator": lambda config: training.Pairs(0)},
    "optimizer": {"optimizer_creator": lambda model, config: model},
    "loss": {"loss_creator": lambda config: 3},
    "scheduler": {"scheduler_creator": lambda optimizer, config: 3},
    "gradient": {"model_creator": frozen, "optimizer_creator": unrelated},
    "batch": {"config": {BATCH_SIZE: 1}},
    "config": {"config": {"net": object()}},
}


def main() -> None:
    name, directory, ports, *cases = sys.argv[1:]
    work = Path(directory)
    for case, port in zip(cases, ports.split(","), strict=True):
        found, raised_s = ["none", ""], 0.0
        settings = {**FULL, **CHANGED.get(case, {}), "rdzv_endpoint": f"127.0.0.1:{port}", "rdzv_id": case}
        try:
            with TorchTrainer(**settings) as trainer:
                problem = DOES.get(case, train)(trainer, name, work)
            if problem is not None:
                raise problem
            if case == "shutdown":
                trainer.train()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            found, raised_s = [type(error).__name__, str(error)], time.monotonic()
        with open(work / name, "a", encoding="utf-8") as file:
            file.write(json.dumps([case, *found, raised_s]) + "\n")


def train(trainer: TorchTrainer, name: str, work: Path) -> None:
    trainer.train()


def load(trainer: TorchTrainer, name: str, work: Path) -> Exception | None:
    """One node has a file that was cut, the other one none. The trainer is as it was, and goes on. The error is not
    raised here: a program that ends by one leaves while the other may still wait for its last answer."""
    trainer.train()
    before = trainer.validate()
    mine = work / f"cut.{name}"
    trainer.save(mine)
    if name == "one":
        mine.write_bytes(mine.read_bytes()[:900])
    else:
        mine.unlink()
    problem: Exception | None = None
    try:
        trainer.load(mine)
    except Exception as error:  # noqa: BLE001 - the test looks at it
        problem = error
    assert trainer.validate()["val_loss"] == before["val_loss"]
    assert trainer.train()["epoch"] == 2
    return problem


def save(trainer: TorchTrainer, name: str, work: Path) -> OSError | None:
    """One node's disk is full. On both the file from before stays, alone, and they go on and save again."""
    path = work / f"files.{name}" / "saved"
    path.parent.mkdir()
    trainer.save(path)
    kept = path.read_bytes()
    trainer.train()
    problem: OSError | None = None
    with full_disk() if name == "one" else nullcontext():
        try:
            trainer.save(path)
        except OSError as error:
            problem = error
    assert path.read_bytes() == kept
    assert [each.name for each in path.parent.iterdir()] == ["saved"]
    assert trainer.train()["epoch"] == 2
    trainer.save(path)
    assert path.read_bytes() != kept
    # Raised when both have shut down: a node that leaves with an error is waited for by the other one.
    return problem


def save_on_full_disk(trainer: TorchTrainer, name: str, work: Path) -> OSError | None:
    """Each node's file system is full. Its file from before stays whole, and alone; with room again it is replaced."""
    disk = work / f"disk.{name}"
    trainer.train()
    before = trainer.validate()
    trainer.save(disk / "saved")
    kept = (disk / "saved").read_bytes()
    trainer.train()
    problem: OSError | None = None
    fill(disk / "filler")
    try:
        trainer.save(disk / "saved")
    except OSError as error:
        problem = error
    assert sorted(path.name for path in disk.iterdir()) == ["filler", "saved"]
    assert (disk / "saved").read_bytes() == kept
    assert trainer.train()["epoch"] == 3
    after = trainer.validate()
    trainer.load(disk / "saved")
    assert trainer.validate()["val_loss"] == before["val_loss"] != after["val_loss"]
    (disk / "filler").unlink()
    trainer.train()
    trainer.save(disk / "saved")
    assert (disk / "saved").read_bytes() != kept
    return problem


DOES: dict[str, Callable[[TorchTrainer, str, Path], Exception | None]] = {
    "load": load,
    "save": save,
    "full": save_on_full_disk,
}


@contextmanager
def full_disk() -> Iterator[None]:
    """Files of this process end after 500 bytes."""
    limits, handled = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handled)


if __name__ == "__main__":
    main()
