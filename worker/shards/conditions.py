"""What the bits of a model depend on besides the training script, and may change between two starts of a run."""

from __future__ import annotations

import logging
from typing import Any

from ..checkpoints.manifest import Manifest, surroundings
from ..errors import WrongState
from ..loop.log import RunLog
from ..world import World

KEEP = {
    "torch": "install torch {0}",
    "threads": "say torch.set_num_threads({0}) before Run(...), or set OMP_NUM_THREADS={0}",
    "cpu": "train on CPUs with {0}, or set ATEN_CPU_CAPABILITY where the CPU can do more",
    "device": "train on {0}",
}
"""Of each condition: what makes it so again."""


def accept(manifest: Manifest, shards: int | None, where: str, log: logging.Logger | RunLog) -> None:
    """Whether the run may go on from this checkpoint as it is started now. where: how messages name the checkpoint.

    A changed condition is said in the log, and at level `bits` raises WrongState.
    """
    before = manifest.run.get("shards")
    if shards is not None and before != shards:
        made = "without shards" if before is None else f"with shards={before}"
        raise WrongState(
            f"{where} was made {made}, and Run(..., shards={shards}) computes other bits: go on as it was made, or "
            "begin in another directory"
        )
    if before is not None and shards is None:
        log.warning("%s was made with shards=%d: without them the level is no longer bits", where, before)
    now = surroundings()
    for what, value in _changes(manifest.made_by, now):
        if shards is not None:
            raise WrongState(
                f"{where} was made with {what} {value}, and here {what} is {now[what]}: level bits promises the same "
                f"bits only as long as that stays; {KEEP[what].format(value)}, or begin in another directory"
            )
        log.warning("%s was made with %s %s, and here %s is %s: bits may differ", where, what, value, what, now[what])


def same_everywhere(world: World) -> None:
    """Collective, at level `bits`. Raises WrongState where two ranks would compute other bits from the same numbers."""
    found = world.gather({what: surroundings()[what] for what in KEEP})
    for rank, conditions in enumerate(found):
        for what, value in _changes(found[0], conditions):
            raise WrongState(
                f"level bits: {what} is {value} on rank 0 and {conditions[what]} on rank {rank}: on all ranks, "
                f"{KEEP[what].format(value)}; or leave out shards"
            )


def _changes(before: dict[str, Any], now: dict[str, Any]) -> list[tuple[str, Any]]:
    """The conditions that are others now, each with its value before."""
    return [(what, before[what]) for what in KEEP if what in before and before[what] != now[what]]
