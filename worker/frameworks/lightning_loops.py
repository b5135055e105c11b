"""Where Lightning's loops are, written so that they can be entered there again.

A checkpoint is taken just before a batch is used, when Lightning has counted it as begun. What is written says that it
has not, for training and for validation alike; and Lightning's own ways of restarting, which repeat or skip what stands
between the last batch and the next, are not taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By the bytes of a number."""


def rewind(checkpoint: dict[str, Any], validating: bool) -> None:
    """Takes the batch that is just beginning back out of the counts of a dumped checkpoint."""
    loops = checkpoint["loops"]["fit_loop"]
    loops["state_dict"].pop("combined_loader", None)
    progress = loops["epoch_loop.val_loop.batch_progress" if validating else "epoch_loop.batch_progress"]
    for counts in (progress["total"], progress["current"]):
        for name in ("ready", "started", "processed"):
            counts[name] = counts["completed"]
    progress["is_last_batch"] = False


def load_data(trainer: Any, kind: str, run: Any, kept: dict[str, int]) -> None:
    """Lets a loop ask the script for its loaders where it is to do so now. What the script draws for them follows from
    the epoch. A start within a later epoch than that of the last time asks as of that one, and the next time is when it
    would have been.

    kind: "train" or "val". run: None: this `fit` has none. kept: as `loaded`, of the checkpoint; what is done is taken
    out.
    """
    fit = trainer.fit_loop
    loop, progress = fit if kind == "train" else fit.epoch_loop.val_loop, fit.epoch_progress.current
    now = before = progress.completed
    if kind in kept:
        before = kept.pop(kind)
        setattr(loop, f"_last_{kind}_dl_reload_epoch", before)
    is_due = getattr(loop, f"_should_reload_{kind}_dl")
    if loop._combined_loader is not None and not is_due:
        type(loop).setup_data(loop)
        return
    progress.completed = now if is_due else before
    try:
        if run is not None:
            run.key_loaders(kind, progress.completed)
        type(loop).setup_data(loop)
    finally:
        progress.completed = now


def loaded(trainer: Any) -> dict[str, int]:
    """The epochs in which loops asked for their loaders last."""
    fit = trainer.fit_loop
    asked = {"train": fit._last_train_dl_reload_epoch, "val": fit.epoch_loop.val_loop._last_val_dl_reload_epoch}
    return {kind: epoch for kind, epoch in asked.items() if epoch != float("-inf")}


def weight_of_batches(run: Any) -> float:
    """Of this rank's part of the training batch in hand, of the first loader's where several give it one. Says where
    the others' weigh otherwise."""
    weights = [
        each.weight
        for name, each in run.loaders.items()
        if name.startswith("train") and (name == "train0" or run.account.cursors[name].held)
    ]
    if len(set(weights)) > 1:
        run.log.warning_once(
            "the parts that ranks have of the batches of several loaders differ otherwise for each, and the loss is "
            "weighed by that of the first loader's: another number of ranks would train another model; let the ranks "
            "divide all batches, the last ones included (drop_last=True)"
        )
    return float(weights[0]) if weights else 1.0


def trained(checkpoint: dict[str, Any]) -> bool:
    """Whether the epoch's training was over: the validation of a dumped checkpoint is behind its last batch."""
    return bool(checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["is_last_batch"])


def began(trainer: Any) -> bool:
    """Whether a batch has been trained on, so that all callbacks have what their states are made of."""
    return bool(trainer.fit_loop.epoch_loop.batch_progress.total.completed)


def within_an_epoch(trainer: Any) -> bool:
    """Whether the training epoch that is about to begin has some of its batches behind it."""
    loop = trainer.fit_loop.epoch_loop
    return bool(loop.batch_progress.current.completed and not loop.batch_progress.is_last_batch)


def between_updates(trainer: Any) -> bool:
    """Whether no gradients are kept from the last batch for the next."""
    loop = trainer.fit_loop.epoch_loop
    done, every = loop.batch_progress.current.completed, trainer.accumulate_grad_batches
    return bool(done % every == 0 or (trainer.validating and loop._num_ready_batches_reached()))


def can_enter_validation(trainer: Any) -> bool:
    """Whether a validation that is going on could be entered where it is: its loaders come one after the other, their
    lengths are known, and the training after it goes on."""
    loop = trainer.fit_loop.epoch_loop
    steps, most = loop.global_step, trainer.max_steps
    ends = most != -1 and steps >= most
    lengths = all(batches != float("inf") for batches in loop.val_loop._max_batches)
    return bool(loop.val_loop._is_sequential and lengths and not ends)


_SEARCHES = {"LearningRateFinder", "BatchSizeFinder"}
"""Lightning's callbacks that train for some batches as `fit` begins, and take that back."""


def _searches(trainer: Any) -> list[Any]:
    return [each for each in trainer.callbacks if _SEARCHES & {kind.__name__ for kind in type(each).__mro__}]


def only_searches(trainer: Any) -> bool:
    """Whether this `fit` is the Tuner's, which ends behind its search."""
    return any(each._early_exit for each in _searches(trainer))


def is_trial(trainer: Any, hooks: Any) -> bool:
    """Whether the loop is one of a search, which is taken back: Lightning runs it without the Trainer's callbacks."""
    return hooks not in trainer.callbacks


def leave_out_searches(trainer: Any) -> None:
    """In a start that goes on from a checkpoint, which has what a search has found: a search would set the loops to
    the beginning, with the weights of the checkpoint."""
    for each in _searches(trainer):

        def skipping(*_: Any, callback: Any = each) -> None:
            del callback.on_fit_start

        each.on_fit_start = skipping


def watch_weights(trainer: Any, tell: Callable[[bool], None]) -> None:
    """Tells at the start of each validation whether a callback or the module has put other weights into the model for
    it, as averages of weights do. Those of the training may be in no checkpoint then, and to enter this validation in
    the middle would swap them once more."""
    loop = trainer.fit_loop.epoch_loop.val_loop

    def on_run_start() -> None:
        before = _sums(trainer)
        type(loop).on_run_start(loop)
        tell(_sums(trainer) != before)

    loop.on_run_start = on_run_start


def _sums(trainer: Any) -> list[int]:
    """Of the bits of each parameter; none in Lightning's check before the training."""
    if trainer.sanity_checking:
        return []
    held = [each.detach() for each in trainer.lightning_module.parameters()]
    real = [torch.view_as_real(each) if each.is_complex() else each for each in held]
    sums = [each.view(_INTEGERS[each.element_size()]).sum() for each in real]
    return [int(each) for each in torch.stack(sums).tolist()] if sums else []


def enter(trainer: Any, validating: bool, put_back: Callable[[], None], stops: bool) -> None:
    """Makes the loops begin where the counts are, when they begin. Called once Lightning has read the counts.

    put_back: called behind all hooks of the start. stops: whether the training was told to stop; a validation that is
    gone on with comes before, as Lightning validates what it stops at.
    """
    trainer.should_stop = stops and not validating
    fit, loop = trainer.fit_loop, trainer.fit_loop.epoch_loop

    def reset() -> None:
        del loop.reset
        put_back()
        # Only this loop's own mark: that of the validation is what makes it go on.
        fit._restarting = False
        loop._restarting = validating
        loop.val_loop._restarting = validating

    loop.reset = reset
    if not validating:
        return

    def advance(data_fetcher: Any) -> None:
        del loop.advance
        loop._restarting = False
        trainer.should_stop = trainer.should_stop or stops

    def should_check(data_fetcher: Any) -> bool:
        del loop._should_check_val_fx
        return True

    loop.advance, loop._should_check_val_fx = advance, should_check


def leave(trainer: Any) -> None:
    """Ends a restart whose training was over, so that no loop ran: the next `fit` of this Trainer goes on from here
    as from a `fit` that it ran itself."""
    waiting = [trainer.fit_loop]
    while waiting:
        loop = waiting.pop()
        loop._restarting = loop._loaded_from_state_dict = loop._resuming_from_checkpoint = False
        loop.reset_restart_stage()
        waiting += [inner for inner in vars(loop).values() if hasattr(inner, "reset_restart_stage")]


def enter_validation(loop: Any, kept: dict[str, Any], outputs: list[Any]) -> None:
    """Puts the iterator of a validation, just made, at the loader and batch where it was."""
    iterator = loop._combined_loader._iterator
    iterator._iterator_idx = kept["loader"]
    iterator._load_current_iterator()
    iterator._idx = kept["batch"]
    loop._logged_outputs = outputs
    loop._seen_batches_per_dataloader.update({int(number): count for number, count in kept["seen"].items()})
