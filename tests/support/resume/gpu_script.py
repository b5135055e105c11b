"""A training on one GPU, with what such trainings use: mixed precision, dropout, BatchNorm, pinned batches, a fused
optimizer. MODE is plain, nccl or bits; KILL a step behind which the process kills itself. Prints the digest.

At level bits several ranks share the GPU, over gloo.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from elastic_agent.worker import Every, Run

MODE = os.environ["MODE"]
KILL = int(os.environ.get("KILL", "0"))


class Images(Dataset):  # type: ignore[type-arg]
    """Drawn anew at each look."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.randn(3, 8, 8) + index / 96, index % 4


def model() -> torch.nn.Module:
    torch.manual_seed(3)
    first = torch.nn.Conv2d(3, 8, 3)
    first.weight.data = first.weight.data.contiguous(memory_format=torch.channels_last)
    layers = torch.nn.Sequential(
        first,
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.3),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 36, 4),
    )
    return layers.cuda()


def main() -> None:
    torch.use_deterministic_algorithms(True)
    torch.cuda.set_device(0)
    if MODE == "nccl":
        dist.init_process_group("nccl", init_method=f"file://{os.environ['STORE']}", rank=0, world_size=1)
    elif int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
    net: Any = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=100)
    scaler = torch.amp.GradScaler("cuda", enabled=MODE != "bits")
    shards = 4 if MODE == "bits" else None
    # DistributedDataParallel sums gradients itself, which level bits does.
    trained = DistributedDataParallel(net) if MODE == "nccl" else net
    run = Run(
        os.environ["CHECKPOINTS"], every=Every(steps=2), shards=shards,
        model=net, optimizer=optimizer, schedule=schedule, scaler=scaler,
    )  # fmt: skip
    data = DataLoader(
        Images(), batch_size=4, shuffle=True, num_workers=int(os.environ.get("PROCESSES", "2")), pin_memory=True
    )
    loader = run.loader(data, global_batch=16)

    def backward(part: Any, reduction: str, weight: float) -> None:
        x, y = (each.cuda(non_blocking=True) for each in part)
        with torch.autocast("cuda", torch.float16, enabled=MODE != "bits"):
            loss = torch.nn.functional.cross_entropy(trained(x), y, reduction=reduction) * weight
        scaler.scale(loss).backward()

    for _ in run.epochs(4):
        for batch in loader:
            optimizer.zero_grad()
            if MODE == "bits":
                for part in run.shards(batch):
                    backward(part, "sum", 1.0)
            else:
                backward(batch, "mean", loader.weight)
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            run.step()
            if run.steps == KILL and run.rank == run.world_size - 1:
                os.kill(os.getpid(), signal.SIGKILL)
    digest = run.digest()
    if run.rank == 0:
        print(f"digest {run.steps} {digest}")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
