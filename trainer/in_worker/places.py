"""The run of a trainer: checkpoints between any two batches, and loaders that go on where the present call was."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader

from ...agent.output.log_dirs import FULL
from ...worker import Every
from ...worker.data.batching import batches_are_sliced
from ...worker.data.loader import Loader
from ...worker.errors import NotResumable
from ...worker.frameworks.framework_loops import DrivenRun
from ..names import BATCH_SIZE
from .surroundings import Surroundings

BETWEEN_FAILURES_S = 600.0
"""Mean time between failures that checkpoints in memory are made for: a state every 2 s where one holds the training up
for 4 ms, which costs workers 0.2 % of their time, and as much again on the processor that writes it."""
BETWEEN_FAILURES_DISK_S = 1800.0
"""The same on a disk."""


class DiskFull(OSError):
    """A worker cannot begin, nor could one that is started in its place."""


class Left(SystemExit):
    """This worker ends as it was asked to, behind its last state; an exit of the user's code is another one."""


class Places(DrivenRun):
    """One for each worker and round; has loaded the newest state when it is made. Collective. Raises DiskFull, and what
    DrivenRun raises."""

    def __init__(
        self, directory: str, seed: int, every: Every, capture: Callable[[], None], states: dict[str, Any]
    ) -> None:
        try:
            super().__init__(directory, seed=seed, every=every, capture=capture, **states)
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise DiskFull(
                error.errno, f"no state can be kept in {directory}: {error.strerror}; free space there and start again"
            ) from error
        self.kept = self.resumed
        """Whether a state is surely kept: one was found, or `save_now` made one."""
        self._attends, self._left_s = True, 0.0

    def save_now(self) -> None:
        """Collective: a checkpoint of the state as it is, on the disk of each node when this returns. Raises
        CheckpointNotWritten."""
        # The state may be another one at the same place: calls that train nothing change it, too.
        self._asked += 1
        self._requests.forced = True
        self.boundary()
        self.world.together(self._persistence.wait)
        self.kept = True

    def await_resize(self) -> None:
        """Collective, after a program has asked for another number of workers: does not return where there will be
        another round, which goes on from here."""
        for _ in self._requests.await_orders():
            self.boundary()

    def attend(self, attends: bool) -> None:
        """Whether batches follow now: a worker that waits for its program holds up no change of nodes, and what could
        be lost becomes no more."""
        if attends == self._attends:
            return
        self._attends, now_s = attends, time.monotonic()
        if attends:
            self._timetable.paused(now_s - self._left_s)
            self._exchanges.paused(now_s - self._left_s)
        self._left_s = now_s
        self._requests.attend(attends)

    def leave(self) -> None:
        """All workers were asked to stop, to go on later: does not return under an agent."""
        self.finish()
        if not self._requests.stop_ordered:
            try:
                self._early.leave(self.steps)
            except SystemExit as end:
                raise Left(end.code) from None
        raise Left(0)


def every_of(program: Any) -> Every:
    """When a state is kept: by Young's formula, unless the program gives an interval."""
    if program["every"] is not None:
        return Every(steps=program["every"].get("steps"), seconds=program["every"].get("seconds"))
    on_disk = program["on_disk"]
    return Every(seconds=None, failures_s=BETWEEN_FAILURES_DISK_S if on_disk else BETWEEN_FAILURES_S)


class Batches:
    """What `train` or `validate` iterates: the data of one name, from any place on."""

    def __init__(self, run: Places, name: str, loader: DataLoader[Any], around: Surroundings) -> None:
        """Raises NotResumable, WrongState."""
        self._run, self.name, self._around, self._loader = run, name, around, loader
        self.exact: Loader | None = None
        if around.program["add_dist_sampler"]:
            options: dict[str, Any] = {"train": name == "train"}
            if batches_are_sliced(loader):
                options["global_batch"] = _global_batch(loader, around)
            try:
                self.exact = run.take_over(loader, name, **options)
            except NotResumable as refused:
                raise NotResumable(_in_words_of_the_trainer(str(refused))) from None

    @property
    def epoch(self) -> int:
        """Of the loader: passes that were begun and left or ended."""
        return 0 if self.exact is None else self._run.account.cursors[self.name].epoch

    @property
    def uneven(self) -> bool:
        """Whether workers may get unequal numbers of samples of a batch."""
        if self.exact is None:
            return False
        total, batch, workers = self.exact.total, self.exact.global_batch, self._around.world_size
        if total is None or not batches_are_sliced(self._loader):
            return workers > 1
        return bool(batch % workers or total % batch % workers)

    def steps(self) -> int | None:
        """Batches of a whole pass; None where that is not known."""
        try:
            return len(self._loader if self.exact is None else self.exact)
        except TypeError:
            return None

    def begin(self) -> None:
        """A new pass: not in the middle of one that was left."""
        if self.exact is not None and self._run.account.cursors[self.name].position:
            self._run.account.go_to(self.name, self.epoch + 1, 0)

    def go_to(self, epoch: int) -> None:
        """The next pass is that of this epoch of the loader, or of the present one where that is later."""
        if self.exact is not None and not self.exact.is_stream and epoch > self.epoch:
            self._run.account.go_to(self.name, epoch, 0)

    def batches(self, epoch: int, skip: int) -> Iterator[Any]:
        """What is left of a pass that began in this epoch of the loader; skip: batches of it that are over."""
        around, run = self._around, self._run
        if self.exact is None:
            source = iter(self._loader)
            for number, batch in enumerate(source):
                if number >= skip:
                    around.weight, around.samples = 1.0, _leading(batch)
                    yield around.to_device(batch)
            return
        if self.epoch != epoch:
            return  # it was over when the state was kept
        exact, workers, cut = self.exact, around.world_size, batches_are_sliced(self._loader)
        held = run.account.cursors[self.name].held
        for batch in exact:
            around.weight = weight = exact.weight
            if cut:
                span = held[-1]
                around.samples = round(weight * (span.last - span.first) / workers)
            else:
                around.samples = _leading(batch) if weight else 0.0
            yield around.to_device(batch)

    def over(self) -> None:
        """The batch that was given last is over."""
        if self.exact is not None:
            self._run.batch_done(self.name)


def _global_batch(loader: DataLoader[Any], around: Surroundings) -> int:
    """Samples of a step over all workers. A DataLoader that was made with the configured batch size, as a whole or a
    worker's part of it, gets the configured one; else its own times the workers that were asked for."""
    whole: int | None = around.program["config"].get(BATCH_SIZE)
    own = int(getattr(loader.batch_sampler, "batch_size", loader.batch_size) or 1)
    if whole is not None and own in (whole, around.config[BATCH_SIZE]):
        return whole
    return own * int(around.program["num_workers"])


def _in_words_of_the_trainer(refusal: str) -> str:
    """A program with a trainer calls no `run.loader`: what it may do in its place is said."""
    refusal = re.sub(r", or, if it divides .* say run\.loader\(\.\.\., streams=.*", "", refusal)
    refusal = refusal.replace(
        "run.loader(..., replay=True), which reads again from the start of the epoch up to the place",
        "add_dist_sampler=False of the trainer, by which a restart reads again from the start of the pass",
    )
    return re.sub(
        r"if each rank's iterator yields every sample, say run\.loader.*; or give it an attribute `sampler`",
        "give it an attribute `sampler`, or the trainer add_dist_sampler=False, by which each worker trains on all "
        "that its own iterator yields",
        refusal,
    )


def _leading(batch: Any) -> float:
    """Samples of a batch: the length of its first tensor."""
    if isinstance(batch, dict):
        batch = tuple(batch.values())
    while isinstance(batch, (list, tuple)) and batch:
        batch = batch[0]
    shape = getattr(batch, "shape", None)
    return float(shape[0]) if shape is not None and len(shape) else 1.0


def state_directory(folder: str, program: Any) -> str:
    """Where the run keeps its state."""
    return program["checkpoint_dir"] or os.path.join(folder, "state")
