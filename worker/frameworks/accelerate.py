"""accelerate, in one line: `accelerator = exact(Accelerator(), "checkpoints")`, and a loop as it was.

`prepare` gives loaders of this library, and has loaded the newest checkpoint on return; an optimizer step commits the
batches before it. `for epoch in accelerator.exact.epochs(10)` begins with the interrupted epoch; with `range(10)`,
loops over epochs that were over give nothing.
"""

from __future__ import annotations

import os
from typing import Any

from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ..schedule import Every
from .script_loops import Placed, Prepared, Unwrapped


def exact(
    accelerator: Any,
    directory: str | os.PathLike[str] | None = None,
    *,
    seed: int = 0,
    every: Every | None = None,
    **states: Any,
) -> Any:
    """The accelerator, whose `prepare`, `backward` and `end_training` now keep the place of the run.

    directory: of the checkpoints (default: that of --exact-resume). every: when to save (default: what the switch's
    variable says). states: what is not given to `prepare`, as for `Run`. The prepared things are kept under
    `accelerator.exact`, which has `run`, `epochs` and `close`.

    Raises Misused where no directory is known.
    """
    prepared = accelerator.exact = Prepared(directory, seed, every, states)
    theirs, backward, end_training = accelerator.prepare, accelerator.backward, accelerator.end_training

    def prepare(*things: Any, **options: Any) -> Any:
        others = [thing for thing in things if not isinstance(thing, DataLoader)]
        made = iter(_tuple(theirs(*others, **options)) if others else ())
        found = [_placed(accelerator, thing) if isinstance(thing, DataLoader) else next(made) for thing in things]
        for given, thing in zip(things, found, strict=True):
            _keep(accelerator, given, thing)
        prepared.ready()
        return found[0] if len(found) == 1 else tuple(found)

    def weighted(loss: Any, **options: Any) -> None:
        backward(loss if prepared.weight == 1.0 else loss * prepared.weight, **options)

    def end() -> None:
        prepared.close()
        end_training()

    accelerator.prepare, accelerator.backward, accelerator.end_training = prepare, weighted, end
    return accelerator


def _placed(accelerator: Any, loader: DataLoader[Any]) -> Placed:
    from accelerate.utils import send_to_device  # type: ignore[import-not-found, unused-ignore]

    placed: Placed = accelerator.exact.place(loader, lambda batch: send_to_device(batch, accelerator.device))
    state = accelerator.gradient_state
    placed.begins, placed.ends = state._add_dataloader, state._remove_dataloader
    return placed


def _keep(accelerator: Any, given: Any, thing: Any) -> None:
    prepared = accelerator.exact
    if isinstance(given, Optimizer):
        prepared.add("optimizer", thing)
        step = thing.step

        def stepping(*args: Any, **options: Any) -> Any:
            done = step(*args, **options)
            if accelerator.sync_gradients:
                prepared.stepped()
            return done

        thing.step = stepping
    elif hasattr(given, "parameters"):
        prepared.add("model", Unwrapped(lambda: accelerator.unwrap_model(thing)))
    elif hasattr(thing, "state_dict") and not isinstance(thing, Placed):
        prepared.add("schedule", thing)


def _tuple(made: Any) -> tuple[Any, ...]:
    return made if isinstance(made, tuple) else (made,)
