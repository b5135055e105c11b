"""What the sums at level `bits` take beside an all_reduce of the same size, in turns, over gloo."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

from elastic_agent.worker.shards.exchange import Exchange
from elastic_agent.worker.shards.fold import Fold
from elastic_agent.worker.shards.tree import Tree

from . import real

SHARDS, RANKS, NUMBERS, TURNS = 8, (2, 4, 8), 1_000_000, 100
GOAL = 1.3


def main() -> bool:
    """Prints the ratios. Returns whether one is too large."""
    worst = 0.0
    for ranks in RANKS:
        reduce_s, fold_s = (statistics.median(taken) for taken in times(ranks))
        worst = max(worst, fold_s / reduce_s)
        sys.stdout.write(
            f"sum of {SHARDS} shards of {NUMBERS:.0e} numbers over {ranks} ranks: {1e3 * fold_s:.1f} ms, all_reduce "
            f"{1e3 * reduce_s:.1f} ms, ratio {fold_s / reduce_s:.2f} (medians of {TURNS}, in turns); at most {GOAL}\n"
        )
    return worst > GOAL


def times(ranks: int, numbers: int = NUMBERS, turns: int = TURNS) -> tuple[list[float], list[float]]:
    """Seconds that rank 0 takes for each all_reduce with its division, and for each exchange."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        real.live(f"{ranks} ranks", 0, ranks, path, lambda rank, _: _measure(path, rank, ranks, numbers, turns))
        reduced, folded = json.loads((path / "times.json").read_text())
    return reduced, folded


def _measure(directory: Path, rank: int, ranks: int, numbers: int, turns: int) -> None:
    tree = Tree(SHARDS, ranks)
    fold = Fold(numbers, torch.float32, torch.device("cpu"), tree, Exchange(rank, ranks, lambda: None))
    vector = torch.randn(numbers)

    def fill(flat: torch.Tensor, add: bool) -> None:
        (flat[:numbers].add_ if add else flat[:numbers].copy_)(vector)

    taken: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns + 2):
        other = vector.clone()
        dist.barrier()
        began_s = time.perf_counter()
        dist.all_reduce(other)
        other.div_(SHARDS)
        reduced_s = time.perf_counter() - began_s
        fold.begin()
        for shard in tree.shards[rank].shards():
            fold.add(shard, fill)
        dist.barrier()
        began_s = time.perf_counter()
        fold.start()
        fold.finish(SHARDS)
        if turn >= 2:  # the first ones make buffers and connections
            taken[0].append(reduced_s)
            taken[1].append(time.perf_counter() - began_s)
    if rank == 0:
        (directory / "times.json").write_text(json.dumps(taken))
