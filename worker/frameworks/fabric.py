"""Lightning Fabric, in one line: `fabric = exact(Fabric(...), "checkpoints")`, and a loop as it was.

`setup_dataloaders` gives loaders of this library; the newest checkpoint has been loaded once model, optimizer and
loaders are set up. `for epoch in fabric.exact.epochs(10)` begins with the interrupted epoch; with `range(10)`, loops
over epochs that were over give nothing.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from torch.nn import Module
from torch.optim import Optimizer

from ..schedule import Every
from .script_loops import Prepared, Unwrapped, call_after, itself


def exact(
    fabric: Any,
    directory: str | os.PathLike[str] | None = None,
    *,
    seed: int = 0,
    every: Every | None = None,
    **states: Any,
) -> Any:
    """The Fabric object, whose `setup`, `setup_module`, `setup_optimizers`, `setup_dataloaders` and `backward` now keep
    the place of the run.

    directory: of the checkpoints (default: that of --exact-resume). every: when to save (default: what the switch's
    variable says). states: what Fabric does not set up, schedules for example, as for `Run`. `fabric.exact` has `run`,
    `epochs` and `close`.

    Raises Misused where no directory is known.
    """
    prepared = fabric.exact = Prepared(directory, seed, every, states)
    backward = fabric.backward

    def keeping(setup: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(setup)
        def setting_up(*things: Any, **options: Any) -> Any:
            made = setup(*things, **options)
            for module in (*things, options.get("module")):
                if isinstance(module, Module):
                    prepared.add("model", Unwrapped(functools.partial(itself, module)))
            for thing in made if isinstance(made, tuple) else (made,):
                _keep(prepared, thing)
            prepared.ready()
            return made

        return setting_up

    def setup_dataloaders(*loaders: Any, use_distributed_sampler: bool = True, move_to_device: bool = True) -> Any:
        made = [prepared.place(loader, fabric.to_device if move_to_device else itself) for loader in loaders]
        prepared.ready()
        return made[0] if len(made) == 1 else made

    def weighted(tensor: Any, *args: Any, **options: Any) -> None:
        backward(tensor if prepared.weight == 1.0 else tensor * prepared.weight, *args, **options)

    fabric.setup, fabric.setup_module = keeping(fabric.setup), keeping(fabric.setup_module)
    fabric.setup_optimizers = keeping(fabric.setup_optimizers)
    fabric.setup_dataloaders, fabric.backward = setup_dataloaders, weighted
    fabric.load = functools.partial(_load, prepared, fabric.load)
    fabric.load_raw = functools.partial(_load_raw, prepared, fabric.load_raw)
    return fabric


def _load(prepared: Prepared, theirs: Callable[..., Any], path: Any, state: Any = None, **options: Any) -> Any:
    """As Fabric's. Where that is left out, the plain values of `state` are those of the file all the same."""
    if not state or prepared.run.loads("load", path):
        return theirs(path, state, **options)
    held = theirs(path, **options)
    state.update({name: held[name] for name, thing in state.items() if not hasattr(thing, "load_state_dict")})
    return {name: value for name, value in held.items() if name not in state}


def _load_raw(prepared: Prepared, theirs: Callable[..., None], path: Any, *args: Any, **options: Any) -> None:
    if prepared.loads("load_raw", path):
        theirs(path, *args, **options)


def _keep(prepared: Prepared, thing: Any) -> None:
    """An optimizer, or a schedule; the module is kept as the script gave it."""
    if isinstance(thing, Optimizer):
        prepared.add("optimizer", thing)
        call_after(thing, "step", prepared.stepped)
    elif not isinstance(thing, Module):
        prepared.add("schedule", thing)
