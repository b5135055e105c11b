"""Lightning 2.x: a callback that makes `Trainer.fit` resume exactly, in the middle of an epoch or of a validation.

With `--exact-resume` Lightning finds it by itself, through an entry point; `callbacks=[exact("checkpoints")]` is the
same in the script. What is saved is Lightning's own checkpoint, in a directory of this library's, with what it lacks.
"""

from __future__ import annotations

import functools
import importlib
import os
from pathlib import Path
from typing import Any

import torch

from ..data.loader import Loader
from ..errors import Misused, NotResumable
from ..schedule import Every
from . import lightning_files as files
from . import lightning_loops as loops
from . import lightning_results as results
from . import lightning_state as states
from . import switch
from .framework_loops import DrivenRun

_WHOLE_STATE = {"SingleDeviceStrategy", "DDPStrategy"}
"""Strategies in which each rank has all of the model."""
_fits = 0
"""Calls of `fit` in this process: the second has a directory of its own, or k folds would share one."""


def exact(directory: str | os.PathLike[str], every: Every | None = None, package: str = "lightning.pytorch") -> Any:
    """The callback, for a Trainer's list. every: when to save (default: what the switch's variable says).

    package: of the Trainer, `lightning.pytorch` or `pytorch_lightning`.
    """
    return callback_of(importlib.import_module(package), directory, every)


def callback_of(package: Any, directory: str | os.PathLike[str] | None = None, every: Every | None = None) -> Any:
    """The callback as an instance of `package`'s own class. directory: None: the switch's."""
    return type("ExactResume", (Hooks, package.Callback), {})(directory or switch.directory(), every)


class Hooks:
    """What Lightning calls. Methods without a docstring are its hooks, at the times that it documents."""

    def __init__(self, directory: str | os.PathLike[str], every: Every | None = None) -> None:
        self._directory, self._every = directory, every or Every(*switch.save_every())
        self._run: DrivenRun | None = None
        self._trainer: Any = None
        self._dump: dict[str, Any] = {}
        self._found: dict[str, Any] | None = None
        self._at: dict[str, Any] | None = None
        """In a validation: the loader and batch that are about to be used; None in training."""
        self._goes_on_train = self._goes_on_val = False
        self._epoch_began = False
        """Whether callbacks were told in this start that an epoch begins."""
        self._accumulates = 1
        """Batches of a step when the loops began."""
        self._weighing: Any = None
        """Of the backward pass that is going on: what weighs its loss."""
        self._checked = False
        """Whether a checkpoint is known to be readable."""
        self._swapped = False
        """Whether the validation that is going on has other weights than the training."""
        self._added_up = states.Additions("an epoch", "a start within it begins with what the script makes of it")
        self._validated = states.Additions("a validation", "a start begins that anew, as no checkpoint is taken in it")
        self._numbers = {"train": 0, "val": 0}
        self._loaded: dict[str, int] = {}
        """In which epoch the start before made the loaders of a kind, until this one has made its own."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    @property
    def _started(self) -> DrivenRun:
        if self._run is None:
            raise Misused("the callback for exact resume was not set up: call trainer.fit(...), not its loops")
        return self._run

    # -- the start -----------------------------------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        if loops.only_searches(trainer):
            self._run = self._found = None  # all of this call is Lightning's own
            return
        if sum(isinstance(callback, Hooks) for callback in trainer.callbacks) > 1:
            raise Misused("the Trainer has two callbacks for exact resume: leave out exact(...) or --exact-resume")
        if (strategy := type(trainer.strategy).__name__) not in _WHOLE_STATE:
            raise NotResumable(
                f"strategy {strategy} keeps no whole model on each rank, so its checkpoint cannot be taken between "
                "batches: use ddp or one device, or turn exact resume off"
            )
        self._begin_anew(trainer)
        self._run = DrivenRun(
            self._next_directory(),
            seed=int(os.environ.get("PL_GLOBAL_SEED", "0")),
            every=self._every,
            capture=self._capture,
            lightning=_State(self),
        )
        # First of all callbacks, so that what a checkpoint holds of the others is from before the batch.
        trainer.callbacks = [self, *(callback for callback in trainer.callbacks if callback is not self)]
        self._take_loaders(trainer)
        if self._found is not None:
            self._hand_over(trainer)

    def _begin_anew(self, trainer: Any) -> None:
        """Nothing of a fit before this one stays."""
        self._trainer, self._over, self._found, self._at = trainer, False, None, None
        self._checked, self._loaded = False, {}

    def _next_directory(self) -> Path:
        global _fits  # noqa: PLW0603 - one for each process
        _fits += 1
        return Path(self._directory) / (f"fit-{_fits}" if _fits > 1 else "")

    def loaded(self, state: dict[str, Any]) -> None:
        """What the checkpoint held; called while the run is made."""
        self._found, self._loaded = state, dict(state.get("loaded", {}))

    def dumped(self) -> dict[str, Any]:
        """What `_capture` has captured."""
        return self._dump

    def _take_loaders(self, trainer: Any) -> None:
        """The DataLoaders that `fit` will use are replaced where Lightning would give them its own samplers."""
        connector, fit = trainer._data_connector, trainer.fit_loop
        theirs = connector._prepare_dataloader

        def prepare(dataloader: Any, shuffle: bool, mode: Any) -> Any:
            kind = {"train": "train", "validate": "val"}.get(str(mode.value))
            if isinstance(dataloader, Loader):  # of an epoch before: a CombinedLoader holds what it was given last
                dataloader = dataloader.wrapped
            ours = trainer.state.fn == "fit" and self._run is not None and not loops.is_trial(trainer, self)
            if kind is None or self._run is None or not ours:
                return theirs(dataloader, shuffle=shuffle, mode=mode)
            number = self._numbers[kind]
            self._numbers[kind] += 1
            return self._run.take_over(dataloader, f"{kind}{number}", train=kind == "train")

        def setting_up(kind: str) -> None:
            self._numbers[kind] = 0
            loops.load_data(trainer, kind, self._run, self._loaded)
            self._skip_exhausted(kind, fit if kind == "train" else fit.epoch_loop.val_loop)

        def swapped(is_so: bool) -> None:
            self._swapped = is_so

        def ending() -> None:
            type(fit).on_run_end(fit)
            if not loops.is_trial(trainer, self):
                self._over = True
                self._started.finish()

        connector._prepare_dataloader = prepare
        fit.on_run_end = ending  # behind all hooks of the end, which may leave other weights in the model
        loops.watch_weights(trainer, swapped)
        fit.setup_data = functools.partial(setting_up, "train")
        fit.epoch_loop.val_loop.setup_data = functools.partial(setting_up, "val")

    def _skip_exhausted(self, kind: str, loop: Any) -> None:
        """Where the shorter of several loaders give None until the longest is through, they do so again."""
        run, combined = self._run, loop._combined_loader
        if run is None or combined is None or combined._mode != "max_size":
            return
        again = {name for name in run.account.was_over if name.startswith(kind)}
        run.account.was_over -= again
        if again:
            run.account.skip |= again
            iter(combined)

    def _hand_over(self, trainer: Any) -> None:
        connector, found = trainer._checkpoint_connector, self._found or {}

        def resume_start(checkpoint_path: Any = None, weights_only: Any = None) -> None:
            del connector.resume_start
            connector._ckpt_path = None
            connector._loaded_checkpoint = found["checkpoint"]
            if trainer.precision == "64-true":
                trainer.lightning_module.double()  # as Lightning does behind the loading, which would round

        connector.resume_start = resume_start
        if found["at"] is not None and loops.trained(found["checkpoint"]):
            # Lightning begins a pass at once, gives it up, and begins the next epoch's behind the validation: the first
            # is to read nothing of a dataset that keeps its place by itself.
            account = self._started.account
            account.skip |= {name for name in account.kept if name.startswith("train")}

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._accumulates = trainer.accumulate_grad_batches
        if (found := self._found) is None or self._run is None:
            if self._run is not None and loops.within_an_epoch(trainer):
                self._run.log.warning(
                    "fit goes on within an epoch from its ckpt_path, as there was no checkpoint for exact resume: what "
                    "is logged over the epoch lacks its batches so far, and `verify` will say that they were not "
                    "trained on"
                )
            return
        run, loop = self._run, trainer.fit_loop.epoch_loop
        ranks = found["ranks"]
        results.restore_logged(trainer, ranks, run.rank, run.world_size)
        files.restore(trainer, ranks[0].get("files", {}))
        for name, into in (("train", loop._results), ("val", loop.val_loop._results)):
            kept = results.merged([each[name] for each in ranks], run.rank, run.world_size)
            results.restore(into, kept, trainer, len(ranks))
        results.restore_metrics(pl_module, found["metrics"], run.world)
        states.restore_gradients(pl_module, found["gradients"])
        states.restore_buffers(trainer, found.get("buffers", []), run.world)
        states.restore_pruned(trainer, found.get("pruned", {}))
        self._at, self._epoch_began = found["at"], False

        def put_back() -> None:
            if not self._epoch_began:
                states.go_on_averaging(trainer)
            states.restore_settings(trainer, found.get("settings"))

        loops.enter(trainer, self._at is not None, put_back, found["should_stop"])
        self._goes_on_train = loop.batch_progress.current.completed > 0
        self._goes_on_val = self._at is not None
        self._found = None

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        if self._found is None:
            return
        loops.leave_out_searches(trainer)
        if self._found["over"]:
            # fit() had come to its end: it returns at once, unless the script asks for more epochs now.
            trainer.should_stop = self._found["should_stop"]

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        if (found := self._found) is not None and self._run is not None:
            # It returned at once: what the script finds now, and what its next fit begins with, is as it was.
            results.restore_logged(trainer, found["ranks"], self._run.rank, self._run.world_size)
            files.restore(trainer, found["ranks"][0].get("files", {}))
            states.restore_settings(trainer, found.get("settings"))
            loops.leave(trainer)
            self._run.found_over()
            self._found = None
        if self._run is not None:
            self._run.key_end()

    # -- training ------------------------------------------------------------------------------------------------------

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._epoch_began = True

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        run = self._started
        if self._goes_on_train:
            trainer._logger_connector._first_loop_iter = self._goes_on_train = False
        if not self._checked and loops.began(trainer):
            self._checked = states.check_readable(states.dumped(trainer))
        self._added_up.begin(trainer)
        run.boundary(loops.between_updates(trainer) and (lambda: states.gradients_alike(trainer, run)))
        self._begin_batch("train0")

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: torch.Tensor) -> None:
        weight = loops.weight_of_batches(self._run) if self._run is not None else 1.0
        if weight != 1.0:
            # Ranks have parts that differ by a sample: the mean over the ranks is to be that over the samples. The loss
            # itself stays: with manual optimization it is the script's, and its backward pass may need its value.
            self._weighing = loss.register_hook(lambda gradient: gradient * weight) if loss.requires_grad else None

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        if self._weighing is not None:
            self._weighing.remove()  # a script may go backward from the same loss again
            self._weighing = None

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        run = self._started
        for name in run.loaders:
            if name.startswith("train"):
                run.batch_done(name)
                if trainer.is_last_batch:
                    run.account.leave(name)
        run.step()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._goes_on_train = False
        self._added_up.end()

    # -- validation ----------------------------------------------------------------------------------------------------

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if self._goes_on_val and self._at is not None:
            loop = trainer.fit_loop.epoch_loop.val_loop
            outputs = [results.restore_values(kept, trainer.strategy.root_device) for kept in self._at["outputs"]]
            loops.enter_validation(loop, self._at, outputs)

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if self._run is None or trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        if self._goes_on_val:
            trainer._logger_connector._first_loop_iter = self._goes_on_val = False
        loop = trainer.fit_loop.epoch_loop.val_loop
        self._at = {
            "loader": dataloader_idx,
            "batch": batch_idx,
            "seen": {str(number): count for number, count in loop._seen_batches_per_dataloader.items()},
            "outputs": [results.capture_values(each) for each in loop._logged_outputs],
        }
        may_save = not self._swapped and loops.between_updates(trainer) and loops.can_enter_validation(trainer)
        self._validated.begin(trainer)
        self._run.boundary(
            may_save and (lambda: self._can_begin_here(trainer)),
            evaluated=loop.batch_progress.current.completed,
        )
        self._begin_batch(f"val{dataloader_idx}")

    def _can_begin_here(self, trainer: Any) -> bool:
        """Collective: whether a start can go on within the validation that is going on."""
        lacks = self._validated.lacking(trainer, self._started)
        return states.gradients_alike(trainer, self._started) and not lacks

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if self._run is None or trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        loop = trainer.fit_loop.epoch_loop.val_loop
        if loop._is_sequential:
            self._run.batch_done(f"val{dataloader_idx}")
            if batch_idx + 1 >= loop._max_batches[dataloader_idx]:
                self._run.account.leave(f"val{dataloader_idx}")
            return
        for name in self._run.loaders:
            if name.startswith("val"):
                self._run.batch_done(name)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._at = None
        self._validated.end()

    def _begin_batch(self, name: str) -> None:
        run = self._run
        if run is None or name not in run.loaders:
            return
        run.key_batch(name)
        if run.loaders[name].weight == 0.0:
            # The batch is there for its shape only: it counts nothing in the means of self.log.
            self._trainer._results.batch_size = 0

    # -- a checkpoint --------------------------------------------------------------------------------------------------

    _over = False

    def _capture(self) -> None:
        """On all ranks: what is theirs alone is gathered here."""
        trainer, run = self._trainer, self._started
        loop, module = trainer.fit_loop.epoch_loop, trainer.lightning_module
        states.check_model(trainer, run)
        mine = {"train": results.capture(loop._results), "val": results.capture(loop.val_loop._results)}
        mine["files"] = files.capture(trainer) if run.rank == 0 else {}
        ranks = run.world.gather(mine | results.capture_logged(trainer))
        metrics = results.capture_metrics(module, run.world)
        checkpoint = states.dumped(trainer)
        self._checked = self._checked or states.check_readable(checkpoint)
        if not self._over:
            self._added_up.lacking(trainer, run, grown=True)
            loops.rewind(checkpoint, self._at is not None)
        self._dump = {
            "checkpoint": checkpoint,
            "ranks": ranks,
            "metrics": metrics,
            "gradients": {} if module.automatic_optimization else states.gradients(module),
            "buffers": states.own_buffers(trainer, run.world),
            "pruned": states.pruned(trainer),
            "loaded": loops.loaded(trainer),
            "at": None if self._over else self._at,
            "over": self._over,
            "should_stop": bool(trainer.should_stop),
            "settings": states.settings(trainer, self._accumulates),
        }


class _State:
    """The state of a Trainer, with the two methods that `Run` calls."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    def state_dict(self) -> dict[str, Any]:
        return self._hooks.dumped()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._hooks.loaded(state)
