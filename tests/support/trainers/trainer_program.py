"""What every node of a trainer under test runs: `trainer_program.py NAME DIRECTORY ENDPOINTS NNODES WORKERS`.

It writes a line for each call as it returns: whether it was recorded, what it gave, and how many workers there are
then; and the cause of TrainingFailed to `NAME.failed`. Variables: PASSES, how many; ODD, another argument in the second
pass, with ODD=call another call in its place, or with ODD=config another config; STATES, a directory for checkpoints;
RETRIES, max_retries of a pass; VALIDATES, a validation after each pass, which says so on its way; SLOW_S, the least
time of a batch; ALONE_S, that of one worker alone after the first pass, so that it is not done before another
node comes.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import torch
from torch import nn

from elastic_agent.trainer import BATCH_SIZE, TorchTrainer, TrainingFailed
from support.trainers import training
from support.trainers.reports import tell

QUICK = {"lease": 2, "beat": 0.4, "store_grace": 3, "quiet": 0.5, "last_call_timeout": 5}
"""A lost node is missed soon."""


class Slow(training.Watched):
    """Takes its time, so that kills come between two batches."""

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        self._wait()
        return super().train_batch(batch, batch_info)

    def validate_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        self._wait()
        if batch_info["batch_idx"] == 3 and self.world_rank == 0:
            tell(self.config["told"], "a validation")
        return super().validate_batch(batch, batch_info)

    def _wait(self) -> None:
        alone = self.world_size == 1 and self.epoch > 0
        threading.Event().wait(self.config["alone_s" if alone else "slow_s"])


def make_data(config: dict[str, Any]) -> Any:
    return training.make_numbered_data(config), training.Pairs(101)


def main() -> None:
    try:
        train()
    except TrainingFailed as error:
        Path(sys.argv[2], f"{sys.argv[1]}.failed").write_text(json.dumps([error.rank, error.node, error.traceback]))
        raise


def train() -> None:
    name, directory, endpoints, nnodes, workers = sys.argv[1:6]
    work = Path(directory)
    with TorchTrainer(
        model_creator=training.make_model,
        data_creator=make_data if "VALIDATES" in os.environ else training.make_numbered_data,
        optimizer_creator=training.make_optimizer,
        loss_creator=nn.CrossEntropyLoss,
        training_operator_cls=Slow,
        config={
            **({"odd": 1} if os.environ.get("ODD") == "config" else {}),
            **({"fails": os.environ["FAILS"]} if "FAILS" in os.environ else {}),
            BATCH_SIZE: 10,
            training.SEEN: str(work / "seen"),
            "told": str(work / "told"),
            "slow_s": float(os.environ.get("SLOW_S", "0")),
            "alone_s": float(os.environ.get("ALONE_S", os.environ.get("SLOW_S", "0"))),
        },
        num_workers=int(workers),
        use_gpu=False,
        rdzv_endpoint=endpoints,
        nnodes=nnodes,
        checkpoint_dir=os.environ.get("STATES"),
        save_every={"seconds": 0.2},
        launch={"rdzv_configs": QUICK},
    ) as trainer:
        retries = int(os.environ.get("RETRIES", "3"))
        with open(work / name, "a", encoding="utf-8") as said:
            for number in range(int(os.environ["PASSES"])):
                odd = number == 1 and os.environ.get("ODD", "config") != "config"
                if odd and os.environ["ODD"] == "call":
                    trainer.apply_all_workers(os.getpid)
                stats = trainer.train(info={"odd": True} if odd else None, max_retries=retries)
                if "VALIDATES" in os.environ:
                    stats["validated"] = trainer.validate(max_retries=retries)
                said.write(json.dumps([trainer.replaying, stats, trainer.num_workers]) + "\n")
                said.flush()
                if (work / "told").exists():
                    tell(work / "told", name)
            if "KEPT" in os.environ:
                # Only one node has the file.
                kept = work / f"{name}.kept"
                trainer.save(kept)
                if os.environ["KEPT"] != name:
                    kept.unlink()
                trainer.train()
                trainer.load(kept)
        weights = trainer.get_model().state_dict()
        torch.save(weights, work / f"{name}.pt")


if __name__ == "__main__":
    main()
