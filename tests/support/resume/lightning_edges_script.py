"""What scripts of Lightning do beside the plainest `fit`; MODE says which.

KILL="1:5" is a SIGKILL in the training batch 5 of epoch 1, KILL="fitted" one behind `fit`. Writes to SEEN.<rank> as
`tools_script` does.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import random
import signal
import time
from typing import Any

import lightning.pytorch as pl  # type: ignore[import-not-found, unused-ignore]
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from elastic_agent.worker.loop.log import NAME
from support.resume.tools_script import CHECKPOINTS, KILL, RANKS, tell, used

MODE = os.environ["MODE"]


def may_die(place: str) -> None:
    """Not before there is a checkpoint, where MODE depends on one."""
    if place == KILL:
        end_s = time.monotonic() + 30
        while MODE == "files" and not list(CHECKPOINTS.glob("step-*")) and time.monotonic() < end_s:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)


class Numbers(Dataset):  # type: ignore[type-arg]
    """Its index, and a random draw."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index), random.random()])


class Stream(IterableDataset):  # type: ignore[type-arg]
    """Keeps its place by itself, also where an iterator is given up."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Any:
        while self.at < 22:
            self.at += 1
            yield torch.tensor([float(self.at), random.random()])
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Mean(pl.Callback):  # type: ignore[misc, unused-ignore]
    """Whose state is there once the training has begun."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if not hasattr(self, "mean"):
            self.mean = pl_module.head.weight.detach().clone()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self.mean = self.mean * 0.9 + pl_module.head.weight.detach() * 0.1

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean = state["mean"]


class Model(pl.LightningModule):  # type: ignore[misc, unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.2))
        self.head = torch.nn.Linear(4, 1)

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        predicted: torch.Tensor = self.head(self.body(batch)).squeeze(1)
        return ((predicted - batch[:, 0] / 20) ** 2).mean()

    def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor | None:
        used(self.current_epoch, number, batch)
        may_die(f"{self.current_epoch}:{number}")
        loss = self.loss(batch)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: torch.Tensor, number: int) -> None:
        may_die(f"validated {self.current_epoch}:{number}")
        self.log("validated", self.loss(batch))

    def test_step(self, batch: torch.Tensor, number: int) -> None:
        self.log("tested", self.loss(batch))

    def on_validation_end(self) -> None:
        if not self.trainer.sanity_checking:
            tell("validation", self.current_epoch, float(self.trainer.callback_metrics["validated"]), [], [])

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=getattr(self, "lr", 0.02))


def trainer_of(*callbacks: Any, **options: Any) -> Any:
    pl.seed_everything(3, verbose=False)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    options = {"max_epochs": 3, "enable_checkpointing": False, **options}
    options |= {"devices": RANKS, "strategy": "ddp" if RANKS > 1 else "auto"}
    return pl.Trainer(callbacks=list(callbacks), **quiet, **options)


def fit(trainer: Any, model: Any, train: Any = None, **options: Any) -> None:
    train = DataLoader(Numbers(24), 4 // RANKS, shuffle=True) if train is None else train
    trainer.fit(model, train, DataLoader(Numbers(18), 4 // RANKS), **options)


def end(trainer: Any, model: Any, name: str = "end") -> None:
    state = model.state_dict()
    digest = hashlib.sha256(b"".join(state[name].cpu().numpy().tobytes() for name in sorted(state))).hexdigest()
    metrics = {name: float(value) for name, value in sorted(trainer.callback_metrics.items())}
    tell(name, 0, digest, metrics, [trainer.current_epoch, trainer.global_step])


def twice() -> None:
    """The same Trainer fits again, to more epochs."""
    trainer, model = trainer_of(max_epochs=2), Model()
    fit(trainer, model)
    end(trainer, model, "first")
    may_die("fitted")
    trainer.fit_loop.max_epochs = 4
    fit(trainer, model)
    end(trainer, model)


def behind() -> None:
    """A test of the model behind `fit`, over samples that are drawn."""
    trainer, model = trainer_of(), Model()
    fit(trainer, model)
    end(trainer, model)
    may_die("fitted")
    tell("tested", 0, trainer.test(model, DataLoader(Numbers(18), 4), verbose=False), [], [])


def averaged() -> None:
    """A callback that validates an average of the weights, and leaves it in the model at the end."""
    from lightning.pytorch.callbacks import EMAWeightAveraging  # type: ignore[import-not-found, unused-ignore]

    trainer, model = trainer_of(EMAWeightAveraging(decay=0.9)), Model()
    fit(trainer, model)
    end(trainer, model)
    may_die("fitted")


def accumulated() -> None:
    """A callback that sets at the start of an epoch how many batches make a step."""
    from lightning.pytorch.callbacks import GradientAccumulationScheduler as Scheduler

    trainer, model = trainer_of(Scheduler({0: 1, 1: 3})), Model()
    fit(trainer, model)
    end(trainer, model)


def unfrozen() -> None:
    """A part of the model is trained from epoch 1 on, another is put into another mode then."""
    from lightning.pytorch.callbacks import BaseFinetuning

    class Later(BaseFinetuning):  # type: ignore[misc, unused-ignore]
        def freeze_before_training(self, pl_module: Any) -> None:
            self.freeze(pl_module.body, train_bn=False)

        def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
            if epoch == 1:
                self.unfreeze_and_add_param_group(pl_module.body, optimizer, lr=0.01)
                pl_module.body[2].eval()

    class Head(Model):
        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.head.parameters(), lr=0.02)

    trainer, model = trainer_of(Later()), Head()
    fit(trainer, model)
    end(trainer, model)
    may_die("fitted")
    tell("trained", 0, [each.requires_grad for each in model.parameters()], model.body[2].training, [])


def files() -> None:
    """Lightning's own checkpoints, of the best and the last."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    own = ModelCheckpoint(CHECKPOINTS / "own", "best", monitor="validated", save_last=True)
    numbered = ModelCheckpoint(CHECKPOINTS / "numbered", every_n_train_steps=4, save_top_k=1)
    trainer, model = trainer_of(own, numbered, enable_checkpointing=True), Model()
    fit(trainer, model)
    end(trainer, model)
    written = [path for folder in ("own", "numbered") for path in sorted((CHECKPOINTS / folder).iterdir())]
    steps = [torch.load(path, weights_only=True)["global_step"] for path in written]
    tell("files", 0, [path.name for path in written], steps, float(own.best_model_score))


def path() -> None:
    """Goes on from Lightning's own last checkpoint, where there is none of this library's."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Tells(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "ckpt_path" in record.getMessage():
                tell("warned", 0, record.getMessage(), [], [])

    logging.getLogger(NAME).addHandler(Tells())
    own = ModelCheckpoint(CHECKPOINTS / "own", save_last=True, every_n_train_steps=3)
    trainer, model = trainer_of(own, enable_checkpointing=True), Model()
    last = CHECKPOINTS / "own" / "last.ckpt"
    fit(trainer, model, ckpt_path=last if last.exists() else None)
    end(trainer, model)


def searched() -> None:
    """A callback searches a rate as `fit` begins, and takes back what it trained for that."""
    from lightning.pytorch.callbacks import LearningRateFinder

    model = Model()
    model.lr = 0.02
    trainer = trainer_of(LearningRateFinder(num_training_steps=5))
    fit(trainer, model)
    end(trainer, model)


def tuned() -> None:
    """The Tuner searches a rate before `fit`."""
    from lightning.pytorch.tuner import Tuner  # type: ignore[import-not-found, unused-ignore]

    trainer, model = trainer_of(), Model()
    model.lr = 0.02
    Tuner(trainer).lr_find(model, DataLoader(Numbers(80), 4, shuffle=True), num_training=16)
    tell("found", 0, model.lr, [], [])
    may_die("tuned")
    fit(trainer, model)
    end(trainer, model)


def stopped() -> None:
    """A callback ends the training within an epoch, as `Timer` does; Lightning validates what it has."""

    class Stops(pl.Callback):  # type: ignore[misc, unused-ignore]
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            trainer.should_stop = trainer.should_stop or trainer.global_step == 9

    trainer, model = trainer_of(Stops()), Model()
    fit(trainer, model)
    end(trainer, model)


def swa() -> None:
    """Another schedule and an average of weights by epochs, and a last epoch for the model's BatchNorm."""
    from lightning.pytorch.callbacks import StochasticWeightAveraging

    trainer, model = trainer_of(StochasticWeightAveraging(0.05, swa_epoch_start=1, annealing_epochs=2)), Model()
    fit(trainer, model)
    end(trainer, model)
    tell("rates", 0, [group["lr"] for group in trainer.optimizers[0].param_groups], [], [])


class Roots(Model):
    """Optimizes by hand a loss whose backward pass needs its value."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.automatic_optimization = torch.nn.Sequential(torch.nn.Linear(2, 4)), False

    def training_step(self, batch: torch.Tensor, number: int) -> None:
        used(self.current_epoch, number, batch)
        may_die(f"{self.current_epoch}:{number}")
        loss, optimizer = torch.sqrt(self.loss(batch)), self.optimizers()
        before = float(loss)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        assert float(loss) == before


def roots() -> None:
    """The ranks' parts of the last batch differ."""
    trainer, model = trainer_of(), Roots()
    fit(trainer, model, DataLoader(Numbers(23), 4 // RANKS, shuffle=True))
    end(trainer, model)


class Listing(Roots):
    """Keeps a metric that lists what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = importlib.import_module("torchmetrics").CatMetric()

    def training_step(self, batch: torch.Tensor, number: int) -> None:
        super().training_step(batch, number)
        self.seen.update(batch[:, 0])

    def on_train_epoch_end(self) -> None:
        seen = self.seen.compute().tolist()
        tell("listed", self.current_epoch, seen if RANKS > 1 else sorted(seen), [], [])
        self.seen.reset()


def listed() -> None:
    trainer, model = trainer_of(), Listing()
    fit(trainer, model)
    end(trainer, model)


class Collecting(Model):
    """Collects what a validation gives in a list, as Lightning's documentation has it."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: list[torch.Tensor] = []

    def validation_step(self, batch: torch.Tensor, number: int) -> None:
        may_die(f"validated {self.current_epoch}:{number}")
        self.outputs.append(self.loss(batch))

    def on_validation_epoch_end(self) -> None:
        self.log("validated", torch.stack(self.outputs).mean())
        self.outputs.clear()


def collected() -> None:
    trainer, model = trainer_of(), Collecting()
    fit(trainer, model)
    end(trainer, model)


class Paired(Model):
    def training_step(self, batch: Any, number: int) -> torch.Tensor | None:
        return super().training_step(batch["first"], number)

    def validation_step(self, batch: Any, number: int, loader: int = 0) -> None:
        super().validation_step(batch, number)


def combined() -> None:
    """Loaders that the script has combined, asked for in each epoch, and a model in double precision."""
    from lightning.pytorch.utilities import CombinedLoader  # type: ignore[import-not-found, unused-ignore]

    trainer, model = trainer_of(reload_dataloaders_every_n_epochs=1, precision="64-true"), Paired()
    loaders = {name: DataLoader(Numbers(24), 4, shuffle=True) for name in ("first", "second")}
    trained, validated = CombinedLoader(loaders, "min_size"), CombinedLoader([DataLoader(Numbers(18), 4)], "sequential")
    trainer.fit(model, trained, validated)
    end(trainer, model)


def late() -> None:
    trainer, model = trainer_of(mean := Mean()), Model()
    fit(trainer, model)
    end(trainer, model)
    tell("mean", 0, mean.mean.tolist(), [], [])


def stream() -> None:
    trainer, model = trainer_of(), Model()
    fit(trainer, model, DataLoader(Stream(), 4))
    end(trainer, model)


if __name__ == "__main__":
    globals()[MODE]()
