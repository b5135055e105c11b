"""What a subclass of TrainingOperator may override, what it finds on itself, and the hook; also after a restart."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from elastic_agent.trainer import BATCH_SIZE, TorchTrainer, TrainingOperator, WrongReturn
from support.trainers import training
from support.trainers.reports import Reports, tell

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("one_thread")]

FULL = training.TWO_WORKERS


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Reports]:
    made = Reports(tmp_path / "told")
    yield made
    made.close()


class Own(TrainingOperator):
    """Its own loops, and its state under the names that RaySGD had at first."""

    def setup(self, config: dict[str, Any]) -> None:
        self.passes = 0

    def train_epoch(self, iterator: Any, info: dict[str, Any]) -> dict[str, Any]:
        total = samples = 0
        for x, y in iterator:
            tell(self.config["told"], [os.getpid(), self.passes])
            loss = self.criterion(self.model(x), y)
            self.optimizer.zero_grad()
            self.backward(loss)
            self.step(self.optimizer)
            total, samples = total + loss.item() * self.num_samples, samples + self.num_samples
        self.passes += 1
        return {"own_loss": total / samples, "num_samples": samples, "given": info["given"]}

    def validate(self, iterator: Any, info: dict[str, Any]) -> dict[str, Any]:
        right = samples = 0
        for x, y in iterator:
            samples += self.num_samples
            right += int((self.models[0](x).argmax(1) == y).sum()) if self.num_samples else 0
        return {"own_accuracy": right / max(1, samples), "num_samples": samples, "trains": int(self.model.training)}

    def save(self) -> dict[str, Any]:
        return {"passes": self.passes}

    def restore(self, state: dict[str, Any]) -> None:
        self.passes = state["passes"]


def test_an_operator_has_loops_and_state_of_its_own(told: Reports) -> None:
    """Its means are over the samples of both workers, also in a pass in which one is killed; `save` and `restore` are
    called then, and for `state_dict` and `load_state_dict`."""
    settings = {**FULL, "training_operator_cls": Own, "save_every": {"steps": 2}}
    settings["config"] = {**FULL["config"], "told": str(told.path)}
    with TorchTrainer(**settings) as trainer:
        first = trainer.train(info={"given": 3})
        assert (first["num_samples"], first["given"], first["epoch"], first["batch_count"]) == (250, 3, 1, 10)
        assert 0.2 < first["own_loss"] < 1.5
        found, model = trainer.validate(), trainer.get_model().eval()
        x, y, _ = training.make_set(101).tensors
        assert found["own_accuracy"] == pytest.approx((model(x).argmax(1) == y).float().mean().item())
        assert (found["num_samples"], found["trains"]) == (101, 0)
        pid = trainer.apply_all_workers(os.getpid)[1]
        watch = threading.Thread(target=kill_in, args=(told, pid, 1, 4))
        watch.start()
        second = trainer.train(info={"given": 4})
        watch.join()
        # What an override keeps in variables begins anew in a restart; what the trainer counts does not.
        assert (second["batch_count"], second["epoch"], second["given"]) == (10, 2, 4)
        assert trainer.apply_all_operators(passes_of) == [2, 2]
        state = trainer.state_dict()
        assert state["operator"]["own"] == {"passes": 2}
        trainer.load_state_dict({**state, "operator": {**state["operator"], "own": {"passes": 7}}})
        assert trainer.apply_all_operators(passes_of) == [7, 7]


def passes_of(operator: Any) -> int:
    return int(operator.passes)


def kill_in(told: Reports, pid: int, passes: int, batches: int) -> None:
    """Kill a worker as it begins this batch of a pass."""
    for _ in range(batches):
        while told.next(pid) != [pid, passes]:
            pass
    os.kill(pid, signal.SIGKILL)


def test_a_hook_runs_in_each_process_before_torch_also_after_a_restart(told: Reports) -> None:
    path = str(told.path)

    def hook() -> None:
        tell(path, [os.getpid(), "torch" in sys.modules])

    with TorchTrainer(**FULL, initialization_hook=hook) as trainer:
        before = trainer.apply_all_workers(os.getpid)
        os.kill(before[0], signal.SIGKILL)
        assert trainer.train()["num_samples"] == 250
        after = trainer.apply_all_workers(os.getpid)
    assert not set(before) & set(after)
    assert sorted(told.next() for _ in range(4)) == sorted([pid, False] for pid in (*before, *after))


def test_workers_are_forked_with_what_they_need_for_their_first_batch() -> None:
    """The creators' module and those that torch imports for its first optimizer, also after a restart."""
    with TorchTrainer(**{**FULL, "optimizer_creator": training.make_counting_optimizer}) as trainer:
        os.kill(trainer.apply_all_workers(os.getpid)[0], signal.SIGKILL)
        assert trainer.train()["num_samples"] == 250
        assert trainer.apply_all_operators(training.imports) == [[False, 0], [False, 0]]


def test_an_operator_knows_where_it_is() -> None:
    def around(operator: Any) -> dict[str, Any]:
        with operator.timers.record("nothing"):
            pass
        return {
            "ranks": [operator.world_rank, operator.local_rank, operator.world_size],
            "batch": operator.config[BATCH_SIZE],
            "device": str(operator.device),
            "half": [operator.use_fp16, operator.use_gpu],
            "several": [len(operator.models), len(operator.optimizers), len(operator.schedulers)],
            "one": [
                type(operator.model).__name__,
                type(operator.optimizer).__name__,
                type(operator.criterion).__name__,
            ],
            "loaders": [len(operator.train_loader), len(operator.validation_loader)],
        }

    with TorchTrainer(**FULL) as trainer:
        found = trainer.apply_all_operators(around)
    for rank, each in enumerate(found):
        assert each == {
            "ranks": [rank, rank, 2],
            "batch": 13,
            "device": "cpu",
            "half": [False, False],
            "several": [1, 1, 0],
            "one": [DistributedDataParallel.__name__, "Adam", "CrossEntropyLoss"],
            "loaders": [10, 5],
        }


def given_loss(config: dict[str, Any]) -> Any:
    return nn.CrossEntropyLoss(label_smoothing=0.0)


@pytest.mark.parametrize(
    ("loss", "data"),
    [
        (nn.CrossEntropyLoss(), training.make_data),
        (nn.functional.cross_entropy, lambda config: training.Pairs()),
        (given_loss, lambda config: (training.Pairs(), training.Pairs(101))),
    ],
    ids=["an instance", "a function, and a dataset", "of config, and two datasets"],
)
def test_what_creators_may_return(loss: Any, data: Any) -> None:
    """A loss of any kind, and loaders or datasets, give the same training; without DDP by one argument."""
    settings = {**FULL, "loss_creator": loss, "data_creator": data, "parallel": "none"}
    with TorchTrainer(**settings) as trainer:
        found = trainer.train()
        assert (found["num_samples"], found["batch_count"]) == (250, 10)
        assert found["train_loss"] == pytest.approx(0.5832, abs=0.25)
        assert trainer.apply_all_operators(lambda operator: type(operator.model).__name__) == ["Sequential"] * 2


def test_several_optimizers_or_schedulers_need_an_operator() -> None:
    def optimizers(model: nn.Module, config: dict[str, Any]) -> Any:
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model[0], model[3])]  # type: ignore[index]

    def schedulers(optimizer: Any, config: dict[str, Any]) -> Any:
        return [torch.optim.lr_scheduler.ConstantLR(optimizer), torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]

    for changed, words in (
        ({"optimizer_creator": optimizers}, "there are 2 optimizers, and train_batch of TrainingOperator uses one"),
        ({"scheduler_creator": schedulers}, "there are 2 schedulers, and train_batch of TrainingOperator uses one"),
    ):
        with TorchTrainer(**{**FULL, "num_workers": 1, **changed}) as trainer:
            assert trainer.validate()["num_samples"] == 101
            with pytest.raises(WrongReturn, match=words):
                trainer.train()


def test_an_operator_trains_several_of_each_that_creators_return() -> None:
    """Two models, two optimizers and two schedulers; those that look at a metric are given it."""
    several = {
        "model_creator": lambda config: [nn.Linear(4, 2), nn.Linear(4, 2)],
        "optimizer_creator": lambda models, config: [torch.optim.SGD(each.parameters(), lr=0.1) for each in models],
        "scheduler_creator": lambda optimizers, config: [
            torch.optim.lr_scheduler.ReduceLROnPlateau(each, factor=0.5, patience=0) for each in optimizers
        ],
        "training_operator_cls": training.Both,
        "scheduler_step_freq": "manual",
    }
    with TorchTrainer(**{**FULL, "num_workers": 1, **several}) as trainer:
        first, second = trainer.train(), trainer.train()
        assert second["first_loss"] < first["first_loss"]
        assert second["second_loss"] < first["second_loss"]
        trainer.update_scheduler(1.0)
        assert trainer.apply_all_operators(training.rates_of) == [[0.1, 0.1]]
        trainer.update_scheduler(2.0)
        assert trainer.apply_all_operators(training.rates_of) == [[0.05, 0.05]]
        assert sorted(trainer.state_dict()) == sorted(
            ["operator", *(f"{what}{at}" for what in ("model", "optimizer", "scheduler") for at in range(2))]
        )


class Idle(TrainingOperator):
    """Asks for no batch."""

    def train_epoch(self, iterator: Any, info: dict[str, Any]) -> dict[str, Any]:
        return {"num_samples": 0}


def test_an_operator_that_asks_for_no_batch_is_named() -> None:
    given = {**FULL, "num_workers": 1, "training_operator_cls": Idle}
    with (
        TorchTrainer(**given) as trainer,
        pytest.raises(WrongReturn, match="gave no batch: train_epoch asked for none"),
    ):
        trainer.train()
