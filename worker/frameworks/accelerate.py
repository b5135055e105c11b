"""accelerate, in one line: `accelerator = exact(Accelerator(), "checkpoints")`, and a loop as it was.

`prepare` gives loaders of this library, and has loaded the newest checkpoint on return; an optimizer step commits the
batches before it. `for epoch in accelerator.exact.epochs(10)` begins with the interrupted epoch; with `range(10)`,
loops over epochs that were over give nothing.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ..errors import Misused
from ..schedule import Every
from .script_loops import Placed, Prepared, Unwrapped, call_after, itself, split_batch

_KINDS = ("model", "optimizer", "scheduler", "data_loader")
"""Of what the methods `prepare_...` are given; it is also the name of their first argument."""


def exact(
    accelerator: Any,
    directory: str | os.PathLike[str] | None = None,
    *,
    seed: int = 0,
    every: Every | None = None,
    **states: Any,
) -> Any:
    """The accelerator, whose `prepare`, `prepare_model` and its like, `backward` and `end_training` now keep the place
    of the run. Its `gather_for_metrics` gives each sample once, though the ranks' parts of a last batch may differ.

    directory: of the checkpoints (default: that of --exact-resume). every: when to save (default: what the switch's
    variable says). states: what is not given to `prepare`, as for `Run`. The prepared things are kept under
    `accelerator.exact`, which has `run`, `epochs` and `close`.

    Raises Misused where no directory is known; what is prepared raises NotResumable where it cannot be kept.
    """
    prepared = accelerator.exact = Prepared(directory, seed, every, states)
    accelerator.gather_for_metrics = functools.partial(_gather, accelerator, accelerator.gather_for_metrics)
    backward, end_training = accelerator.backward, accelerator.end_training
    _take_what_is_prepared(accelerator)

    def register(*things: Any) -> None:
        for thing in things:
            prepared.add("registered", thing)
        registered(*things)

    def weighted(loss: Any, **options: Any) -> None:
        backward(loss if prepared.weight == 1.0 else loss * prepared.weight, **options)

    def end() -> None:
        prepared.close()
        end_training()

    accelerator.load_state = functools.partial(_load_state, accelerator, accelerator.load_state)
    registered, accelerator.register_for_checkpointing = accelerator.register_for_checkpointing, register
    accelerator.skip_first_batches = functools.partial(_skip_first_batches, accelerator.skip_first_batches)
    accelerator.backward, accelerator.end_training = weighted, end
    return accelerator


def _take_what_is_prepared(accelerator: Any) -> None:
    """What `prepare` is given, which calls the methods for each kind of thing, and what these are given by a script."""
    inside = False
    taken: list[Any] = []

    def theirs_alone(method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        nonlocal inside
        before, inside = inside, True
        try:
            return method(*args, **options)
        finally:
            inside = before

    def take(given: Any, thing: Any) -> None:
        if not any(each is thing or each is given for each in taken):  # some scripts prepare one twice
            taken.append(thing)
            _keep(accelerator, given, thing)

    def taking_all(*things: Any, **options: Any) -> Any:
        others = [thing for thing in things if not isinstance(thing, DataLoader)]
        made = iter(_tuple(theirs_alone(prepare, *others, **options)) if others else ())
        found = [_placed(accelerator, thing) if isinstance(thing, DataLoader) else next(made) for thing in things]
        for given, thing in zip(things, found, strict=True):
            take(given, thing)
        accelerator.exact.ready()
        return found[0] if len(found) == 1 else tuple(found)

    def taking(method: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def preparing(*args: Any, **options: Any) -> Any:
            if inside:
                return method(*args, **options)
            given = args[0] if args else options[kind]
            if isinstance(given, DataLoader):
                return taking_all(given)
            thing = theirs_alone(method, *args, **options)
            if not options.get("evaluation_mode"):  # of a model that nobody trains
                take(given, thing)
                accelerator.exact.ready()
            return thing

        return preparing

    prepare, accelerator.prepare = accelerator.prepare, taking_all
    for kind in _KINDS:
        setattr(accelerator, f"prepare_{kind}", taking(getattr(accelerator, f"prepare_{kind}"), kind))


def _placed(accelerator: Any, loader: DataLoader[Any]) -> Placed:
    from accelerate.utils import send_to_device  # type: ignore[import-not-found, unused-ignore]

    whole = split_batch(loader) if accelerator.split_batches else None
    placed: Placed = accelerator.exact.place(loader, lambda batch: send_to_device(batch, accelerator.device), whole)
    state = accelerator.gradient_state
    placed.begins, placed.ends = state._add_dataloader, state._remove_dataloader
    return placed


def _keep(accelerator: Any, given: Any, thing: Any) -> None:
    prepared = accelerator.exact
    if isinstance(given, Optimizer):
        prepared.add("optimizer", thing)
        call_after(thing, "step", lambda: prepared.stepped() if accelerator.sync_gradients else None)
    elif hasattr(given, "parameters"):
        prepared.add("model", Unwrapped(lambda: accelerator.unwrap_model(thing)))
    elif hasattr(thing, "state_dict") and not isinstance(thing, Placed):
        prepared.add("schedule", thing)
        _step_as_at_first(accelerator, thing)


def _skip_first_batches(theirs: Callable[..., Any], dataloader: Any, num_batches: int = 0) -> Any:
    if isinstance(dataloader, Placed):
        raise Misused(
            "skip_first_batches: a loader of exact(...) begins after its last batch by itself; loop over it as it is"
        )
    return theirs(dataloader, num_batches)


def _load_state(accelerator: Any, theirs: Callable[..., Any], input_dir: Any = None, **options: Any) -> None:
    if accelerator.exact.run.loads("load_state", input_dir):
        theirs(input_dir, **options)


def _step_as_at_first(accelerator: Any, schedule: Any) -> None:
    """accelerate steps a schedule once for each rank (1.15.0, `AcceleratedScheduler.step`), as a batch over all ranks
    is so many batches of the script's. Batches stay those of the first start when the number of ranks changes."""
    if getattr(schedule, "split_batches", True) or not schedule.step_with_optimizer:
        return
    step, inner = schedule.step, schedule.scheduler
    schedule.split_batches = True  # once a call

    def stepping(*args: Any, **options: Any) -> None:
        for _ in range(accelerator.exact.run.first_ranks if accelerator.sync_gradients else 1):
            # OneCycleLR fails behind its last step, which the last batch of an epoch would make it go to.
            if not hasattr(inner, "total_steps") or inner._step_count <= inner.total_steps:
                step(*args, **options)

    schedule.step = stepping


def _gather(accelerator: Any, theirs: Callable[..., Any], data: Any, use_gather_object: bool = False) -> Any:
    """In the place of `gather_for_metrics`. accelerate's loaders repeat samples until all ranks have as many, and it
    drops these behind the gathering; ours repeat none, and a rank without a sample has another one's in its place."""
    from accelerate.utils import recursively_apply  # type: ignore[import-not-found, unused-ignore]

    placed = accelerator.gradient_state.active_dataloader
    if not isinstance(placed, Placed) or accelerator.num_processes == 1:
        return theirs(data, use_gather_object)
    empty = placed.exact.weight == 0.0
    if not use_gather_object:
        try:
            recursively_apply(itself, data, error_on_other_type=True)
        except TypeError:
            use_gather_object = True
    if use_gather_object:  # lists of any length
        return theirs(data[:0] if empty else data, True)
    return recursively_apply(functools.partial(_gathered, accelerator, empty), data)


def _gathered(accelerator: Any, empty: bool, tensor: torch.Tensor) -> torch.Tensor:
    """The rows of all ranks, in the order of the ranks."""
    rows = tensor.reshape(1) if tensor.dim() == 0 else tensor
    count = 0 if empty else len(rows)
    counts = accelerator.gather(torch.tensor([count], device=accelerator.device)).tolist()
    padded = rows.new_zeros(max(counts), *rows.shape[1:])
    padded[:count] = rows[:count]
    parts = accelerator.gather(padded).split(max(counts))
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


def _tuple(made: Any) -> tuple[Any, ...]:
    return made if isinstance(made, tuple) else (made,)
