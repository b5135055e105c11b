"""Models over several workers: DDP that weighs gradients by samples, or FSDP2."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from .surroundings import Surroundings


def wrap(model: nn.Module, around: Surroundings) -> Any:
    """The model on this worker's device, and in what the program asked for."""
    parallel = around.program["parallel"]
    if parallel == "fsdp":
        from torch.distributed.fsdp import FSDPModule, fully_shard

        if isinstance(model, FSDPModule):
            return model
        return fully_shard(model.to(around.device)) if dist.is_initialized() else model.to(around.device)
    model = model.to(around.device)
    trained = any(parameter.requires_grad for parameter in model.parameters())
    if parallel != "ddp" or not dist.is_initialized() or not trained:
        return model
    devices = [around.device] if around.device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=devices, **around.program["ddp_args"])


def to_training_mode(model: nn.Module) -> None:
    """`model.train()`, unless that would change nothing: to look takes a tenth of the time that to set does."""
    modules: list[nn.Module] = [model]
    while modules:
        module = modules.pop()
        if not module.training or type(module).train not in _PLAIN_TRAIN:
            model.train()
            return
        modules += [inner for inner in module._modules.values() if inner is not None]


_PLAIN_TRAIN = (nn.Module.train, DistributedDataParallel.train)
"""What does nothing but set a mode."""


class Autocast:
    """A function in mixed precision, whoever calls it."""

    def __init__(self, inner: Callable[..., Any], around: Surroundings) -> None:
        functools.update_wrapper(self, inner)
        self.inner, self._device, self._dtype = inner, around.device.type, around.amp_dtype

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        with torch.autocast(self._device, dtype=self._dtype):
            return self.inner(*arguments, **named)


def autocasts(thing: Any, around: Surroundings) -> Any:
    """A model or a loss in mixed precision where that is asked for, so that no operator casts by hand. A module stays
    the same object, with the same names in its state."""
    if around.amp_dtype is None:
        return thing
    if not isinstance(thing, nn.Module):
        return Autocast(thing, around)
    if not isinstance(thing.forward, Autocast):
        # Of the object: what calls it, such as DDP and the hooks of FSDP2, stays around it.
        vars(thing)["forward"] = Autocast(thing.forward, around)
    return thing


def plain_copy(model: nn.Module) -> nn.Module:
    """A copy on the CPU, as the program made it."""
    made = copy.deepcopy(model).cpu()
    cast = vars(made).get("forward")
    if isinstance(cast, Autocast):
        del vars(made)["forward"]
        if getattr(cast.inner, "__func__", None) is not type(made).forward:
            vars(made)["forward"] = cast.inner  # it was the object's own before
    return made


def weigh(wrapped: list[Any], around: Surroundings) -> None:
    """From now on DDP multiplies gradients by this worker's weight before it averages them, so that their mean is over
    samples also where workers have unequal numbers of them. Before the first forward pass."""
    for model in wrapped:
        if isinstance(model, DistributedDataParallel):
            model.register_comm_hook(around, _weighted_mean)
            around.weighs_in_ddp = True


def _weighted_mean(around: Surroundings, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    tensor = bucket.buffer()
    tensor.mul_(around.weight / around.world_size)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    made: torch.futures.Future[torch.Tensor] = future.then(lambda done: done.value()[0])
    return made


# DDP looks at the annotations themselves, which are texts in this module.
_bucket: Any = vars(dist)["GradBucket"]
_weighted_mean.__annotations__ |= {"bucket": _bucket, "return": torch.futures.Future[torch.Tensor]}
