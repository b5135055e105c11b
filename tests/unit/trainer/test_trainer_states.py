"""Which states a trainer takes, decided before any of them is taken."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from elastic_agent.trainer import TrainingOperator
from elastic_agent.trainer.in_worker.states import unfit, whole


def an_operator(model: nn.Module) -> TrainingOperator:
    made: Any = TrainingOperator(None)  # type: ignore[arg-type]  # nobody asks where it is
    made._models, made._optimizers = [model], [torch.optim.SGD(model.parameters(), lr=0.1)]
    return made  # type: ignore[no-any-return]  # as said above


class Adapting(nn.Linear):
    """Takes the weights of a smaller one."""

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        state_dict[f"{prefix}weight"] = torch.zeros_like(self.weight)
        super()._load_from_state_dict(state_dict, prefix, *rest)


def test_a_state_of_another_training_is_named_before_any_of_it_is_taken() -> None:
    net = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
    operator, state = an_operator(net), whole(an_operator(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))))
    assert not unfit(operator, whole(operator))
    assert unfit(operator, state).startswith("the state has 0.weight of model0 with the shape (3, 4), and the trainer")
    assert unfit(operator, {}).startswith("the state has no model0, operator, optimizer0:")
    assert unfit(operator, {**whole(operator), "model1": {}}).startswith("the state has model1, which the trainer has")
    assert unfit(operator, {**state, "model0": 5}).startswith("the state has a int as model0")


def test_a_model_that_adapts_what_it_loads_is_left_to_do_so() -> None:
    state = whole(an_operator(nn.Linear(4, 3)))
    assert unfit(an_operator(nn.Linear(5, 3)), state)
    assert not unfit(an_operator(Adapting(5, 3)), state)
