"""Learn to read handwritten digits with a TorchTrainer: `python examples/trainer/digits.py`.

Kill a worker while it runs (its process ids are printed): the pass goes on at its next batch, and ends with the same
accuracy. On several nodes each runs this program; only the first lines that it prints differ:

    python examples/trainer/digits.py --nnodes 1:3 --workers 3 --endpoint node0:29400,node1:29400
    srun --nodes 3 --ntasks-per-node 1 python examples/trainer/digits.py --nnodes 1:3 --workers 3 \\
        --endpoint "$(scontrol show hostnames | head -n 1):29400"

    kubectl apply -f examples/trainer/digits.yaml

With --states, a directory, all nodes may be lost and started again.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from elastic_agent.trainer import BATCH_SIZE, TorchTrainer, TrainingOperator

WANTED_ACCURACY = 0.95


def make_model(config: dict[str, Any]) -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8)),
        nn.Conv2d(1, config["channels"], 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * config["channels"], 10),
    )


def make_data(config: dict[str, Any]) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """The 1797 8x8 images that come with scikit-learn: 1437 to train on, 360 to validate."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1797))
    x = torch.tensor(images, dtype=torch.float32)[order].reshape(-1, 8, 8) / 16
    y = torch.tensor(labels)[order]
    batch = config[BATCH_SIZE]
    return (
        DataLoader(TensorDataset(x[360:], y[360:]), batch_size=batch, shuffle=True),
        DataLoader(TensorDataset(x[:360], y[:360]), batch_size=batch),
    )


def make_optimizer(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=config["lr"])


class Telling(TrainingOperator):
    """Says when a pass has begun: who kills a node then, kills it in the middle of one."""

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        if self.world_rank == 0 and batch_info["batch_idx"] == 1:
            print(f"pass {self.epoch + 1} has begun", flush=True)
        return super().train_batch(batch, batch_info)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2, help="over all nodes")
    parser.add_argument("--nnodes", default="1")
    parser.add_argument("--endpoint", default="", metavar="HOST:PORT[,HOST:PORT]")
    parser.add_argument("--tell", action="store_true", help="when a pass has begun")
    parser.add_argument("--states", metavar="DIRECTORY", help="where checkpoints are kept (default: in memory)")
    arguments = parser.parse_args()
    # As Kubernetes and SLURM send it, some time before SIGKILL: the workers save what they have done.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with TorchTrainer(
        model_creator=make_model,
        data_creator=make_data,
        optimizer_creator=make_optimizer,
        loss_creator=nn.CrossEntropyLoss,
        training_operator_cls=Telling if arguments.tell else TrainingOperator,
        config={"lr": 3e-3, "channels": 8, BATCH_SIZE: 64},
        num_workers=arguments.workers,
        nnodes=arguments.nnodes,
        rdzv_endpoint=arguments.endpoint,
        checkpoint_dir=arguments.states,
        use_tqdm=True,
    ) as trainer:
        print(f"workers of this node: {trainer.apply_all_workers(os.getpid)}", flush=True)
        accuracy = 0.0
        for _ in range(arguments.epochs):
            trained, validated = trainer.train(max_retries=3), trainer.validate()
            accuracy = validated["val_accuracy"]
            again = " (recorded before)" if trainer.replaying else ""
            print(
                f"epoch {trained['epoch']}: loss {trained['train_loss']:.4f}, accuracy {accuracy:.1%}, "
                f"{trainer.num_workers} workers{again}",
                flush=True,
            )
    if accuracy < WANTED_ACCURACY:
        raise SystemExit(f"accuracy {accuracy:.1%}, wanted {WANTED_ACCURACY:.0%}")


if __name__ == "__main__":
    main()
