"""Models that `FullyShardedDataParallel` (FSDP1) wraps: their whole state, and that of their optimizers.

FSDP1's own `optimizer.state_dict()` is the part of this rank, in plain tensors that do not say so: the first rank's
part would be kept for all. torch.distributed.checkpoint.state_dict knows both; every rank holds all of the state while
it is saved or loaded, as FSDP1's full state dicts do.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch

from ..errors import Misused


def adapted(states: dict[str, Any]) -> dict[str, Any]:
    """The states, with FSDP1's models and their optimizers by their whole state. Raises Misused for an optimizer whose
    model is not among them."""
    models = [thing for thing in states.values() if _is_wrapped(thing)]
    made: dict[str, Any] = {}
    for name, thing in states.items():
        if isinstance(thing, torch.optim.Optimizer):
            held = set(map(id, _parameters(thing)))
            model = next((net for net in models if held & set(map(id, net.parameters()))), None)
            if model is None and any(_is_flattened(parameter) for parameter in _parameters(thing)):
                raise Misused(
                    f"Run({name}=...): its parameters belong to a FullyShardedDataParallel model that Run was not "
                    "given: give it, too (model=net)"
                )
            made[name] = thing if model is None else _Optimizer(model, thing)
        else:
            made[name] = WholeModel(thing) if _is_wrapped(thing) else thing
    return made


class Whole:
    """A state that is gathered to be kept."""


class WholeModel(Whole):
    """A model that FSDP1 wraps, whose state is whole on each rank. Collective, as is the optimizer's."""

    def __init__(self, net: torch.nn.Module) -> None:
        self._net = net

    def state_dict(self) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        return get_model_state_dict(self._net, options=StateDictOptions(full_state_dict=True))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

        set_model_state_dict(self._net, state, options=StateDictOptions(full_state_dict=True))


class _Optimizer(Whole):
    def __init__(self, net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._net, self._optimizer = net, optimizer

    def state_dict(self) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

        options = StateDictOptions(full_state_dict=True)
        return dict(get_optimizer_state_dict(self._net, self._optimizer, options=options))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

        options = StateDictOptions(full_state_dict=True)
        set_optimizer_state_dict(self._net, self._optimizer, state, options=options)


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[Any]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _is_wrapped(thing: Any) -> bool:
    """Whether it is a model that FSDP1 wraps somewhere. Where nobody has imported it, none is."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None or not isinstance(thing, torch.nn.Module):
        return False
    return any(isinstance(module, fsdp.FullyShardedDataParallel) for module in thing.modules())


def _is_flattened(parameter: Any) -> bool:
    """By the marks that FSDP1 leaves on parameters (torch/distributed/fsdp/_common_utils.py, _flat_param.py)."""
    return bool(getattr(parameter, "_fsdp_flattened", False) or getattr(parameter, "_is_flat_param", False))
