"""What a checkpoint of a Lightning training holds beside what has been logged, whether it can be read again, and what
it lacks: plain attributes, in which scripts add up what their batches give."""

from __future__ import annotations

import io
import sys
from collections import deque
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import prune

from ..checks import check_replicas
from ..errors import NotResumable
from ..shards.digest import sum_of

_DEEP = 3
"""How far into attributes of attributes is looked, as into a list for each loader."""
_MANY = 100
"""Of more items only the number is looked at: data sets are attributes, too."""


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


class Additions:
    """What the batches of an epoch or of a validation add up in plain attributes, which no checkpoint holds."""

    def __init__(self, of: str, then: str) -> None:
        """of, then: for the log: of what the batches are, and what follows."""
        self._of, self._then = of, then
        self._before: dict[str, Any] | None = None
        self._found = False

    def begin(self, trainer: Any) -> None:
        """Before each batch; only the first that this start has counts."""
        if self._before is None:
            self._before, self._found = _plain_attributes(trainer), False

    def end(self) -> None:
        self._before = None

    def lacking(self, trainer: Any, run: Any, grown: bool = False) -> bool:
        """Whether there are any on a rank, of which the log has the first, once. Collective.

        grown: whether only lists and their like count, that have more items or fewer.
        """
        if self._before is not None and not self._found:
            now = _plain_attributes(trainer)
            names = sorted(name for name in now if _differ(self._before.get(name), now[name], grown))
            found = [each[0] for each in run.world.gather(names[:1]) if each]
            self._found = bool(found)
            if found and run.rank == 0:
                run.log.warning_once(
                    f"{found[0]} changes with the batches of {self._of}, and no checkpoint holds it: {self._then}; "
                    "to have it kept, give what is added up to self.log or a torchmetrics.Metric"
                )
        return self._found


def _differ(before: Any, now: Any, grown: bool) -> bool:
    if not grown:
        return bool(before != now)
    return isinstance(now, tuple) and isinstance(before, tuple) and before[0] != now[0]


def _plain_attributes(trainer: Any) -> dict[str, Any]:
    """How those of the module, and of callbacks without a state, look now, by the names to call them. Not those that
    hold something of a library's classes, which may change as a logger or a tokenizer does."""
    module = trainer.lightning_module
    theirs = next(kind for kind in type(module).__mro__ if kind.__name__ == "LightningModule")()
    held = {f"{type(module).__name__}.{name}": each for name, each in vars(module).items() if name not in vars(theirs)}
    for callback in trainer.callbacks:
        kinds = [kind for kind in type(callback).__mro__ if _is_of_a_library(kind)]
        if all(kind.__name__ in ("Callback", "object") for kind in kinds) and not callback.state_dict():
            held |= {f"{type(callback).__name__}.{name}": each for name, each in vars(callback).items()}
    return {name: _look(each, _DEEP) for name, each in held.items()}


def _look(value: Any, deep: int) -> Any:
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return repr(value)  # so that nan is itself
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        return repr(value.tolist()) if value.numel() <= _MANY else id(value)
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return repr(value.tolist()) if value.size <= _MANY else id(value)
    if isinstance(value, (list, tuple, set, dict, deque)):
        items = list(value.values() if isinstance(value, dict) else value) if len(value) <= _MANY else []
        return len(value), [_look(each, deep - 1) for each in items] if deep else []
    if deep and hasattr(value, "__dict__") and not _is_of_a_library(type(value)):
        return {name: _look(each, deep - 1) for name, each in vars(value).items()}
    return None


def _is_of_a_library(kind: type) -> bool:
    """Also where it is one of Python's own or of this one."""
    library = kind.__module__.partition(".")[0]
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    return library in sys.stdlib_module_names or library == __name__.partition(".")[0] or "-packages" in file


def gradients(module: Any) -> dict[str, torch.Tensor]:
    """With manual optimization a script may keep gradients from one batch to the next."""
    return {name: held.grad for name, held in module.named_parameters() if held.grad is not None}


def restore_gradients(module: Any, kept: dict[str, torch.Tensor]) -> None:
    for name, held in module.named_parameters():
        if name in kept:
            held.grad = kept[name].to(held.device)


def gradients_alike(trainer: Any, run: Any) -> bool:
    """Collective: whether all ranks have the same, as a checkpoint has those of one. Under `no_sync` they do not."""
    if run.world_size == 1 or trainer.lightning_module.automatic_optimization:
        return True
    alike = len(set(run.world.gather(sum_of(gradients(trainer.lightning_module))))) == 1
    if not alike:
        run.log.warning_once(
            "the ranks keep gradients of their own from one batch to the next, as under no_sync(): a checkpoint that "
            "is due is taken behind a batch that leaves all ranks the same"
        )
    return alike


def check_model(trainer: Any, run: Any) -> None:
    """Collective. Says where the parameters of the ranks differ, as a start gives all ranks those of one. Raises
    NotResumable where the tensors do."""
    check_replicas({"the model": trainer.lightning_module}, run.world, run.log.warning_once)


def own_buffers(trainer: Any, world: Any) -> list[dict[str, torch.Tensor]]:
    """Collective: those that the ranks do not share, by rank; none where each forward pass gives all ranks those of the
    first. With manual optimization no pass but the first does (Lightning 2.6.6, `on_after_inner_forward`)."""
    model, module = trainer.strategy.model, trainer.lightning_module
    if not isinstance(model, DistributedDataParallel) or (model.broadcast_buffers and module.automatic_optimization):
        return []
    held = {name: each.detach().cpu() for name, each in module.named_buffers()}
    sums = world.gather({name: sum_of(each) for name, each in held.items()})
    own = {name: each for name, each in held.items() if any(of_rank[name] != sums[0][name] for of_rank in sums)}
    if not any(world.gather(bool(own))):
        return []
    data = io.BytesIO()
    torch.save(own, data)
    return [torch.load(io.BytesIO(part), weights_only=True) for part in world.gather_bytes(data.getvalue())]


def restore_buffers(trainer: Any, kept: list[dict[str, torch.Tensor]], world: Any) -> None:
    """Another number of ranks goes on with those of the first, which all of them have."""
    if not kept or len(kept) != world.size:
        return
    held = dict(trainer.lightning_module.named_buffers())
    for name, value in kept[world.rank].items():
        held[name].copy_(value)
    if isinstance(trainer.strategy.model, DistributedDataParallel):
        trainer.strategy.model.require_forward_param_sync = False  # as behind the first pass


def pruned(trainer: Any) -> dict[str, Any]:
    """What `ModelPruning` leaves out of its checkpoints: of each weight that is pruned, what it would be, and its mask;
    and whether the first weights, to which it may go back, are the trained ones by now (2.6.6, `_copy_param`)."""
    held = {}
    for path, part in trainer.lightning_module.named_modules():
        for hook in part._forward_pre_hooks.values():
            if isinstance(hook, prune.BasePruningMethod):
                name = hook._tensor_name
                whole, mask = getattr(part, f"{name}_orig"), getattr(part, f"{name}_mask")
                held[f"{path}.{name}".lstrip(".")] = [whole.detach(), mask]
    return {"weights": held, "shared": [now.data_ptr() == first.data_ptr() for now, first in _first_weights(trainer)]}


def restore_pruned(trainer: Any, kept: dict[str, Any]) -> None:
    """Prunes what was pruned, once the weights are those of the checkpoint."""
    if not kept:
        return  # of an older version
    for called, (whole, mask) in kept["weights"].items():
        path, _, name = called.rpartition(".")
        part = trainer.lightning_module.get_submodule(path)
        if hasattr(part, f"{name}_mask"):
            continue  # the script prunes it in each start, and its state has the mask
        getattr(part, name).data.copy_(whole)
        prune.custom_from_mask(part, name, mask.to(getattr(part, name).device))
    for (now, first), shared in zip(_first_weights(trainer), kept["shared"], strict=True):
        if shared:
            first.data = now.data


def _first_weights(trainer: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Weights that `ModelPruning` prunes, each with what it goes back to."""
    found = []
    for callback in trainer.callbacks:
        for layer in (getattr(callback, "_original_layers", None) or {}).values():
            for number, name in layer["names"]:
                part = callback._parameters_to_prune[number][0]
                found.append((getattr(part, f"{name}_orig", getattr(part, name)), getattr(layer["data"], name)))
    return [(now, first) for now, first in found if isinstance(now, torch.Tensor) and isinstance(first, torch.Tensor)]


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
