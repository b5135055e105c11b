"""A trial's own methods, without a cluster: `tune_steps.py DIRECTORY`. Prints loss and accuracy of a trial as it was
saved, and of its successor, which has other workers, as it was restored; and what a trial without data for a validation
reports."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from elastic_agent.trainer import BATCH_SIZE, TorchTrainable, TorchTrainer
from support.trainers import training


def training_data(config: dict[str, Any]) -> Any:
    return training.make_data(config)[0]


def main() -> None:
    work = Path(sys.argv[1])
    common: dict[str, Any] = {
        **training.CREATORS,
        "config": {BATCH_SIZE: 20},
    }
    first = TorchTrainer.as_trainable(**common, num_workers=2)(config={"lr": 0.02})
    try:
        reported = first.train()
        rate = first.trainer.config["lr"]
        first.save(str(work / "kept"))
        saved = first.trainer.validate()
    finally:
        first.stop()
    second = TorchTrainer.as_trainable(
        **common, num_workers=1, override_tune_step=lambda trainer, info: {**trainer.validate(), **info}
    )(config={"lr": 0.02})
    try:
        second.restore(str(work / "kept"))
        restored = second.train()
    finally:
        second.stop()
    third = TorchTrainer.as_trainable(**{**common, "data_creator": training_data}, num_workers=1)(config={"lr": 0.02})
    try:
        alone = third.train()
    finally:
        third.stop()
    names = ("val_loss", "val_accuracy")
    print(
        json.dumps(
            {
                "is a trainable": isinstance(first, TorchTrainable),
                "rate": rate,
                "reported": [reported["training_iteration"], reported["epoch"], "val_accuracy" in reported],
                "saved": [saved[name] for name in names],
                "restored": [restored[name] for name in names],
                "without validation": [name in alone for name in ("train_loss", "val_loss")],
            }
        )
    )


if __name__ == "__main__":
    main()
