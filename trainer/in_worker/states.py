"""What a trainer saves: in checkpoints each part by its name, and as one state that any number of workers can load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

try:
    from torch.distributed.tensor import DTensor, distribute_tensor
except ImportError:  # torch 2.4
    from torch.distributed._tensor import (  # type: ignore[attr-defined]  # re-exported without saying so
        DTensor,
        distribute_tensor,
    )

from ..errors import WrongReturn
from ..operator import TrainingOperator
from ..plain import without_numpy


class OwnState:
    """What the operator itself keeps, and its counts."""

    def __init__(self, operator: TrainingOperator) -> None:
        self._operator = operator

    def state_dict(self) -> dict[str, Any]:
        """Raises WrongReturn where the operator gave no dict."""
        operator = self._operator
        save = getattr(operator, "save", None)
        own = save() if callable(save) else operator.state_dict()
        if not isinstance(own, dict):
            raise WrongReturn(f"state_dict of the operator returned a {type(own).__name__}, and must return a dict")
        return {"own": own, "epoch": operator.epoch, "global_step": operator.global_step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        operator = self._operator
        restore = getattr(operator, "restore", None)
        (restore if callable(restore) else operator.load_state_dict)(state["own"])
        operator.epoch, operator.global_step = int(state["epoch"]), int(state["global_step"])


def states_of(operator: TrainingOperator) -> dict[str, Any]:
    """Everything that training changes, by the names that a checkpoint has."""
    states: dict[str, Any] = {}
    for name, things in (
        ("model", operator._models),
        ("optimizer", operator._optimizers),
        ("scheduler", operator._schedulers),
    ):
        states |= {f"{name}{number}": thing for number, thing in enumerate(things)}
    if operator._scaler is not None:
        states["scaler"] = operator._scaler
    states["operator"] = OwnState(operator)
    return states


def whole(operator: TrainingOperator) -> dict[str, Any]:
    """The state of everything, on the CPU, with sharded tensors put together, and numpy's numbers as those of Python,
    as checkpoints have them. Collective where some are sharded."""
    return {name: _mapped(thing.state_dict(), _gathered) for name, thing in states_of(operator).items()}


def unfit(operator: TrainingOperator, state: dict[Any, Any]) -> str:
    """Why a state is not one of this operator's, as far as that shows before any of it is taken; empty: it does not."""
    things = states_of(operator)
    missing = sorted(name for name in things if name not in state and name != "scaler")
    unknown = sorted(str(name) for name in state if name not in things and name != "scaler")
    if missing:
        what = f"has no {', '.join(missing)}"
    elif unknown:
        what = f"has {', '.join(unknown)}, which the trainer has not"
    else:
        models = [(name, thing) for name, thing in things.items() if isinstance(thing, torch.nn.Module)]
        others = (_other_model(name, net.state_dict(), state[name]) for name, net in models if _loads_plainly(net))
        what = next(filter(None, others), "")
    return f"the state {what}: it was saved by a trainer with other models, optimizers or schedulers" if what else ""


def _loads_plainly(model: torch.nn.Module) -> bool:
    """Whether nothing of the user's own takes part in `load_state_dict`, which may adapt what it is given."""
    return type(model).load_state_dict is torch.nn.Module.load_state_dict and all(
        type(each)._load_from_state_dict.__module__.startswith("torch.nn.") and not each._load_state_dict_pre_hooks
        for each in model.modules()
    )


def _other_model(name: str, own: Mapping[str, Any], given: Any) -> str:
    """What of a model's state has another shape than its own; empty where all that both have is alike."""
    if not isinstance(given, Mapping):
        return f"has a {type(given).__name__} as {name}"
    for key, tensor in own.items():
        other = given.get(key)
        if not isinstance(tensor, torch.Tensor) or not isinstance(other, torch.Tensor) or not tensor.ndim:
            continue  # to a number without dimensions torch also takes a list of one
        if tensor.shape != other.shape:
            shapes = f"the shape {tuple(other.shape)}, and the trainer with {tuple(tensor.shape)}"
            return f"has {key} of {name} with {shapes}"
    return ""


def load_whole(operator: TrainingOperator, state: dict[str, Any]) -> None:
    """Take what `whole` gave, here or with another number of workers, and for which `unfit` has no reason against it.
    Collective where tensors are sharded."""
    for name, thing in states_of(operator).items():
        if name in state:
            layout = thing.state_dict()
            thing.load_state_dict(_placed(state[name], layout))


def _gathered(tensor: torch.Tensor) -> torch.Tensor:
    made = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return made.detach().cpu().clone()


def _mapped(value: Any, act: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return act(value)
    if isinstance(value, dict):
        return {without_numpy(key): _mapped(item, act) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_mapped(item, act) for item in value)
    return without_numpy(value)


def _placed(value: Any, layout: Any) -> Any:
    """Whole tensors, as the present ones at the same places are sharded."""
    if isinstance(value, dict):
        known = layout if isinstance(layout, dict) else {}
        return {key: _placed(item, known.get(key)) for key, item in value.items()}
    if isinstance(value, torch.Tensor) and isinstance(layout, DTensor):
        return distribute_tensor(value.to(layout.device), layout.device_mesh, layout.placements)
    return value
