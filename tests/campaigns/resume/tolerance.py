"""How far a model at level `batches` is from that of one rank: 1,000 steps over several numbers of ranks."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from elastic_agent.worker.run import Run
from elastic_agent.worker.schedule import Every

from . import real

STEPS, BATCH, RANKS = 1000, 30, (2, 3, 4, 7)
GOAL = 1e-6


def main() -> bool:
    """Prints the distances. Returns whether one is too large."""
    # What optimizers import at their first step: once, and not in each rank that is forked.
    import torch._dynamo  # noqa: F401

    found = {ranks: distance(ranks) for ranks in RANKS}
    distances = ", ".join(f"{value:.1e} at {ranks} ranks" for ranks, value in found.items())
    worst = max(found.values())
    sys.stdout.write(
        f"level batches, {STEPS} steps of {BATCH} samples, relative distance to one rank: {distances}; "
        f"the goal is {GOAL:g}\n"
    )
    return worst > GOAL


def distance(ranks: int, steps: int = STEPS) -> float:
    """The distance of the parameters to those of one rank, relative to their norm."""
    with tempfile.TemporaryDirectory() as directory:
        alone, together = (_trained(Path(directory) / str(world), world, steps) for world in (1, ranks))
    return float((alone - together).norm() / alone.norm())


def _trained(directory: Path, ranks: int, steps: int) -> torch.Tensor:
    directory.mkdir()
    real.live(f"{ranks} ranks", 0, ranks, directory, lambda rank, _: _train(directory, rank, ranks, steps))
    return torch.as_tensor(torch.load(directory / "parameters.pt", weights_only=True))


def _train(directory: Path, rank: int, ranks: int, steps: int) -> None:
    torch.manual_seed(1)
    plain = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    x = torch.randn(10 * BATCH + 7, 8)
    data = TensorDataset(x, torch.sin(x.sum(1, keepdim=True)))
    net = DistributedDataParallel(plain) if ranks > 1 else plain
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    run = Run(directory / "checkpoints", every=Every(seconds=None), model=net, optimizer=optimizer)
    loader = run.loader(DataLoader(data, batch_size=4, shuffle=True), global_batch=BATCH)
    for features, wanted in run.batches(loader, steps=steps):
        optimizer.zero_grad()
        (nn.functional.mse_loss(net(features), wanted) * loader.weight).backward()
        optimizer.step()
        run.step()
    if rank == 0:
        flat = torch.cat([parameter.detach().flatten() for parameter in plain.parameters()])
        torch.save(flat, directory / "parameters.pt")
