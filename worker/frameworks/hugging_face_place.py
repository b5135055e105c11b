"""Where a call of the Trainer's `train()` goes on: the place of its loader, and what its checkpoints lack."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import NotResumable, WrongState
from .stateful import AT_END, NoRun, StatefulLoader

PLACE = "elastic-agent-loader.pt"
RECORD = "elastic-agent-train.json"
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

    def loss(self, rank: int, ranks: int) -> float:
        """Of another number of ranks each gets the mean, which is what the Trainer logs."""
        return self.losses[rank] if ranks == len(self.losses) else sum(self.losses) / len(self.losses)

    def is_over(self, max_steps: int) -> bool:
        """Whether the training has come to its end, if it has `max_steps` now."""
        return self.step >= max_steps or (self.early_end and self.max_steps == max_steps)

    def write(self, folder: Path) -> None:
        (folder / RECORD).write_text(json.dumps(asdict(self)))


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
        try:
            self._loader = StatefulLoader(loader, NoRun(seed_of(args)), "train", replay=replay)
        except NotResumable as refused:
            raise NotResumable(_in_words_of_the_trainer(str(refused))) from None
        self.dataset, self.batch_sampler = loader.dataset, None

    def __len__(self) -> int:
        return len(self._loader)

    @property
    def weight(self) -> float:
        """Of this rank's part of the batch in hand."""
        return self._loader.weight

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

        for batch in self._loader:
            yield send_to_device(batch, self._args.device)


def seed_of(args: Any) -> int:
    return int(args.data_seed if args.data_seed is not None else args.seed)


def _in_words_of_the_trainer(refusal: str) -> str:
    """A Trainer's user makes no loader: what an option of `Run.loader` would allow is said otherwise."""
    refusal = refusal.replace("run.loader(..., replay=True)", "`replay = True` in the class of the Trainer")
    return re.sub(r", or, if it divides .* say run\.loader\(\.\.\., streams=.*", "", refusal)


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
