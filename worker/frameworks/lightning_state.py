"""What a checkpoint of a Lightning training holds beside what has been logged, and whether it can be read again."""

from __future__ import annotations

import io
from typing import Any

import torch

from ..errors import NotResumable


def dumped(trainer: Any) -> dict[str, Any]:
    """Lightning's checkpoint without hyper-parameters: the script has them, and they may be of any class."""
    checkpoint: dict[str, Any] = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
    for name in [name for name in checkpoint if "hyper_param" in name or name.startswith("hparams")]:
        del checkpoint[name]
    return checkpoint


def check_readable(checkpoint: dict[str, Any]) -> bool:
    """True. Raises NotResumable where a callback or a module puts something into its state that a checkpoint, which
    runs no code when it is read, cannot hold."""
    file = io.BytesIO()
    torch.save(
        {name: held for name, held in checkpoint.items() if name not in ("state_dict", "optimizer_states")}, file
    )
    file.seek(0)
    if classes := torch.serialization.get_unsafe_globals_in_checkpoint(file):
        raise NotResumable(
            f"the state of a callback or module holds {', '.join(sorted(classes))}, which torch does not load by "
            "default: keep plain values and tensors, or call torch.serialization.add_safe_globals([...]) in the script"
        )
    return True


def gradients(module: Any) -> dict[str, torch.Tensor]:
    """With manual optimization a script may keep gradients from one batch to the next."""
    return {name: held.grad for name, held in module.named_parameters() if held.grad is not None}


def restore_gradients(module: Any, kept: dict[str, torch.Tensor]) -> None:
    for name, held in module.named_parameters():
        if name in kept:
            held.grad = kept[name].to(held.device)


def settings(trainer: Any, accumulates: int) -> dict[str, Any]:
    """What callbacks and modules set at the start of an epoch, and is in no checkpoint of Lightning's: that hook is not
    called again in a start that goes on behind it.

    accumulates: batches of a step when the loops began; what the script says so may change from start to start.
    """
    module = trainer.lightning_module
    modes = {name: each.training for name, each in module.named_modules()}
    if trainer.validating:  # all are in the mode of an evaluation: those before it
        modes = dict(getattr(getattr(trainer.fit_loop.epoch_loop.val_loop, "_module_mode", None), "mode", {}))
    return {
        "accumulates": None if trainer.accumulate_grad_batches == accumulates else trainer.accumulate_grad_batches,
        "frozen": [name for name, each in module.named_parameters() if not each.requires_grad],
        "evaluating": [name for name, training in modes.items() if not training],
        "untracked": [name for name, each in module.named_modules() if not getattr(each, "track_running_stats", True)],
    }


def restore_settings(trainer: Any, kept: dict[str, Any] | None) -> None:
    """Puts them back. Lightning's callback for accumulated gradients refuses its own before the loops have begun.

    kept: None: the checkpoint is of an older version, which kept none.
    """
    if kept is None:
        return
    if kept["accumulates"] is not None:
        trainer.accumulate_grad_batches = kept["accumulates"]
    frozen, evaluating, untracked = (set(kept[name]) for name in ("frozen", "evaluating", "untracked"))
    for name, each in trainer.lightning_module.named_parameters():
        if each.requires_grad == (name in frozen):
            each.requires_grad_(name not in frozen)
    for name, module in trainer.lightning_module.named_modules():
        module.training = name not in evaluating
        if hasattr(module, "track_running_stats"):
            module.track_running_stats = name not in untracked


def go_on_averaging(trainer: Any) -> None:
    """Lets `StochasticWeightAveraging` take up, in the middle of an epoch, the schedule and the counts that it makes as
    an epoch begins. Weights and rates stay those of the checkpoint: a schedule that is made sets the first rate."""
    module = trainer.lightning_module
    for each in trainer.callbacks:
        if not any(kind.__name__ == "StochasticWeightAveraging" for kind in type(each).__mro__):
            continue
        weights = {name: value.clone() for name, value in module.state_dict().items() if torch.is_tensor(value)}
        groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
        rates = [{name: _copied(value) for name, value in group.items() if name != "params"} for group in groups]
        each.on_train_epoch_start(trainer, module)
        module.load_state_dict(weights, strict=False)
        for group, kept in zip(groups, rates, strict=True):
            group.update(kept)


def _copied(value: Any) -> Any:
    """A rate may be a tensor, and schedules write into it."""
    return value.clone() if isinstance(value, torch.Tensor) else value
