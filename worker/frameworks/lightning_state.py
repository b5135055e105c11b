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
    """True. Raises NotResumable where a callback or a module puts something into its state that a checkpoint, which runs
    no code when it is read, cannot hold."""
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
