"""Makes models, optimizers, loss, schedulers, data and the operator of one worker, from creators or in `setup`."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

from ..errors import WrongReturn
from ..names import BATCH_SIZE
from ..operator import TrainingOperator
from .surroundings import Surroundings
from .wrapping import autocasts, wrap


class Registering:
    """What creators or an operator's `setup` made, as it is handed over."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around

    def register(
        self, operator: TrainingOperator, models: Any, optimizers: Any, criterion: Any, schedulers: Any
    ) -> tuple[Any, ...]:
        """See `TrainingOperator.register`."""
        listed = _listed(models, nn.Module, "models", "torch.nn.Module")
        if operator._models:
            raise WrongReturn("models are registered twice: creators, or setup, but not both")
        operator._models = [autocasts(model, self._around) for model in listed]
        operator._wrapped = [wrap(model, self._around) for model in listed]
        made: list[Any] = [_as_given(models, operator._wrapped)]
        if optimizers is not None:
            operator._optimizers = _listed(optimizers, torch.optim.Optimizer, "optimizers", "torch.optim.Optimizer")
            made.append(optimizers)
        if criterion is not None:
            operator._criterion = autocasts(_loss(criterion, self._around.device), self._around)
            made.append(operator._criterion)
        if schedulers is not None:
            operator._schedulers = _steppable(schedulers)
            made.append(schedulers)
        return tuple(made)

    def register_data(self, operator: TrainingOperator, train: Any, validation: Any) -> None:
        """See `TrainingOperator.register_data`."""
        for name, given in (("train", train), ("validation", validation)):
            if given is not None:
                self._around.loaders[name] = self._loader(name, given)

    def _loader(self, name: str, given: Any) -> DataLoader[Any]:
        if isinstance(given, Dataset):
            self._check_length(name, given)
            given = DataLoader(given, batch_size=self._around.config.get(BATCH_SIZE, 1), shuffle=name == "train")
        if not isinstance(given, DataLoader):
            raise WrongReturn(
                f"the {name} data is a {type(given).__name__}, and must be a DataLoader or a Dataset; correct "
                "data_creator"
            )
        length = self._check_length(name, given.dataset)
        batch = given.batch_size or 1
        if given.drop_last and length is not None and length < batch:
            raise WrongReturn(
                f"the {name} data has {length} samples, less than one batch of {batch}, and drop_last leaves none"
            )
        return given

    def _check_length(self, name: str, dataset: Any) -> int | None:
        try:
            length = len(dataset)
        except TypeError:
            return None  # a stream: how long it is, is known at its end
        if not length:
            raise WrongReturn(f"the {name} data is empty: its dataset has no sample; correct data_creator")
        return length


def build(around: Surroundings) -> TrainingOperator:
    """The operator with all that creators and `setup` make. Raises WrongReturn, and what they raise."""
    program = around.program
    around.registering = Registering(around)
    operator: TrainingOperator = program["operator_cls"](around)
    if not isinstance(operator, TrainingOperator):
        raise WrongReturn(
            f"training_operator_cls made a {type(operator).__name__}; give a subclass of TrainingOperator"
        )
    if program["model_creator"] is not None:
        _from_creators(operator, around)
    operator.setup(around.config)
    if not operator._models:
        raise WrongReturn(
            "there is no model: give model_creator, or call self.register(models=..., ...) in the operator's setup()"
        )
    if "train" not in around.loaders and "validation" not in around.loaders:
        raise WrongReturn("there is no data: give data_creator, or call self.register_data(...) in setup()")
    if around.amp_dtype is torch.float16:
        operator._scaler = torch.amp.GradScaler(around.device.type)
    return operator


def _from_creators(operator: TrainingOperator, around: Surroundings) -> None:
    program, config = around.program, around.config
    if program["data_creator"] is not None:
        given = program["data_creator"](config)
        pair = given if isinstance(given, (list, tuple)) else (given,)
        if not 1 <= len(pair) <= 2 or pair[0] is None:
            raise WrongReturn(
                f"data_creator returned {len(pair)} things, and must return the training data, or training and "
                "validation data"
            )
        around.registering.register_data(operator, pair[0], pair[1] if len(pair) == 2 else None)
    models = program["model_creator"](config)
    listed = _listed(models, nn.Module, "model_creator returned models", "torch.nn.Module")
    for model in listed:
        model.to(around.device)
    if program["parallel"] == "fsdp":
        listed = [wrap(model, around) for model in listed]
    optimizers = criterion = schedulers = None
    if program["optimizer_creator"] is not None:
        optimizers = program["optimizer_creator"](_as_given(models, listed), config)
        _listed(optimizers, torch.optim.Optimizer, "optimizer_creator returned optimizers", "torch.optim.Optimizer")
    if program["loss_creator"] is not None:
        criterion = program["loss_creator"]
        if not isinstance(criterion, nn.Module) and not _is_loss_class(criterion):
            criterion = _called(criterion, config)
    if program["scheduler_creator"] is not None:
        if optimizers is None:
            raise WrongReturn("scheduler_creator needs optimizers to schedule: give optimizer_creator")
        schedulers = program["scheduler_creator"](optimizers, config)
    around.registering.register(operator, _as_given(models, listed), optimizers, criterion, schedulers)


def _called(creator: Any, config: dict[str, Any]) -> Any:
    """A function of the config that gives a loss, or one of output and target that is a loss; or a class of losses,
    made with the config where it needs one argument. Either may have some of its arguments already."""
    inner = creator
    while isinstance(inner, functools.partial):
        inner = inner.func
    try:
        needed = [
            each
            for each in inspect.signature(creator).parameters.values()
            if each.default is each.empty and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):
        needed = []  # a builtin: a loss
    if len(needed) == 1:
        return creator(config)
    if not isinstance(inner, type):
        return creator
    if needed:
        names = ", ".join(each.name for each in needed)
        raise WrongReturn(
            f"loss_creator is the class {inner.__qualname__}, which needs {names}: give a function of config that "
            "makes one, or functools.partial with them"
        )
    return creator()


def _is_loss_class(thing: Any) -> bool:
    return isinstance(thing, type) and issubclass(thing, nn.Module)


def _loss(given: Any, device: torch.device) -> Any:
    made = given() if _is_loss_class(given) else given
    if not callable(made):
        raise WrongReturn(
            f"the loss is a {type(made).__name__}, and must be a class, an instance or a function of output and target"
        )
    return made.to(device) if isinstance(made, nn.Module) else made


def _listed(given: Any, kind: type, what: str, name: str) -> list[Any]:
    things = list(given) if isinstance(given, (list, tuple)) else [given]
    if not things:
        raise WrongReturn(f"{what}: none; there must be at least one {name}")
    for thing in things:
        if not isinstance(thing, kind):
            raise WrongReturn(f"{what}: a {type(thing).__name__}, and each must be a {name}")
    return things


def _steppable(given: Any) -> list[Any]:
    things = list(given) if isinstance(given, (list, tuple)) else [given]
    for thing in things:
        if not all(callable(getattr(thing, name, None)) for name in ("step", "state_dict", "load_state_dict")):
            raise WrongReturn(f"schedulers: a {type(thing).__name__}, which has no step() and state_dict()")
    return things


def _as_given(given: Any, things: list[Any]) -> Any:
    """One where one was given, else as many."""
    return things if isinstance(given, (list, tuple)) else things[0]


def sync_buffers(models: list[nn.Module]) -> None:
    """Collective: buffers, such as running means, as the first rank has them."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        for model in models:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)
