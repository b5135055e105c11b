"""Hugging Face's Trainer, in one line: `class MyTrainer(Exact, Trainer): pass`, and nothing else changed.

Its own checkpoints are kept, each with a manifest that is written last. Order and random numbers are this library's, so
that nothing of generators need be restored. `train()` goes on with the newest checkpoint that verifies.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from ..checkpoints.files import Content, Sums, check_file, sync_directory, write_file
from ..data.randomness import key_everything
from ..errors import CheckpointDamaged, Misused
from ..keys import key_of, mix
from . import hugging_face_place as calls
from .hugging_face_place import PLACE, Epochs, Record

MANIFEST = "elastic-agent.json"
_log = logging.getLogger(__name__)


class Exact:
    """Stands before `Trainer` in the list of bases."""

    args: Any
    accelerator: Any
    state: Any
    control: Any
    model: Any
    callback_handler: Any
    replay = False
    """Whether an iterable dataset that cannot say where it is may be read again up to the place."""
    _epochs: Epochs | None = None
    _place: dict[str, Any] | None = None
    """Of the loader, in the checkpoint that is gone on from."""
    _past: Record | None = None
    """What that checkpoint lacks, if this same call of train() wrote it."""
    _begins: tuple[int, int] | None = None
    _call = 1
    _whole_epochs = 0
    _over = _only_end = _epoch_ended = _counts = False
    _started, _carried = 0.0, 0.0
    _loss: Any = None
    _logged: tuple[Any, float | None] = (None, None)

    def get_train_dataloader(self) -> Any:
        """The Trainer's own loader, not yet prepared, in a loader of this library's."""
        return self._taken(super().get_train_dataloader)  # type: ignore[misc]

    def _taken(self, make: Callable[[], Any]) -> Any:
        """make: also the method of a class that stands before this one, whether it calls this one's or not."""

        def unprepared(loader: Any, *_: Any, **__: Any) -> Any:
            return loader

        with _changed(self.accelerator, {"prepare": unprepared, "prepare_data_loader": unprepared}):
            loader = make()
        if isinstance(loader, Epochs):
            return loader
        calls.skip_by_place()
        self._epochs = Epochs(loader, self.args, self._place, self.replay)
        return self._epochs

    def train(self, resume_from_checkpoint: Any = None, **options: Any) -> Any:
        """As the Trainer's; without a checkpoint, or with one in `output_dir` that is not whole, the newest one there
        that verifies is used. A further call of a process with the same `output_dir` has its own in `train-2` there.

        Raises Misused with `save_only_model`, CheckpointDamaged for a checkpoint elsewhere that is not whole,
        WrongState."""
        if self.args.save_only_model:
            raise Misused("save_only_model=True keeps no optimizer, so a start cannot go on exactly: set it to False")
        output, tried = self.args.output_dir, options.get("trial") is not None
        self._call = 1 if tried else calls.call_of(output)
        # Trials of a search have folders of their own, and other parameters in each start.
        chosen = None if tried and resume_from_checkpoint is None else self._chosen(resume_from_checkpoint)
        self._place = self._past = self._begins = None
        changed: dict[str, Any] = {}
        if chosen is not None:
            calls.check_batches(chosen, self._batches(), self.args.world_size)
            self._place = calls.place_in(chosen)
            # By default callbacks that count, such as for an early end, would begin anew.
            self.args.restore_callback_states_from_checkpoint = True
            changed = {"ignore_data_skip": False} if self._place is not None else {}
            if chosen.resolve().parent == self._folder().resolve():
                self._past = calls.record_in(chosen)
                changed["eval_on_start"] = False  # it counts for callbacks, and is in the log
        with self._watched(), _changed(self.args, changed):
            done = super().train(resume_from_checkpoint=str(chosen) if chosen else None, **options)  # type: ignore[misc]
        if not tried:
            calls.call_ended(output)
        self._key("behind")
        return done

    def _inner_training_loop(self, batch_size: int | None = None, *args: Any, **options: Any) -> Any:
        """As the Trainer's. Before transformers 5 batch_size is the checkpoint's, which is of another number of ranks
        where that has changed."""
        mine = batch_size if self.args.auto_find_batch_size else self.args.train_batch_size
        return super()._inner_training_loop(mine, *args, **options)  # type: ignore[misc]

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Within it, what the Trainer sets to 0 in each start is put back, and the ends of epochs are known."""
        handler = self.callback_handler
        begin, step, end = handler.on_train_begin, handler.on_step_begin, handler.on_epoch_end

        def beginning(*args: Any, **options: Any) -> Any:
            self._put_back()
            control = begin(*args, **options)
            if self._past is not None and self._epochs is not None:
                self._past.set_frozen(self.model, self._epochs.log)  # behind what callbacks do as a training begins
            return control

        def stepping(*args: Any, **options: Any) -> Any:
            self._epoch_ended = False
            return step(*args, **options)

        def ending(*args: Any, **options: Any) -> Any:
            self._epoch_ended = True
            return end(*args, **options)

        mine = {
            "get_train_dataloader": functools.partial(self._taken, self.get_train_dataloader),
            "training_step": functools.partial(self._weighed, self.training_step),  # type: ignore[attr-defined]
        }
        theirs = {"on_train_begin": beginning, "on_step_begin": stepping, "on_epoch_end": ending}
        with _changed(handler, theirs), _changed(self, mine):
            yield

    def _put_back(self) -> None:
        """What the last start had added up."""
        past, self._started = self._past, time.time()
        self._epoch_ended = False
        self._loss, self._carried, self._logged = None, 0.0, (None, None)
        if past is None:
            return
        self._started -= past.seconds
        self._total_loss_scalar, self._globalstep_last_logged = past.total_loss, past.logged_step
        self._initial_global_step = past.begun_step
        self._logged = (past.grad_norm, past.learning_rate)
        loss = past.loss(self.args.process_index, self.args.world_size)
        if hasattr(self, "_tr_loss"):
            self._tr_loss += loss
        elif self._over:  # before transformers 5 it is a local variable
            self._total_loss_scalar += loss
        else:
            self._carried = loss

    def _record(self) -> Record:
        """Collective."""
        loss = getattr(self, "_tr_loss", self._loss)
        loss = torch.zeros((), device=self.args.device) if loss is None else loss.detach()
        return Record(
            call=self._call,
            step=self.state.global_step,
            begun_step=getattr(self, "_initial_global_step", 0),
            seconds=time.time() - self._started,
            total_loss=self._total_loss_scalar,
            logged_step=self._globalstep_last_logged,
            losses=self.accelerator.gather(loss.reshape(1)).tolist(),
            epoch_ended=self._epoch_ended,
            early_end=self.control.should_training_stop and calls.has_ended_early(self.callback_handler.callbacks),
            epoch_left=self.control.should_epoch_stop and not self.control.should_training_stop,
            max_steps=self.state.max_steps,
            grad_norm=None if self._logged[0] is None else float(self._logged[0]),
            learning_rate=self._logged[1],
            frozen=calls.frozen_of(self.model),
        )

    def set_initial_training_values(self, *args: Any, **options: Any) -> Any:
        """As the Trainer's; a training that is over has no epoch left."""
        values = super().set_initial_training_values(*args, **options)  # type: ignore[misc]
        self._whole_epochs, past, epochs = values[0], self._past, self._epochs
        self._over = past is not None and past.is_over(values[-1])
        self._only_end = False
        if epochs is not None and hasattr(super(), "_run_epoch") and hasattr(super(), "_init_training_state"):
            self._begins = epochs.begins(past)
        if self._begins is not None and past is not None and not past.epoch_ended:
            self._only_end = self._over or past.epoch_left or self._begins != epochs.begins(None)  # type: ignore[union-attr]
        if not self._over:
            return values
        last = past.step // values[1] if self._begins is None else self._begins[0] + self._only_end  # type: ignore[union-attr]
        return (last, *values[1:])

    def _init_training_state(self, *args: Any, **options: Any) -> Any:
        """As the Trainer's, with the loader's epoch and batch, which it computes otherwise for a stream."""
        begins = super()._init_training_state(*args, **options)  # type: ignore[misc]
        self.state.num_train_epochs = self._whole_epochs
        return self._begins or begins

    def _run_epoch(self, *args: Any, **options: Any) -> Any:
        """As the Trainer's; behind the last step there is only what it does at the end of an epoch."""
        if self._only_end:
            self._only_end, options["num_update_steps_per_epoch"] = False, 0
        return super()._run_epoch(*args, **options)  # type: ignore[misc]

    def _maybe_log_save_evaluate(self, tr_loss: Any, grad_norm: Any, *args: Any, **options: Any) -> Any:
        """As the Trainer's, told of the last step also at the end of an epoch where another start has done that."""
        rate = options.get("learning_rate")
        if grad_norm is None and rate is None and self._epoch_ended:
            grad_norm, options["learning_rate"] = self._logged
        else:
            self._logged = (grad_norm, rate)
        self._loss = tr_loss
        return super()._maybe_log_save_evaluate(tr_loss, grad_norm, *args, **options)  # type: ignore[misc]

    def _finalize_training(self, trial: Any, samples: Any, start_time: float) -> Any:
        """As the Trainer's, by the time that all starts took."""
        return super()._finalize_training(trial, samples, self._started)  # type: ignore[misc]

    def _evaluate(self, *args: Any, **options: Any) -> Any:
        """As the Trainer's, with random numbers that follow from the step."""
        self._key("evaluation", self.state.global_step)
        return super()._evaluate(*args, **options)  # type: ignore[misc]

    def _key(self, *what: Any) -> None:
        """Keys the generators of this process."""
        key_everything(mix(key_of(calls.seed_of(self.args), self._call, *what), self.args.process_index))

    def _get_output_dir(self, trial: Any = None) -> str:
        """As the Trainer's; each further call of train() has a folder of its own."""
        theirs: str = super()._get_output_dir(trial)  # type: ignore[misc]
        return theirs if trial is not None or self._call == 1 else str(self._folder())

    def _folder(self, call: int = 0) -> Path:
        """Of the checkpoints of a call of train(), the current one by default."""
        call = call or self._call
        return Path(self.args.output_dir, *([f"train-{call}"] if call > 1 else []))

    def _chosen(self, asked: Any) -> Path | None:
        """The checkpoint to go on from."""
        if asked is False:
            return None
        output = self._folder()
        if asked is None:
            return newest_checkpoint(output)
        if asked is True:
            found = (newest_checkpoint(self._folder(call)) for call in range(self._call, 0, -1))
            return next((each for each in found if each is not None), None)
        if Path(asked).resolve().parent != output.resolve():
            if (Path(asked) / MANIFEST).exists():
                check_whole(Path(asked))
            return Path(asked)
        if _is_whole(Path(asked)):
            return Path(asked)
        # One that is not this library's, as of before its line was written, is better than none.
        theirs = not (Path(asked) / MANIFEST).exists() and (Path(asked) / "trainer_state.json").exists()
        return newest_checkpoint(output) or (Path(asked) if theirs else None)

    def get_batch_samples(self, *args: Any, **options: Any) -> Any:
        """As the Trainer's, which counts the labels of the batches of all ranks."""
        self._counts = True
        if self._epochs is not None:
            self._epochs.weights.clear()
        try:
            return super().get_batch_samples(*args, **options)  # type: ignore[misc]
        finally:
            self._counts = False

    def _get_num_items_in_batch(self, batches: list[Any], *args: Any, **options: Any) -> Any:
        """As the Trainer's. A rank without a sample of a batch has another one's in its place, which counts nothing."""
        if self._counts and self._epochs is not None:
            batches = [
                batch if weight else {name: _uncounted(name, value) for name, value in batch.items()}
                for batch, weight in zip(batches, self._epochs.weights, strict=True)
            ]
        return super()._get_num_items_in_batch(batches, *args, **options)  # type: ignore[misc]

    def _weighed(self, step: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """step: `training_step`, also of a class that stands before this one, whether it calls the Trainer's or not."""
        epochs = self._epochs
        if epochs is not None and (weight := epochs.next_weight()) != 1.0:
            loss = calls.weighed(self, epochs.log, weight, step, *args, **options)
        else:
            loss = step(*args, **options)
        carried, self._carried = self._carried, 0.0
        return loss + carried if carried else loss

    def _load_rng_state(self, checkpoint: Any) -> None:
        """Nothing: every batch keys the generators."""

    def _save_checkpoint(self, model: Any, trial: Any = None, **options: Any) -> None:
        """As the Trainer's, but older ones are removed when this one is whole, and no sooner."""
        limit = self.args.save_total_limit
        with _changed(self.args, {"save_total_limit": None}):
            super()._save_checkpoint(model, trial, **options)  # type: ignore[misc]
        self.accelerator.wait_for_everyone()  # each rank writes a file of its own
        record = self._record()
        if not self.args.should_save or self._epochs is None:
            return
        output = self._get_output_dir(trial=trial)
        folder = Path(output) / f"checkpoint-{self.state.global_step}"
        (folder / calls.BATCHES).write_text(json.dumps(self._batches()))
        torch.save(self._epochs.place(), folder / PLACE)
        record.write(folder)
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
        whole = self.args.train_batch_size * (1 if calls.splits(self.args) else self.args.world_size)
        return {"global_batch": whole, "accumulated": self.args.gradient_accumulation_steps}


@contextlib.contextmanager
def _changed(thing: Any, values: dict[str, Any]) -> Iterator[None]:
    """Within it, attributes of something have these values."""
    before = {name: getattr(thing, name) for name in values}
    for name, value in values.items():
        setattr(thing, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(thing, name, value)


def _uncounted(name: str, value: Any) -> Any:
    """Labels that the Trainer does not count."""
    return torch.full_like(value, -100) if name in ("labels", "shift_labels") and torch.is_tensor(value) else value


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
        check_whole(path)
    except CheckpointDamaged as damage:
        _log.warning("checkpoint %s is not whole and is not used: %s; the newest before it is", path, damage)
        return False
    return True


def check_whole(path: Path) -> None:
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
