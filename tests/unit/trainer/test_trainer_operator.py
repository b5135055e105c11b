"""What an operator makes of models, losses and data, without a job around it."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from elastic_agent.trainer import TrainingOperator, WrongReturn
from elastic_agent.trainer.in_worker.build import Registering, build
from elastic_agent.trainer.in_worker.surroundings import Surroundings
from elastic_agent.trainer.in_worker.wrapping import autocasts, plain_copy, to_training_mode


@pytest.fixture
def around() -> Surroundings:
    made = Surroundings(0, 0, 1, torch.device("cpu"), {}, {"parallel": "none"}, samples=2.0)
    made.registering = Registering(made)
    return made


class Frozen(nn.Linear):
    """Stays as in an evaluation."""

    def train(self, mode: bool = True) -> Frozen:
        self.told = mode
        return super().train(False)


def test_before_a_pass_every_module_is_set_to_train_that_does_not(around: Surroundings) -> None:
    frozen = Frozen(2, 2)
    dropout = nn.Dropout()
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(dropout, nn.ReLU()))
    dropout.eval()
    to_training_mode(model)
    assert all(module.training for module in model.modules())
    model.append(frozen)
    to_training_mode(model)
    assert (frozen.told, frozen.training, dropout.training) == (True, False, True)


@pytest.mark.parametrize(
    ("outputs", "loss", "target", "has_accuracy"),
    [
        (3, nn.CrossEntropyLoss(), torch.tensor([0, 2]), True),
        (1, nn.MSELoss(), torch.zeros(2, 1), False),
        (3, nn.MSELoss(), torch.zeros(2, 3), False),
    ],
    ids=["a classification", "a regression", "a regression of several numbers"],
)
def test_accuracy_is_that_of_a_classification_alone(
    around: Surroundings, outputs: int, loss: nn.Module, target: torch.Tensor, has_accuracy: bool
) -> None:
    operator = TrainingOperator(around)
    operator.register(models=nn.Linear(4, outputs), criterion=loss)
    found = operator.validate_batch((torch.ones(2, 4), target), {})
    assert set(found) == ({"val_loss", "val_accuracy"} if has_accuracy else {"val_loss"})


def set_of(samples: int) -> TensorDataset:
    return TensorDataset(torch.ones(samples, 4), torch.zeros(samples))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"validation_loader": set_of(0)}, "the validation data is empty: its dataset has no sample"),
        ({"validation_loader": DataLoader(set_of(0))}, "the validation data is empty"),
        (
            {"train_loader": DataLoader(set_of(5), batch_size=10, drop_last=True)},
            "the train data has 5 samples, less than one batch of 10, and drop_last leaves none",
        ),
        ({"train_loader": [1, 2]}, "the train data is a list, and must be a DataLoader or a Dataset"),
    ],
    ids=["an empty set", "a loader of an empty set", "drop_last", "a list"],
)
def test_data_that_gives_no_batch_is_named(around: Surroundings, given: dict[str, Any], words: str) -> None:
    with pytest.raises(WrongReturn, match=words):
        TrainingOperator(around).register_data(**given)


def test_a_stream_may_be_of_any_length(around: Surroundings) -> None:
    class Stream(Dataset[Any]):
        """Has no length."""

    TrainingOperator(around).register_data(train_loader=DataLoader(Stream(), batch_size=10, drop_last=True, sampler=[]))
    assert set(around.loaders) == {"train"}


def test_a_model_and_a_loss_are_cast_wherever_they_are_called(around: Surroundings) -> None:
    """The loss is computed in full precision where torch says so; names of the state, and copies, are as before."""
    around.amp_dtype = torch.bfloat16
    model, kinds = nn.Sequential(nn.Linear(4, 3)), []
    names = list(model.state_dict())

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        kinds.append(output.dtype)
        made: torch.Tensor = nn.functional.cross_entropy(output, target)
        return made

    operator = TrainingOperator(around)
    operator.register(models=model, criterion=loss)
    made = operator.criterion(operator.model(torch.ones(2, 4)), torch.tensor([0, 1]))
    assert (kinds, made.dtype) == ([torch.bfloat16], torch.float32)
    with operator.autocast():
        assert operator.model(torch.ones(2, 4)).dtype == torch.bfloat16
    assert list(model.state_dict()) == names
    copied = plain_copy(model)
    assert copied(torch.ones(2, 4)).dtype == torch.float32
    assert model(torch.ones(2, 4)).dtype == torch.bfloat16


def test_a_forward_pass_of_an_objects_own_is_there_in_its_copy(around: Surroundings) -> None:
    around.amp_dtype = torch.bfloat16
    model = nn.Linear(4, 3)
    vars(model)["forward"] = lambda x: x * 2
    autocasts(autocasts(model, around), around)
    assert torch.equal(plain_copy(model)(torch.ones(2)), torch.full((2,), 2.0))


class Scaled:
    """A loss that is no module."""

    def __init__(self, scale: float = 2.0) -> None:
        self.scale = scale

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.scale * nn.functional.mse_loss(output, target)


class Configured(Scaled):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config["scale"])


def scaled(scale: float, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return Scaled(scale)(output, target)


def of_config(config: dict[str, Any], scale: float) -> Scaled:
    return Scaled(scale)


def program_of(loss: Any) -> dict[str, Any]:
    """What a trainer was made with."""
    made: dict[str, Any] = {"parallel": "none", "operator_cls": TrainingOperator, "loss_creator": loss}
    made |= {"model_creator": lambda config: nn.Linear(4, 4), "data_creator": lambda config: set_of(2)}
    return {**made, "optimizer_creator": None, "scheduler_creator": None}


@pytest.mark.parametrize(
    ("creator", "factor"),
    [
        (Scaled, 2.0),
        (Configured, 3.0),
        (functools.partial(Scaled, 4.0), 4.0),
        (functools.partial(scaled, 5.0), 5.0),
        (functools.partial(of_config, scale=6.0), 6.0),
        (functools.partial(nn.MSELoss, reduction="sum"), 8.0),
        (functools.partial(nn.functional.mse_loss, reduction="sum"), 8.0),
    ],
    ids=["class", "class of config", "class in part", "function in part", "of config in part", "module", "of torch"],
)
def test_a_loss_may_be_a_class_or_given_in_part(around: Surroundings, creator: Any, factor: float) -> None:
    around.config["scale"] = 3.0
    around.program = program_of(creator)
    loss = build(around).criterion(torch.ones(2, 4), torch.zeros(2, 4))
    assert float(loss) == factor


def test_a_class_of_losses_that_needs_more_is_named(around: Surroundings) -> None:
    class Needy(Scaled):
        def __init__(self, weight: float, margin: float) -> None: ...

    around.program = program_of(Needy)
    with pytest.raises(WrongReturn, match=r"loss_creator is the class .*Needy, which needs weight, margin: give"):
        build(around)
