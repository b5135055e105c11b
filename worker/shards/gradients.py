"""The gradients of a model as flat vectors, one for each device and type of number: read after a shard, put back at the
end of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..checkpoints.pieces import is_sharded
from ..errors import Misused
from ..frameworks.fsdp1 import WholeModel
from .fold import ABSENT

_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
"""Types whose sums are computed in a wider one, and rounded once."""


def parameters_of(states: Mapping[str, Any]) -> dict[str, nn.Parameter]:
    """The parameters of the modules and optimizers that a run was given, each once, under the first name it has.

    Raises Misused for a module that sums gradients itself.
    """
    found: dict[str, nn.Parameter] = {}
    seen: set[int] = set()

    def enter(name: str, parameter: Any) -> None:
        if id(parameter) not in seen:
            seen.add(id(parameter))
            found[name] = parameter

    for name, thing in states.items():
        if wrapper := _sums_itself(thing):
            raise Misused(
                f"Run({name}={wrapper}(...), shards=...): run.shards() sums the gradients over the "
                f"ranks; give it the module without {wrapper}, and train with that"
            )
        if isinstance(thing, nn.Module):
            for path, parameter in thing.named_parameters():
                enter(f"{name}.{path}", parameter)
    for name, thing in states.items():
        for number, group in enumerate(getattr(thing, "param_groups", ())):
            for place, parameter in enumerate(group["params"]):
                enter(f"{name}.param_groups[{number}][{place}]", parameter)
    return found


def those_with_gradients(states: Mapping[str, Any]) -> str:
    """Which parameters have a gradient, in hexadecimal. A gradient of zeros is not none: an optimizer applies momentum
    and weight decay to that parameter too."""
    return f"{int('1' + ''.join('01'[held.grad is not None] for held in parameters_of(states).values()), 2):x}"


def give_zeros(states: Mapping[str, Any], kept: str) -> None:
    """Gradients of zeros, as behind `zero_grad(set_to_none=False)`, for the parameters that had one by
    `those_with_gradients`. Where the script's own `zero_grad` sets them to None they are gone before they count."""
    parameters, had = parameters_of(states).values(), f"{int(kept, 16):b}"[1:]
    for parameter, has in zip(parameters, had, strict=True):
        if has == "1" and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


def _sums_itself(thing: Any) -> str:
    """What wraps a module and sums its gradients over the ranks; empty where nothing does."""
    if isinstance(thing, DistributedDataParallel):
        return "DistributedDataParallel"
    if isinstance(thing, WholeModel):
        return "FullyShardedDataParallel"
    return "fully_shard" if isinstance(thing, nn.Module) and any(map(is_sharded, thing.parameters())) else ""


class Layout:
    """Where each parameter's gradient lies in a flat vector. Behind them there is a number for each parameter, 1.0
    where a shard gave it a gradient: the sum says whether any did, without a message of its own."""

    def __init__(self, parameters: dict[str, nn.Parameter], dtype: torch.dtype, device: torch.device) -> None:
        self.names, self.parameters = list(parameters), list(parameters.values())
        self.dtype, self.device = dtype, device
        self._flags = sum(parameter.numel() for parameter in self.parameters)
        self.length = self._flags + len(self.parameters)
        self._all = torch.ones(len(self.parameters), dtype=dtype, device=device)
        self._views: dict[int, list[Tensor]] = {}
        self.complete = False
        """Whether each parameter had a gradient in the shard that was read last."""

    def clear(self) -> None:
        """No parameter has a gradient, so that the next one is a shard's alone."""
        for parameter in self.parameters:
            parameter.grad = None

    def reader(self, shard: int) -> Callable[[Tensor, bool], None]:
        """What writes the gradients, as they are when it is called, into a flat vector, or adds them to it."""

        def read(flat: Tensor, add: bool) -> None:
            views, present, gradients = self._views_of(flat), [], []
            flags = self._all
            for number, parameter in enumerate(self.parameters):
                gradient = parameter.grad
                if gradient is None:
                    flags = flags.clone() if flags is self._all else flags
                    flags[number] = ABSENT
                    if not add:
                        views[number].fill_(ABSENT)
                else:
                    self._check(number, gradient, shard)
                    present.append(views[number])
                    gradients.append(gradient)
            self.complete = flags is self._all
            with torch.no_grad():  # backward(create_graph=True) gives gradients that have a graph
                (torch._foreach_add_ if add else torch._foreach_copy_)([*present, views[-1]], [*gradients, flags])

        return read

    def put_back(self, flat: Tensor, all_given: bool, before: list[Tensor | None]) -> None:
        """Each parameter's `grad` becomes its part of the flat vector, added to what it was before; it stays as it was
        where no shard gave a gradient. all_given: known without looking."""
        views = self._views_of(flat)
        given = [1.0] * len(self.parameters) if all_given else views[-1].tolist()
        for number, (parameter, kept) in enumerate(zip(self.parameters, before, strict=True)):
            if not given[number] > 0:
                parameter.grad = kept
                continue
            gradient = views[number]
            if gradient.dtype != parameter.dtype:
                gradient = gradient.to(parameter.dtype)
            parameter.grad = gradient if kept is None else kept.add_(gradient)

    def _views_of(self, flat: Tensor) -> list[Tensor]:
        views = self._views.get(flat.data_ptr())
        if views is None:
            views, at = [], 0
            for parameter in self.parameters:
                views.append(_shaped(flat, at, parameter))
                at += parameter.numel()
            views.append(flat[self._flags : self.length])
            self._views[flat.data_ptr()] = views
        return views

    def _check(self, number: int, gradient: Tensor, shard: int) -> None:
        if gradient.layout != torch.strided:
            raise Misused(
                f"the gradient of {self.names[number]} in shard {shard} is {gradient.layout}, and shards are summed as "
                "dense vectors: say sparse=False where the module is made"
            )


def layouts_of(parameters: dict[str, nn.Parameter]) -> list[Layout]:
    """A layout for each device and type of number. Raises Misused for what cannot be summed."""
    groups: dict[tuple[str, torch.dtype], dict[str, nn.Parameter]] = {}
    for name, parameter in parameters.items():
        if not parameter.dtype.is_floating_point or parameter.device.type == "meta":
            raise Misused(
                f"{name} is {parameter.dtype} on {parameter.device}: run.shards() sums gradients of floating-point "
                "parameters that have memory; set requires_grad=False on it, or leave out shards"
            )
        dtype = _WIDE.get(parameter.dtype, parameter.dtype)
        groups.setdefault((str(parameter.device), dtype), {})[name] = parameter
    return [
        Layout(group, dtype, next(iter(group.values())).device)
        for (_, dtype), group in sorted(groups.items(), key=lambda item: (item[0][0], str(item[0][1])))
    ]


def _shaped(flat: Tensor, at: int, parameter: nn.Parameter) -> Tensor:
    """A part of the flat vector with the shape of a parameter, and its order in memory where that is dense."""
    if not parameter.is_contiguous():
        for order, dimensions in ((torch.channels_last, 4), (torch.channels_last_3d, 5)):
            if parameter.dim() == dimensions and parameter.is_contiguous(memory_format=order):
                return flat.as_strided(parameter.shape, parameter.stride(), at)
    return flat[at : at + parameter.numel()].view(parameter.shape)
