"""Learn to read handwritten digits on several workers: a plain PyTorch loop that loses nothing when it is killed.

    elastic-agent --standalone --nproc-per-node 2 examples/digits/train.py

`Run` is the part of elastic-agent that a script uses: it loads the newest checkpoint that verifies, and the loader goes
on with the next batch, also with another number of workers. The last line says what its ledger proves.
Try `--max-restarts 1 ... --crash-at-epoch 4`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from elastic_agent.worker import Every, Run

WANTED_ACCURACY = 0.95
SEED = 1797


def load_data() -> tuple[TensorDataset, Tensor, Tensor]:
    """The 1797 8x8 images that come with scikit-learn: a training set, and 360 test images with their labels."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(SEED))
    x = torch.tensor(images, dtype=torch.float32)[order] / 16
    y = torch.tensor(labels)[order]
    return TensorDataset(x[360:], y[360:]), x[:360], y[:360]


def crash_once(folder: Path) -> None:
    """Raise an exception, unless a worker has done so before."""
    marker = folder / "crashed"
    if not marker.exists():
        marker.touch()
        raise RuntimeError("crashing once, as --crash-at-epoch asked")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--checkpoint-dir", type=Path, default=Path("digits-checkpoints"))
    parser.add_argument("--crash-at-epoch", type=int, metavar="N", help="the last rank fails in epoch N, once")
    parser.add_argument("--epoch-seconds", type=float, default=0.0, metavar="S", help="let an epoch last at least S")
    parser.add_argument("--leak", type=float, default=0.0, metavar="MB", help="keep so much memory more with each step")
    return parser.parse_args()


@record  # if this worker fails, the launcher's summary shows why
def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)  # several workers share this host's cores
    torch.manual_seed(SEED)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    train_set, test_x, test_y = load_data()
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    run = Run(arguments.checkpoint_dir, seed=SEED, every=Every(steps=10), model=net, optimizer=optimizer)
    batches = run.loader(DataLoader(train_set, batch_size=64, shuffle=True), global_batch=64)
    model = DistributedDataParallel(net)
    if rank == 0 and run.steps:
        print(f"resuming at step {run.steps}, in epoch {run.epoch + 1}", flush=True)

    leaked = []
    for epoch in run.epochs(arguments.epochs):
        ends_at = time.monotonic() + arguments.epoch_seconds
        for x, y in batches:
            if (
                epoch + 1 == arguments.crash_at_epoch
                and batches.position > len(train_set) // 2
                and rank == world_size - 1
            ):
                crash_once(arguments.checkpoint_dir)
            optimizer.zero_grad()
            (nn.functional.cross_entropy(model(x), y) * batches.weight).backward()
            optimizer.step()
            run.step()
            leaked.append(b"x" * int(arguments.leak * 1e6))
        time.sleep(max(0.0, ends_at - time.monotonic()))
        if rank == 0:
            print(f"epoch {epoch + 1}: test accuracy {accuracy(net, test_x, test_y):.1%}", flush=True)

    reached = accuracy(net, test_x, test_y)  # the same on every worker
    faults = run.ledger.faults() + run.ledger.left()
    dist.destroy_process_group()
    if run.stopping:
        if rank == 0:
            print(f"stopped at step {run.steps}, in epoch {run.epoch + 1}; its checkpoint is kept", flush=True)
        return  # as somebody asked: what follows is about a training that is done
    if reached < WANTED_ACCURACY:
        raise RuntimeError(f"test accuracy {reached:.1%} after {arguments.epochs} epochs, wanted {WANTED_ACCURACY:.0%}")
    if rank == 0:
        samples = "every sample of every epoch exactly once" if not faults else "; ".join(faults)
        print(
            f"trained {arguments.epochs} epochs on {world_size} workers, {samples}: test accuracy {reached:.1%}",
            flush=True,
        )


@torch.no_grad()
def accuracy(net: nn.Module, x: Tensor, y: Tensor) -> float:
    """Share of the images that the network reads correctly."""
    return float((net(x).argmax(dim=1) == y).float().mean())


if __name__ == "__main__":
    main()
