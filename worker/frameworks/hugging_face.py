"""Hugging Face's Trainer, in one line: `class MyTrainer(Exact, Trainer): pass`, and nothing else changed.

Its own checkpoints are kept, each with a manifest that is written last. Order and random numbers are this library's, so
that nothing of generators need be restored. `train()` goes on with the newest checkpoint that verifies.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ..checkpoints.files import Content, Sums, check_file, sync_directory, write_file
from ..errors import CheckpointDamaged, Misused, NotResumable, WrongState
from .stateful import AT_END, NoRun, StatefulLoader

MANIFEST = "elastic-agent.json"
BATCHES = "elastic-agent-batches.json"
"""What the Trainer's count of steps means in samples; it would be another place with batches of another size."""
PLACE = "elastic-agent-loader.pt"
_log = logging.getLogger(__name__)


class Exact:
    """Stands before `Trainer` in the list of bases."""

    args: Any
    accelerator: Any
    state: Any
    _epochs: _Epochs | None = None
    _place: dict[str, Any] | None = None
    """Of the loader, in the checkpoint that is gone on from."""
    _counts = False

    def get_train_dataloader(self) -> Any:
        """The Trainer's own loader, not yet prepared, in a loader of this library's."""
        theirs = self.accelerator.prepare
        self.accelerator.prepare = lambda loader, *_, **__: loader
        try:
            loader = super().get_train_dataloader()  # type: ignore[misc]
        finally:
            self.accelerator.prepare = theirs
        if self.args.gradient_accumulation_steps > 1 and self.args.world_size > 1:
            raise NotResumable("gradient_accumulation_steps with several ranks is not exact over resizes: use 1")
        version = sys.modules["transformers"].__version__
        if self.args.world_size > 1 and int(version.split(".")[0]) < 5:
            raise NotResumable(
                f"transformers {version} with several ranks is not exact over resizes: use transformers 5"
            )
        _skip_by_place()
        self._epochs = _Epochs(loader, self.args, self._place)
        return self._epochs

    def train(self, resume_from_checkpoint: Any = None, **options: Any) -> Any:
        """As the Trainer's; without a checkpoint, or with one in `output_dir` that is not whole, the newest one there
        that verifies is used.

        Raises Misused with `save_only_model`, CheckpointDamaged for a checkpoint elsewhere that is not whole,
        WrongState."""
        if self.args.save_only_model:
            raise Misused("save_only_model=True keeps no optimizer, so a start cannot go on exactly: set it to False")
        chosen = self._chosen(resume_from_checkpoint)
        self._place = None
        if chosen is not None:
            check_batches(chosen, self._batches(), self.args.world_size)
            self._place = _place_in(chosen)
            # By default callbacks that count, such as for an early end, would begin anew.
            self.args.restore_callback_states_from_checkpoint = True
        return super().train(resume_from_checkpoint=str(chosen) if chosen else None, **options)  # type: ignore[misc]

    def _chosen(self, asked: Any) -> Path | None:
        """The checkpoint to go on from."""
        if asked is False:
            return None
        output = Path(self.args.output_dir)
        if asked in (None, True):
            return newest_checkpoint(output)
        if Path(asked).resolve().parent != output.resolve():
            if (Path(asked) / MANIFEST).exists():
                _check(Path(asked))
            return Path(asked)
        if _is_whole(Path(asked)):
            return Path(asked)
        # One that is not this library's, as of before its line was written, is better than none.
        theirs = not (Path(asked) / MANIFEST).exists() and (Path(asked) / "trainer_state.json").exists()
        return newest_checkpoint(output) or (Path(asked) if theirs else None)

    def get_batch_samples(self, *args: Any, **options: Any) -> Any:
        """As the Trainer's, which counts the labels of the batches of all ranks."""
        self._counts = True
        try:
            return super().get_batch_samples(*args, **options)  # type: ignore[misc]
        finally:
            self._counts = False

    def _get_num_items_in_batch(self, batches: list[Any], *args: Any, **options: Any) -> Any:
        """As the Trainer's. A rank without a sample of a batch has another one's in its place, which counts nothing."""
        if self._counts and self._weight() == 0.0:
            batches = [{name: _uncounted(name, value) for name, value in batch.items()} for batch in batches]
        return super()._get_num_items_in_batch(batches, *args, **options)  # type: ignore[misc]

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None, **options: Any) -> Any:
        """As the Trainer's, with the loss multiplied by the weight of this rank's part of the batch. A loss that is
        divided by the labels of all ranks has it already."""
        weight = self._weight()
        if weight and num_items_in_batch is not None and self.args.average_tokens_across_devices:
            weight = 1.0
        theirs = self.accelerator.backward
        if weight != 1.0:
            self.accelerator.backward = lambda loss, **how: theirs(loss * weight, **how)
        try:
            loss = super().training_step(model, inputs, num_items_in_batch, **options)  # type: ignore[misc]
        finally:
            self.accelerator.backward = theirs
        return loss * weight

    def _weight(self) -> float:
        return 1.0 if self._epochs is None else self._epochs.weight

    def _load_rng_state(self, checkpoint: Any) -> None:
        """Nothing: every batch keys the generators."""

    def _save_checkpoint(self, model: Any, trial: Any = None, **options: Any) -> None:
        """As the Trainer's, but older ones are removed when this one is whole, and no sooner."""
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            super()._save_checkpoint(model, trial, **options)  # type: ignore[misc]
        finally:
            self.args.save_total_limit = limit
        self.accelerator.wait_for_everyone()  # each rank writes a file of its own
        if not self.args.should_save or self._epochs is None:
            return
        output = self._get_output_dir(trial=trial)  # type: ignore[attr-defined]
        folder = Path(output) / f"checkpoint-{self.state.global_step}"
        (folder / BATCHES).write_text(json.dumps(self._batches()))
        torch.save(self._epochs.place(), folder / PLACE)
        write_manifest(folder)
        self._rotate(output, limit)

    def _rotate(self, output: str, limit: int | None) -> None:
        """As the Trainer's own: older checkpoints go, but for the best one."""
        rotate = getattr(sys.modules["transformers.trainer"], "rotate_checkpoints", None)
        if rotate is None:  # before transformers 5
            self._rotate_checkpoints(use_mtime=True, output_dir=output)  # type: ignore[attr-defined]
            return
        best = self.state.best_model_checkpoint
        rotate(output_dir=output, save_total_limit=limit, best_model_checkpoint=best, use_mtime=True)

    def _batches(self) -> dict[str, int]:
        """Samples of a batch over all ranks, and batches of a step."""
        whole = self.args.train_batch_size * self.args.world_size
        return {"global_batch": whole, "accumulated": self.args.gradient_accumulation_steps}


class _Epochs:
    """The Trainer's training loader: it says `set_epoch`, and by how many batches it begins later."""

    def __init__(self, loader: Any, args: Any, place: dict[str, Any] | None) -> None:
        """place: of a checkpoint. The Trainer's own count of epochs begins anew with a stream, whose length it does not
        know, so it says only by how many epochs to go on."""
        self._args, self._skipped, self._place, self._earlier = args, 0, place, 0
        self._placed = place is not None
        self._epoch: int | None = None
        seed = args.data_seed if args.data_seed is not None else args.seed
        self._loader = StatefulLoader(loader, NoRun(seed), "train")
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
            self._loader.load_state_dict(self._place)
            self._earlier, self._place = self._loader.cursor.epoch - epoch, None
        else:
            self._loader.go_to(epoch + self._earlier, self._skipped * self._loader.global_batch)
        self._skipped = 0

    def __iter__(self) -> Iterator[Any]:
        from accelerate.utils import send_to_device  # type: ignore[import-not-found, unused-ignore]

        for batch in self._loader:
            yield send_to_device(batch, self._args.device)


def _uncounted(name: str, value: Any) -> Any:
    """Labels that the Trainer does not count."""
    return torch.full_like(value, -100) if name in ("labels", "shift_labels") and torch.is_tensor(value) else value


def _place_in(folder: Path) -> dict[str, Any] | None:
    if not (folder / PLACE).exists():
        return None  # of a version before, or of another tool: the Trainer's count of steps says it
    place: dict[str, Any] = torch.load(folder / PLACE, weights_only=True)
    return place


def _skip_by_place() -> None:
    """The Trainer skips batches by making another DataLoader; ours is put at the place instead."""
    module: Any = sys.modules["transformers.trainer"]
    theirs = module.skip_first_batches
    if getattr(theirs, "by_place", False):
        return

    def skip_first_batches(loader: Any, count: int = 0) -> Any:
        if not isinstance(loader, _Epochs):
            return theirs(loader, count)
        loader.skip(count)
        return loader

    skip_first_batches.by_place = True  # type: ignore[attr-defined]
    module.skip_first_batches = skip_first_batches


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


def write_manifest(folder: Path) -> None:
    """Length and checksums of every file of a checkpoint that is whole, brought to disk last."""
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST):
        files[str(path.relative_to(folder))] = _read(path).to_json()
    (folder / MANIFEST).unlink(missing_ok=True)
    write_file(folder / MANIFEST, json.dumps(files, indent=1).encode())
    sync_directory(folder)


def newest_checkpoint(output: Path) -> Path | None:
    """The newest checkpoint whose every byte is as it was written; what is not is passed over, with a warning."""
    found = [path for path in output.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdigit()]
    found.sort(key=lambda path: -int(path.name.removeprefix("checkpoint-")))
    return next((path for path in found if _is_whole(path)), None)


def _is_whole(path: Path) -> bool:
    try:
        _check(path)
    except CheckpointDamaged as damage:
        _log.warning("checkpoint %s is not whole and is not used: %s; the newest before it is", path, damage)
        return False
    return True


def _check(path: Path) -> None:
    """Raises CheckpointDamaged where a file is missing, or not as it was written."""
    try:
        for name, kept in json.loads((path / MANIFEST).read_bytes()).items():
            check_file(path / name, Content.from_json(kept))
    except (OSError, ValueError, KeyError) as unread:
        raise CheckpointDamaged(f"{path / MANIFEST} or a file that it names cannot be used: {unread}") from None


def _read(path: Path) -> Content:
    import os

    sums = Sums()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(1 << 20):
            sums.add(memoryview(piece))
        os.fsync(file.fileno())
    return sums.content()
