"""Calls of train() of Hugging Face's Trainer, and what they return and log; MODE says which.

KILL="1:5" is a SIGKILL before the step 5 of epoch 1, of call 2 KILL="11:5"; KILL="save:6" one in `on_save` of step 6,
and KILL="evaluate:6" one behind the evaluation there. Writes to SEEN.<rank> as `tools_script` does.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, Subset
from transformers import (  # type: ignore[import-not-found, unused-ignore]
    EarlyStoppingCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from elastic_agent.worker.errors import NotResumable
from elastic_agent.worker.frameworks.hugging_face import Exact
from support.resume.edges_script import Counted
from support.resume.tools_script import CHECKPOINTS, KILL, Numbers, end, loss_of, may_die, tell, used

calls = 0


class Ours(Exact, Trainer):  # type: ignore[misc, unused-ignore]
    pass


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(1, 1)
        self.step = -1

    def forward(self, x: torch.Tensor, labels: Any = None) -> Any:
        if self.training:
            used(calls * 10 + self.step // 16, self.step % 16, x)
        loss = loss_of(self.net, x) * (1 + torch.rand(()))
        return {"loss": loss, "logits": x}


class Dies(TrainerCallback):  # type: ignore[misc, unused-ignore]
    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        model.step = state.global_step
        may_die(calls * 10 + state.global_step // 16, state.global_step % 16)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._die(f"save:{state.global_step}")

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._die(f"evaluate:{state.global_step}")

    def _die(self, place: str) -> None:
        if place == KILL:
            os.kill(os.getpid(), signal.SIGKILL)


def collated(samples: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"x": torch.stack(samples), "labels": torch.zeros(len(samples))}


def trainer_of(data: Any, callbacks: Any = (), kind: Any = Ours, **options: Any) -> Any:
    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "remove_unused_columns": False}
    usual = {"logging_steps": 5, "save_steps": 4, "num_train_epochs": 1, "learning_rate": 0.01, "save_total_limit": 2}
    args = TrainingArguments(str(CHECKPOINTS), per_device_train_batch_size=4, **(quiet | usual | options))
    return kind(
        model=Model(), args=args, train_dataset=data, eval_dataset=Subset(Numbers(), range(8)),
        data_collator=collated, callbacks=[*callbacks, Dies()],
    )  # fmt: skip


def trained(trainer: Any, **options: Any) -> None:
    """A call of train(), with what it returned, logged and left."""
    global calls  # noqa: PLW0603 - the call that goes on now
    done = trainer.train(**options)
    timed = ("runtime", "per_second", "flos")
    log = [
        {name: value for name, value in entry.items() if not any(word in name for word in timed)}
        for entry in trainer.state.log_history
    ]
    weights = [value.flatten().tolist() for value in trainer.model.net.state_dict().values()]
    tell("call", calls, [done.global_step, done.training_loss, trainer.state.epoch, weights], log, [])
    tell("evaluated", calls, trainer.evaluate()["eval_loss"], [], [])
    calls += 1


def stages() -> None:
    """A Trainer that trains again, on other data at another rate, and then longer."""
    torch.manual_seed(1)
    trainer = trainer_of(Subset(Numbers(), range(32)))
    trained(trainer)
    trainer.train_dataset, trainer.args.learning_rate = Subset(Numbers(), range(24, 64)), 0.05
    trained(trainer)
    trainer.args.num_train_epochs = 2
    trained(trainer, resume_from_checkpoint=True)
    end(trainer.model.net)


def folds() -> None:
    """A new model a fold, of random numbers behind the fold before, and data of other lengths, in one output_dir."""
    for count in (40, 48):
        trainer = trainer_of(Subset(Numbers(), range(count)))
        trained(trainer)
        end(trainer.model.net)


class Own(Ours):
    """Makes its loader and takes its steps itself, without the methods of its bases."""

    def get_train_dataloader(self) -> Any:
        data = DataLoader(self.train_dataset, self.args.train_batch_size, shuffle=True, collate_fn=self.data_collator)
        return self.accelerator.prepare(data)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None, **_: Any) -> Any:
        model.train()
        loss = self.compute_loss(model, self._prepare_inputs(inputs))
        self.accelerator.backward(loss)
        return loss.detach()


def own() -> None:
    """As `epochs`, with an evaluation at the end of each."""
    trainer = trainer_of(Numbers(), kind=Own, eval_strategy="epoch", num_train_epochs=2)
    trained(trainer)
    end(trainer.model.net)


BEST = {
    "eval_strategy": "steps", "eval_steps": 2, "save_steps": 2, "num_train_epochs": 2, "eval_on_start": True,
    "metric_for_best_model": "eval_loss", "greater_is_better": False, "load_best_model_at_end": True,
}  # fmt: skip


def early() -> None:
    """Ends before its last step, as no evaluation is better enough."""
    trainer = trainer_of(Numbers(), [EarlyStoppingCallback(2, 1000.0)], **BEST)
    trained(trainer)
    end(trainer.model.net)


def epochs() -> None:
    """Ends in the middle of an epoch; checkpoints in steps, evaluations and logs behind epochs."""
    options = {"eval_strategy": "epoch", "logging_strategy": "epoch", "num_train_epochs": 2.5, "ignore_data_skip": True}
    trainer = trainer_of(Numbers(), **options)
    trained(trainer)
    end(trainer.model.net)


class Later(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Freezes the model as a training begins, and lets it train from its step 6 on."""

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        model.net.bias.requires_grad_(False)

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if state.global_step == 6:
            model.net.bias.requires_grad_(True)


def later() -> None:
    trainer = trainer_of(Numbers(), [Later()])
    trained(trainer)
    end(trainer.model.net)


class Longer(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Ends the training with a checkpoint, in the first start."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if os.environ.get("LIMIT") == str(state.global_step):
            control.should_save = control.should_training_stop = True


def limit() -> None:
    """A callback ends the training at a limit, and the next start has a longer one."""
    trainer = trainer_of(Numbers(), [Longer()])
    trained(trainer)
    end(trainer.model.net)


class Plain(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return (torch.tensor([float(number), float(torch.rand(()))]) for number in range(24))


def stream() -> None:
    """A stream that can say where it is; one that cannot is refused."""
    try:
        trainer_of(Plain(), max_steps=3).train()
    except NotResumable as refused:
        tell("refused", 0, str(refused), [], [])
    trainer = trainer_of(Counted(), max_steps=18)
    trained(trainer)
    end(trainer.model.net)


def replay() -> None:
    Ours.replay = True
    trainer = trainer_of(Plain(), max_steps=18)
    trained(trainer)
    end(trainer.model.net)


if __name__ == "__main__":
    torch.manual_seed(7)
    globals()[os.environ["MODE"]]()
