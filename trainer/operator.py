"""`TrainingOperator`: what a worker does with models, optimizers and batches; programs override parts of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .errors import WrongReturn
from .meters import NOTHING, Meters, Timers
from .names import NUM_SAMPLES, SCHEDULER_STEP, STEPS

if TYPE_CHECKING:
    import torch

    from .in_worker.surroundings import Surroundings


class TrainingOperator:
    """One for each worker. With creators, models, optimizers, data and loss are registered before `setup`; without,
    `setup` registers them."""

    def __init__(self, surroundings: Surroundings) -> None:
        """Made by the trainer. surroundings: rank, device and job of this worker."""
        self._around = surroundings
        self._models: list[Any] = []
        self._wrapped: list[Any] = []
        self._optimizers: list[Any] = []
        self._schedulers: list[Any] = []
        self._criterion: Any = None
        self._loaders: dict[str, Any] = {}
        self._meters = Meters()
        self._scaler: Any = None
        self._fitting: set[str] = set()
        """Methods for which there are as many models, optimizers and schedulers as they use."""
        self.timers = Timers()
        """`with self.timers.record("name"):` adds to the times that `profile=True` returns."""
        self.global_step = 0
        """Batches trained on, over all passes and restarts."""
        self.epoch = 0
        """Passes over the training data that are over."""

    # -- to override ---------------------------------------------------------------------------------------------------

    def setup(self, config: dict[str, Any]) -> None:
        """Called once, before anything is trained: register what no creator made."""

    def train_epoch(self, iterator: Iterable[Any], info: dict[str, Any]) -> dict[str, Any]:
        """One pass over the training data: one batch after the other through `train_batch`. Returns this worker's
        values; `num_samples` among them says how many samples they are means over.

        After a restart in the middle, the iterator gives the batches that are left. The values of this method are
        kept over it; those that an override keeps in variables of its own are not.
        """
        steps, around = info[SCHEDULER_STEP], self._around
        for number, batch in enumerate(iterator, info["batch_idx"]):
            batch_info = {
                "batch_idx": number,
                "global_step": self.global_step,
                NUM_SAMPLES: around.samples,
                "weight": around.weight,
            }
            metrics = self.train_batch(batch, batch_info)
            self._count(metrics, "train_batch", batch_info)
            if steps == "batch":
                for scheduler in self._schedulers:
                    scheduler.step()
        return self._meters.summary()

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        """Train on one batch: forward, backward, one step of the optimizer. Returns means over the batch, such as
        `train_loss`. With one model and one optimizer; others override it."""
        self._only_one("train_batch")
        *features, target = self._parts_of(batch)
        with self.timers.record("forward"), self.autocast():
            loss = self._criterion(self._wrapped[0](*features), target)
        if not loss.requires_grad:
            raise WrongReturn(
                "the loss has no gradient: no parameter of the model needs one, or the loss is detached from them; "
                "train a parameter with requires_grad=True, without torch.no_grad() around it"
            )
        with self.timers.record("backward"):
            self._optimizers[0].zero_grad()
            self.backward(loss)
        with self.timers.record("optimizer"):
            self.step(self._optimizers[0])
        return {"train_loss": loss.item()}

    def validate(self, iterator: Iterable[Any], info: dict[str, Any]) -> dict[str, Any]:
        """One pass over the validation data, under `torch.no_grad()` and with models in `eval()`."""
        for number, batch in enumerate(iterator, info["batch_idx"]):
            batch_info = {"batch_idx": number, NUM_SAMPLES: self._around.samples, "weight": self._around.weight}
            self._count(self.validate_batch(batch, batch_info), "validate_batch", batch_info)
        return self._meters.summary()

    def validate_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        """Means over one batch of the validation data: `val_loss`, and `val_accuracy` for a classification (an output
        of one row of scores a sample, and targets that are whole numbers)."""
        self._only_one("validate_batch")
        *features, target = self._parts_of(batch)
        with self.timers.record("evaluation"), self.autocast():
            # Not through DDP: ranks may have unequal numbers of batches to wait for each other in.
            output = self._models[0](*features)
            loss = self._criterion(output, target)
        metrics = {"val_loss": loss.item()}
        scores = getattr(output, "ndim", 0) == 2 and output.shape[1] > 1
        if scores and target.ndim == 1 and not target.is_floating_point():
            metrics["val_accuracy"] = (output.argmax(1) == target).double().mean().item()
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """What an override keeps of its own, beside models, optimizers and schedulers: plain data and tensors."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""

    # -- to call -------------------------------------------------------------------------------------------------------

    def register(
        self, *, models: Any, optimizers: Any = None, criterion: Any = None, schedulers: Any = None
    ) -> tuple[Any, ...] | Any:
        """Hand over what is trained, in `setup`; one of each, or a list or tuple. Returns models (on this worker's
        device, in DDP), optimizers, criterion and schedulers, those that were given. Raises WrongReturn."""
        made = self._around.registering.register(self, models, optimizers, criterion, schedulers)
        return made[0] if len(made) == 1 else made

    def register_data(self, *, train_loader: Any = None, validation_loader: Any = None) -> None:
        """Hand over the data, in `setup`: DataLoaders, or datasets. Raises WrongReturn."""
        self._around.registering.register_data(self, train_loader, validation_loader)

    def backward(self, loss: torch.Tensor) -> None:
        """Gradients of a loss that is the mean over this worker's part of the batch, so that over all workers they are
        those of the mean over all samples; scaled for fp16."""
        around = self._around
        if not around.weighs_in_ddp and around.weight != 1.0:
            loss = loss * around.weight
        if self._scaler is not None:
            loss = self._scaler.scale(loss)
        loss.backward()

    def step(self, optimizer: Any) -> None:
        """A step of the optimizer; with fp16, of the scaler."""
        if self._scaler is None:
            optimizer.step()
        else:
            self._scaler.step(optimizer)
            self._scaler.update()

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Mixed precision where it is asked for. Models and the loss that are registered have it by themselves; this is
        for what else an override computes."""
        if self._around.amp_dtype is None:
            return NOTHING
        import torch

        return torch.autocast(self.device.type, dtype=self._around.amp_dtype)

    def to_device(self, batch: Any) -> Any:
        """A batch with its tensors on this worker's device; batches of the loaders are there already."""
        return self._around.to_device(batch)

    @property
    def model(self) -> Any:
        """The only model, in DDP. Raises WrongReturn where there are several."""
        return self._one("model", self._wrapped)

    @property
    def models(self) -> list[Any]:
        """All models, in DDP."""
        return list(self._wrapped)

    @property
    def optimizer(self) -> Any:
        """The only optimizer. Raises WrongReturn where there are several."""
        return self._one("optimizer", self._optimizers)

    @property
    def optimizers(self) -> list[Any]:
        return list(self._optimizers)

    @property
    def scheduler(self) -> Any:
        """The only scheduler, or None. Raises WrongReturn where there are several."""
        return self._one("scheduler", self._schedulers) if self._schedulers else None

    @property
    def schedulers(self) -> list[Any]:
        return list(self._schedulers)

    @property
    def criterion(self) -> Any:
        """The loss function that was registered."""
        return self._criterion

    @property
    def train_loader(self) -> Any:
        """What the trainer iterates in `train`; None without."""
        return self._loaders.get("train")

    @property
    def validation_loader(self) -> Any:
        """What the trainer iterates in `validate`; None without."""
        return self._loaders.get("validation")

    @property
    def config(self) -> dict[str, Any]:
        """The trainer's `config`, with this worker's part of the batch size."""
        return self._around.config

    @property
    def world_rank(self) -> int:
        """This worker's number among all, from 0."""
        return self._around.rank

    @property
    def local_rank(self) -> int:
        """This worker's number on its node, from 0."""
        return self._around.local_rank

    @property
    def world_size(self) -> int:
        """Workers of the job now."""
        return self._around.world_size

    @property
    def device(self) -> torch.device:
        return self._around.device

    @property
    def use_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def use_fp16(self) -> bool:
        """Whether forward passes run in half precision with a gradient scaler."""
        return self._scaler is not None

    @property
    def use_tqdm(self) -> bool:
        return self._around.use_tqdm

    @property
    def weight(self) -> float:
        """What the loss of the batch in hand is multiplied by where `backward` is not used and models are in no DDP:
        this worker's share of the samples, times the number of workers."""
        return self._around.weight

    @property
    def num_samples(self) -> int:
        """Samples of this worker in the batch in hand. 0: the last batch of a pass has fewer samples than there are
        workers, and what this one was given instead, so that no other waits for it, does not count."""
        return int(self._around.samples)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _parts_of(self, batch: Any) -> Sequence[Any]:
        if isinstance(batch, (list, tuple)) and len(batch) >= 2:
            return batch
        raise WrongReturn(
            f"a batch is a {type(batch).__name__}, and must be a list or tuple of features and target: override "
            "train_batch and validate_batch of TrainingOperator for other batches"
        )

    def _count(self, metrics: Any, method: str, batch_info: dict[str, Any]) -> None:
        if not isinstance(metrics, dict):
            raise WrongReturn(f"{method} returned a {type(metrics).__name__}, and must return a dict of numbers")
        samples = batch_info[NUM_SAMPLES]
        if NUM_SAMPLES in metrics:
            metrics = dict(metrics)
            samples = metrics.pop(NUM_SAMPLES)
        self._meters.add(metrics, samples, method)

    def _only_one(self, method: str) -> None:
        if method in self._fitting:
            return
        trains = method == "train_batch"
        for what, things, least, most in (
            ("models", self._models, 1, 1),
            ("optimizers", self._optimizers, int(trains), 1 if trains else len(self._optimizers)),
            ("schedulers", self._schedulers, 0, 1 if trains else len(self._schedulers)),
        ):
            if not least <= len(things) <= most:
                raise WrongReturn(
                    f"there are {len(things)} {what}, and {method} of TrainingOperator uses one: give "
                    f"training_operator_cls, a subclass that overrides {method}"
                )
        if self._criterion is None:
            raise WrongReturn(f"there is no loss for {method}: give loss_creator, or override {method}")
        self._fitting.add(method)

    def _one(self, what: str, things: list[Any]) -> Any:
        if len(things) != 1:
            raise WrongReturn(f"there are {len(things)} {what}s: use self.{what}s")
        return things[0]


def validates(operator: TrainingOperator) -> bool:
    """Whether there is data to validate with."""
    return operator.validation_loader is not None


def check_steps(value: str) -> str:
    """When schedulers step. Raises WrongReturn where it is none of `STEPS`."""
    if value not in STEPS:
        raise WrongReturn(f"scheduler_step_freq={value!r}: it is one of {', '.join(STEPS)}")
    return value


def check_scheduled(operator: TrainingOperator, steps: str) -> None:
    """Whether the trainer can step the operator's schedulers. Raises WrongReturn for one that is given a metric."""
    from torch.optim.lr_scheduler import ReduceLROnPlateau

    own = steps == "batch" and type(operator).train_epoch is not TrainingOperator.train_epoch
    if steps == "manual" or own or not any(type(each) is ReduceLROnPlateau for each in operator.schedulers):
        return
    raise WrongReturn(
        f"ReduceLROnPlateau steps by a metric, and scheduler_step_freq={steps!r} has none: give "
        "scheduler_step_freq='manual', and call update_scheduler(metric) after validate()"
    )
