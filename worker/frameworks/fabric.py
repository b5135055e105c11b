"""Lightning Fabric, in one line: `fabric = exact(Fabric(...), "checkpoints")`, and a loop as it was.

`setup_dataloaders` gives loaders of this library; the newest checkpoint has been loaded once model, optimizer and
loaders are set up. `for epoch in fabric.exact.epochs(10)` begins with the interrupted epoch; with `range(10)`, loops
over epochs that were over give nothing.
"""

from __future__ import annotations

import os
from typing import Any

from ..schedule import Every
from .script_loops import Prepared, Unwrapped


def exact(
    fabric: Any,
    directory: str | os.PathLike[str] | None = None,
    *,
    seed: int = 0,
    every: Every | None = None,
    **states: Any,
) -> Any:
    """The Fabric object, whose `setup`, `setup_dataloaders` and `backward` now keep the place of the run.

    directory: of the checkpoints (default: that of --exact-resume). every: when to save (default: what the switch's
    variable says). states: what Fabric does not set up, schedules for example, as for `Run`. `fabric.exact` has `run`,
    `epochs` and `close`.

    Raises Misused where no directory is known.
    """
    prepared = fabric.exact = Prepared(directory, seed, every, states)
    setup, backward = fabric.setup, fabric.backward

    def setting_up(module: Any, *optimizers: Any, **options: Any) -> Any:
        made = setup(module, *optimizers, **options)
        prepared.add("model", Unwrapped(lambda: module))
        for optimizer in made[1:] if isinstance(made, tuple) else ():
            prepared.add("optimizer", optimizer)
            _commit_with(optimizer, prepared)
        prepared.ready()
        return made

    def setup_dataloaders(*loaders: Any, use_distributed_sampler: bool = True, move_to_device: bool = True) -> Any:
        made = [prepared.place(loader, fabric.to_device if move_to_device else _as_it_is) for loader in loaders]
        prepared.ready()
        return made[0] if len(made) == 1 else made

    def weighted(tensor: Any, *args: Any, **options: Any) -> None:
        backward(tensor if prepared.weight == 1.0 else tensor * prepared.weight, *args, **options)

    fabric.setup, fabric.setup_dataloaders, fabric.backward = setting_up, setup_dataloaders, weighted
    return fabric


def _commit_with(optimizer: Any, prepared: Prepared) -> None:
    step = optimizer.step

    def stepping(*args: Any, **options: Any) -> Any:
        done = step(*args, **options)
        prepared.stepped()
        return done

    optimizer.step = stepping


def _as_it_is(batch: Any) -> Any:
    return batch
