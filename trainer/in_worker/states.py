"""What a trainer saves: in checkpoints each part by its name, and as one state that any number of workers can load."""

from __future__ import annotations

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
    """The state of everything, on the CPU, with sharded tensors put together. Collective where some are."""
    return {name: _mapped(thing.state_dict(), _gathered) for name, thing in states_of(operator).items()}


def load_whole(operator: TrainingOperator, state: dict[str, Any]) -> None:
    """Take what `whole` gave, here or with another number of workers. Raises WrongReturn where it is of other things.
    Collective where tensors are sharded."""
    things = states_of(operator)
    missing = sorted(name for name in things if name not in state and name != "scaler")
    if missing or (unknown := sorted(name for name in state if name not in things and name != "scaler")):
        what = f"has no {', '.join(missing)}" if missing else f"has {', '.join(unknown)}, which the trainer has not"
        raise WrongReturn(f"the state {what}: it was saved by a trainer with other models, optimizers or schedulers")
    for name, thing in things.items():
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
        return {key: _mapped(item, act) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_mapped(item, act) for item in value)
    return value


def _placed(value: Any, layout: Any) -> Any:
    """Whole tensors, as the present ones at the same places are sharded."""
    if isinstance(value, dict):
        known = layout if isinstance(layout, dict) else {}
        return {key: _placed(item, known.get(key)) for key, item in value.items()}
    if isinstance(value, torch.Tensor) and isinstance(layout, DTensor):
        return distribute_tensor(value.to(layout.device), layout.device_mesh, layout.placements)
    return value
