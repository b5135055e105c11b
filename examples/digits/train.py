"""Learn to read handwritten digits on several workers: an ordinary PyTorch script, which uses nothing of elastic-agent.

    elastic-agent --standalone --nproc-per-node 2 examples/digits/train.py

It survives restarts as every elastic script should: it writes a checkpoint after each epoch, and starts from the last
one. All workers must see the same --checkpoint-dir. Try `--max-restarts 1 ... --crash-at-epoch 4`.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

WANTED_ACCURACY = 0.95
SEED = 1797


def load_data() -> tuple[TensorDataset, Tensor, Tensor]:
    """The 1797 8x8 images that come with scikit-learn: a training set, and 360 test images with their labels."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(SEED))
    x = torch.tensor(images, dtype=torch.float32)[order] / 16
    y = torch.tensor(labels)[order]
    return TensorDataset(x[360:], y[360:]), x[:360], y[:360]


def save_checkpoint(path: Path, epoch: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write a checkpoint atomically: after a crash at any time there is the whole old one or the whole new one."""
    unfinished = path.with_suffix(".tmp")
    with unfinished.open("wb") as file:
        torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)  # the new name, too, must survive a crash of the host
    os.close(folder)


def load_checkpoint(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Restore model and optimizer from the last checkpoint, if there is one; return how many epochs are done."""
    if not path.exists():
        return 0
    checkpoint = torch.load(path, weights_only=True)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    return int(checkpoint["epoch"])


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
    return parser.parse_args()


@record  # if this worker fails, the launcher's summary shows why
def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)  # several workers share this host's cores
    torch.manual_seed(SEED)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    train_set, test_x, test_y = load_data()
    sampler: DistributedSampler[int] = DistributedSampler(train_set, seed=SEED)
    batches = DataLoader(train_set, batch_size=64 // world_size or 1, sampler=sampler)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    arguments.checkpoint_dir.mkdir(parents=True, exist_ok=True)
    checkpoint = arguments.checkpoint_dir / "last.pt"
    done = load_checkpoint(checkpoint, net, optimizer)
    model = DistributedDataParallel(net)
    if rank == 0 and done:
        print(f"resuming from epoch {done}", flush=True)

    for epoch in range(done + 1, arguments.epochs + 1):
        ends_at = time.monotonic() + arguments.epoch_seconds
        if epoch == arguments.crash_at_epoch and rank == world_size - 1:
            crash_once(arguments.checkpoint_dir)
        sampler.set_epoch(epoch)  # a new order each epoch, the same after a restart
        for x, y in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        time.sleep(max(0.0, ends_at - time.monotonic()))
        if rank == 0:
            save_checkpoint(checkpoint, epoch, net, optimizer)
            print(f"epoch {epoch}: test accuracy {accuracy(net, test_x, test_y):.1%}", flush=True)
        dist.barrier()  # all workers wait until this epoch is on disk

    reached = accuracy(net, test_x, test_y)  # the same on every worker
    dist.destroy_process_group()
    if reached < WANTED_ACCURACY:
        raise RuntimeError(f"test accuracy {reached:.1%} after {arguments.epochs} epochs, wanted {WANTED_ACCURACY:.0%}")
    if rank == 0:
        print(f"trained {arguments.epochs} epochs on {world_size} workers: test accuracy {reached:.1%}", flush=True)


@torch.no_grad()
def accuracy(net: nn.Module, x: Tensor, y: Tensor) -> float:
    """Share of the images that the network reads correctly."""
    return float((net(x).argmax(dim=1) == y).float().mean())


if __name__ == "__main__":
    main()
