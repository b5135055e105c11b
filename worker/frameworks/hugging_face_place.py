"""Where a call of the Trainer's `train()` goes on: the place of its loader, what its checkpoints lack, and how the loss
of this rank's part of a batch is weighed."""

from __future__ import annotations

import json
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..checks import frozen_in, set_frozen
from ..errors import NotResumable, WrongState
from ..loop.log import RunLog
from .script_loops import split_batch
from .stateful import AT_END, NoRun, StatefulLoader

PLACE = "elastic-agent-loader.pt"
BATCHES = "elastic-agent-batches.json"
"""What the Trainer's count of steps means in samples; it would be another place with batches of another size."""
RECORD = "elastic-agent-train.json"
_MODEL = "the model"
_UNKNOWN = (
    "ranks have parts of a batch that differ, and {}.compute_loss does not say whether it divides by "
    "num_items_in_batch, so that its loss is taken for one that does: set loss_is_scaled_for_ga to True or False in "
    "that class"
)
_UNWEIGHED = (
    "ranks have parts of a batch that differ, and {}.training_step does not call self.accelerator.backward(loss), so "
    "that the loss is not weighed by its samples: call that in the place of loss.backward()"
)
_ended: dict[Path, int] = {}
"""Calls of `train()` of this process that came to their end, by `output_dir`. One that raised is not counted: what
follows it goes on with its checkpoints."""


def call_of(output: str) -> int:
    """The number of the call of `train()` that begins now."""
    return _ended.get(Path(output).resolve(), 0) + 1


def call_ended(output: str) -> None:
    _ended[Path(output).resolve()] = call_of(output)


@dataclass
class Record:
    """What a checkpoint of the Trainer lacks of its training."""

    call: int
    step: int
    begun_step: int
    """Where this call of `train()` began, other than 0 where it went on with what another one had trained."""
    seconds: float
    """Of all starts."""
    total_loss: float
    """Up to the last step that was logged."""
    logged_step: int
    losses: list[float]
    """Of each rank since then."""
    epoch_ended: bool
    """Whether it was saved behind an epoch, and not in a step."""
    early_end: bool
    """Whether an EarlyStoppingCallback had ended the training."""
    epoch_left: bool
    """Whether a callback had ended the epoch before its last batch."""
    max_steps: int
    grad_norm: float | None
    learning_rate: float | None
    """Of the last step, for what the Trainer logs at the end of its epoch."""
    frozen: str = ""
    """For each parameter of the model in turn 1 where it does not require gradients, else 0; empty: not known."""

    def loss(self, rank: int, ranks: int) -> float:
        """Of another number of ranks each gets the mean, which is what the Trainer logs."""
        return self.losses[rank] if ranks == len(self.losses) else sum(self.losses) / len(self.losses)

    def set_frozen(self, model: Any, log: RunLog) -> None:
        """Lets those parameters require gradients that did, whatever a script sets as each start begins."""
        if self.frozen:
            set_frozen({_MODEL: model}, {_MODEL: self.frozen}, f"the checkpoint of step {self.step}", log)

    def is_over(self, max_steps: int) -> bool:
        """Whether the training has come to its end, if it has `max_steps` now."""
        return self.step >= max_steps or (self.early_end and self.max_steps == max_steps)

    def write(self, folder: Path) -> None:
        (folder / RECORD).write_text(json.dumps(asdict(self)))


def frozen_of(model: Any) -> str:
    """As `Record` has it."""
    return frozen_in({_MODEL: model})[_MODEL]


def record_in(folder: Path) -> Record | None:
    """None in a checkpoint of a version before, or of another tool."""
    return Record(**json.loads((folder / RECORD).read_bytes())) if (folder / RECORD).exists() else None


def has_ended_early(callbacks: list[Any]) -> bool:
    """Whether an EarlyStoppingCallback among these has lost its patience. Another one that ends the training may mean
    that it is to go on later, as at a limit of time."""
    kind = sys.modules["transformers.trainer_callback"].EarlyStoppingCallback
    found = [each for each in callbacks if isinstance(each, kind)]
    return any(each.early_stopping_patience_counter >= each.early_stopping_patience for each in found)


class Epochs:
    """The Trainer's training loader: it says `set_epoch`, and by how many batches it begins later."""

    def __init__(self, loader: Any, args: Any, place: dict[str, Any] | None, replay: bool) -> None:
        """place: of a checkpoint. Before transformers 5 the Trainer's own count of epochs begins anew with a stream,
        whose length it does not know, so it says only by how many epochs to go on.

        Raises NotResumable."""
        self._args, self._skipped, self._place, self._earlier = args, 0, place, 0
        self._placed, self._told = place is not None, False
        self._epoch: int | None = None
        self.weights: deque[float] = deque()
        """Of this rank's parts of the batches that were handed out and not trained yet: all of a step come first."""
        self._weight = 1.0
        try:
            whole = split_batch(loader) if splits(args) else None
            self._loader = StatefulLoader(loader, NoRun(seed_of(args)), "train", global_batch=whole, replay=replay)
        except NotResumable as refused:
            raise NotResumable(_in_words_of_the_trainer(str(refused))) from None
        self.dataset, self.batch_sampler, self.log = loader.dataset, None, RunLog(args.process_index)

    def __len__(self) -> int:
        return len(self._loader)

    def next_weight(self) -> float:
        """Of this rank's part of the batch that is trained now."""
        if self.weights:
            self._weight = self.weights.popleft()
        return self._weight

    def place(self) -> dict[str, Any]:
        """After the batch that was handed out last; after an epoch's last one the Trainer begins the next epoch."""
        return {**self._loader.state_dict(), AT_END: False}

    def begins(self, record: Record | None) -> tuple[int, int] | None:
        """The epoch to go on in, and how many of its batches are over; the Trainer counts epochs by these from now on.
        None without a place."""
        if self._place is None:
            return None
        self._told = True
        epoch, position = int(self._place["epoch"]), int(self._place["position"])
        left = record is not None and record.epoch_ended and record.epoch_left
        if left and position and self._place["stream"] is None:
            self._place |= {"epoch": epoch + 1, "position": 0}
            return epoch + 1, 0
        if record is not None and not record.epoch_ended and epoch and not position:
            return epoch - 1, len(self)
        return epoch, -(-position // int(self._place["loader"]["batch"]))

    def skip(self, batches: int) -> None:
        """Of the epoch that is resumed: before `set_epoch`, and behind it before transformers 5."""
        if self._placed:
            return
        self._skipped = batches
        if self._epoch is not None:
            self.set_epoch(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        if self._place is not None:
            self._load(self._place)
            self._earlier = 0 if self._told else self._loader.cursor.epoch - epoch
            self._place = None
        else:
            self._loader.go_to(epoch + self._earlier, self._skipped * self._loader.global_batch)
        self._skipped = 0

    def _load(self, place: dict[str, Any]) -> None:
        try:
            self._loader.load_state_dict(place)
        except WrongState as wrong:
            what = str(wrong).partition("; ")[0]
            raise WrongState(
                f"{what}; give the Trainer the dataset it had, or another output_dir to begin anew"
            ) from None

    def __iter__(self) -> Iterator[Any]:
        from accelerate.utils import send_to_device  # type: ignore[import-not-found, unused-ignore]

        self.weights.clear()
        for batch in self._loader:
            self.weights.append(self._loader.weight)
            yield send_to_device(batch, self._args.device)


def weighed(trainer: Any, log: RunLog, factor: float, step: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """A training step, in whose backward pass the loss is multiplied by `factor`, of this rank's part of the batch. A
    loss that is divided by the labels of all ranks has it already. Says where the step leaves no way to do that."""
    kind, passed = type(trainer), False
    theirs, computes = trainer.accelerator.backward, trainer.compute_loss

    def compute_loss(*given: Any, **named: Any) -> Any:
        nonlocal factor
        counted = named["num_items_in_batch"] if "num_items_in_batch" in named else [None, *given[3:]][-1]
        scaled = getattr(trainer, "loss_is_scaled_for_ga", None)
        if factor and counted is not None and scaled is not False and trainer.args.average_tokens_across_devices:
            factor = 1.0
            if scaled is None and not kind.compute_loss.__module__.startswith("transformers."):
                log.warning_once(_UNKNOWN.format(kind.__name__))
        return computes(*given, **named)

    def backward(loss: Any, **how: Any) -> Any:
        nonlocal passed
        passed = True
        return theirs(loss * factor, **how)

    trainer.accelerator.backward, trainer.compute_loss = backward, compute_loss
    try:
        loss = step(*args, **options)
    finally:
        trainer.accelerator.backward, trainer.compute_loss = theirs, computes
    if not passed:
        log.warning_once(_UNWEIGHED.format(kind.__name__))
    return loss * factor


def splits(args: Any) -> bool:
    """Whether the batch size that the script says is that over all ranks."""
    return bool(getattr(args.accelerator_config, "split_batches", False))


def seed_of(args: Any) -> int:
    return int(args.data_seed if args.data_seed is not None else args.seed)


def _in_words_of_the_trainer(refusal: str) -> str:
    """A Trainer's user makes no loader: what an option of `Run.loader` would allow is said otherwise."""
    refusal = refusal.replace("run.loader(..., replay=True)", "`replay = True` in the class of the Trainer")
    return re.sub(r", or, if it divides .* say run\.loader\(\.\.\., streams=.*", "", refusal)


def check_batches(folder: Path, now: dict[str, int], ranks: int) -> None:
    """Raises WrongState where the batches of a checkpoint were of another size: samples would be missed or repeated."""
    try:
        kept = json.loads((folder / BATCHES).read_bytes())
    except FileNotFoundError:
        return  # of a version before, or of another tool
    if kept != now:
        whole, rest = divmod(kept["global_batch"], ranks)
        how = "another number of ranks, which divides it," if rest else f"per_device_train_batch_size={whole}"
        raise WrongState(
            f"{folder} was written with {kept['global_batch']} samples in a batch over all ranks and "
            f"gradient_accumulation_steps={kept['accumulated']}, and this start has {now['global_batch']} over {ranks} "
            f"ranks and {now['accumulated']}: give {how} and gradient_accumulation_steps={kept['accumulated']}, or "
            "another output_dir to begin anew"
        )


def place_in(folder: Path) -> dict[str, Any] | None:
    if not (folder / PLACE).exists():
        return None  # of a version before, or of another tool: the Trainer's count of steps says it
    place: dict[str, Any] = torch.load(folder / PLACE, weights_only=True)
    return place


def skip_by_place() -> None:
    """The Trainer skips batches by making another DataLoader; ours is put at the place instead."""
    module: Any = sys.modules["transformers.trainer"]
    theirs = module.skip_first_batches
    if getattr(theirs, "by_place", False):
        return

    def skip_first_batches(loader: Any, count: int = 0) -> Any:
        if not isinstance(loader, Epochs):
            return theirs(loader, count)
        loader.skip(count)
        return loader

    skip_first_batches.by_place = True  # type: ignore[attr-defined]
    module.skip_first_batches = skip_first_batches
