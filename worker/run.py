"""A training run that can be killed at any moment: what was committed is neither lost nor repeated."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from torch.utils.data import DataLoader

from .checkpoints.folder import Retention
from .checkpoints.manifest import Manifest
from .checks import check_names, check_run, frozen_in, keepable, load_all, set_frozen
from .data.alike import Alike
from .data.cursors import Account, Cursor
from .data.loader import Loader
from .data.order import VERSION as ORDER_VERSION
from .data.randomness import key_everything
from .data.sharded import Division
from .errors import Misused
from .failing import end_when_uncaught
from .frameworks.switch import chosen
from .keys import key_of, mix
from .ledger import TOGETHER, Ledger
from .loop import account
from .loop.between import Between
from .loop.body import Body
from .loop.early import EarlyEnd, known_s
from .loop.forgotten import Forgotten
from .loop.gradients import mark
from .loop.log import RunLog
from .loop.marks import SAVE, marks_of
from .loop.progress import Progress, place_of
from .loop.reductions import Reductions
from .loop.requests import Requests
from .names import Names
from .persistence import Found, Persistence, Snapshot
from .schedule import Every, Exchanges, Timetable, checked
from .shards.conditions import accept
from .shards.digest import digest
from .shards.sharding import Sharding
from .values import OWN, Vars, kept_of, own_parts, with_own
from .world import World

_VARS, _STREAMS, _METRICS = "run.vars", "run.streams", "run.metrics"


class Run(Body):
    """What a training script asks for its place, its data and its checkpoints.

    Made after the model and the optimizer, on every rank, with the same arguments. On return the newest checkpoint
    that verifies has been loaded into them.
    """

    stopping = False
    """Whether all ranks have agreed to end early."""
    ranks_before: int | None = None
    division: Division | None
    key: Callable[[int], None]
    """As `Context` defines them."""
    _found: Manifest | None = None

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        seed: int = 0,
        every: Every | None = None,
        keep: Retention | None = None,
        format: str = "torch",  # noqa: A002 - the word means this in every library that saves
        copy_to: str | os.PathLike[str] | None = None,
        shards: int | None = None,
        stop_before: float | bool | None = None,
        **states: Any,
    ) -> None:
        """directory: of the checkpoints; made if missing (default: that of --exact-resume). seed: of order and random
        numbers. every: when to save (default: every 10 minutes, and at the end of each epoch and of the run). keep:
        which checkpoints stay (default: the two newest, and labelled ones). format: of the tensors, "torch" or
        "safetensors". copy_to: slower storage that each checkpoint is copied to, a directory or a URL of fsspec's.
        shards: level `bits`, for 1 to so many ranks (default: none; see `shards`). stop_before: so many seconds before
        the job's deadline all ranks save and stop (default: as many as a save needs, measured; False: they do not).
        states: by name, anything with `state_dict` and `load_state_dict`. Collective. Raises Misused, WrongState.
        """
        self._make_place()
        states = keepable(states)
        self._world = World()
        self.rank, self.world_size, self.seed = self._world.rank, self._world.size, seed
        self.log = RunLog(self.rank)
        self.progress = Progress(lambda: place_of(self.account, self._loaders, self.epoch, self.steps), self.rank)
        self.vars, self._ledger, self.epoch, self._began = Vars(), Ledger(), 0, 0
        """The epoch of `epochs` that is going on, and the steps, of all restarts, as it began."""
        self._states, self._every, self._shards = states, checked(every), shards
        if shards is not None:
            self._sharding, self.key = Sharding(shards, self._world, states, self.log), self._key_turn
            self.division = self._sharding.division
        self._loaders, self.gradients, self._names = dict[str, Loader](), partial(mark, self._states), Names()
        self._reductions, self.alike, self._exchanges = Reductions(self._world), Alike(self._world), Exchanges()
        self.between: Between | None = Between(self._world, states, self.vars, self._reductions, self.log)
        self._early = EarlyEnd(stop_before, self.log, self.disturb)
        self._persistence = Persistence(self._world, Path(chosen(directory)), keep, self.log.warning, format, copy_to)
        self._streams: dict[str, Any] = {}
        self._key, self._boundaries, self._commits, self._asked = key_of(seed, "main"), 0, 0, 0
        self._begin()
        self._requests = Requests(self.rank, self.world_size, self.log, self.steps)
        self.watched = self._marks.shows or account.current is not None
        self._saved = self._reached()
        self._counts_only = self._every.steps is None and not (self.watched or self._requests.listens or shards)
        self._timetable = Timetable(self._every, self.log.info)
        self._forgotten = Forgotten(self, self._world, states, self.steps - self._began)
        # What a script draws before its loops over loaders, as `random_split` does, is the same in each start and on
        # all ranks; steps alone have one place.
        self._key_main(0, 0) if self.account.kept or not self.steps else self._key_main()

    def _make_place(self) -> None:
        """Before all else, and so beside each other in memory, for what is looked at in each step."""
        self.keyed = self.stopping = self.watched = self._counts_only = self._streamed = False
        self.steps, self.account, self.quiet_until_s = 0, Account(), -math.inf
        self.key, self.division = key_everything, None
        self._sharding: Sharding | None = None

    # -- the loop ------------------------------------------------------------------------------------------------------

    def loader(
        self,
        loader: DataLoader[Any],
        *,
        global_batch: int | None = None,
        name: str | None = None,
        train: bool | None = None,
        random: str = "auto",
        on_sample: Callable[[int], None] | None = None,
        replay: bool = False,
        streams: int | None = None,
    ) -> Loader:
        """A loader that begins where the run is.

        global_batch: samples of a step over all ranks (default: the DataLoader's batch size times the ranks at the
        first start). name: of its order and place (default: loader0, loader1, ... as they are made; one that is made in
        the body of `epochs` takes the place of that of the epoch before). train: whether
        its batches are committed by `step`; False: by asking for the next one; None: False while gradients are off.
        random: "auto", "always" or "never", whether the dataset draws random numbers. on_sample: called with a key
        before each sample, for libraries with generators of their own. replay: an iterable dataset that cannot say
        where it is is read again from the start of its epoch, by every rank. streams: an iterable dataset that divides
        itself by `get_worker_info()` is read as so many streams, whatever the number of loader processes, which must
        divide it; every rank reads all of them. Raises NotResumable, WrongState."""
        name = self._names.of(name)
        before, _ = self._loaders.get(name), self.account.cursors.setdefault(name, Cursor())
        made = self._loaders[name] = Loader(self, loader, name, global_batch, train, random, on_sample, replay, streams)
        self._streamed = self._streamed or made.is_stream
        self._counts_only = self._counts_only and not made.is_stream
        if before is not None:
            made.adopt(before.identity(), before.stream_state, anew=True)
        elif self._found is not None and name in self._found.places:
            self.account.restore(name, self.account.kept[name], not made.is_stream)
            made.adopt(self._found.run["loaders"][name], self._streams.get(name), anew=self._names.within)
            self._forgotten.goes_on(name)
        return made

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of the epochs that are left, the interrupted one first. Saves at the end of each, and waits for
        the last save; ends early where `stop` was called. From here on an uncaught exception ends this rank at once."""
        with self._looping(), self._names.epochs():
            while self.epoch < count and not self.stopping:
                self._names.epoch_begins()
                if self.between is not None:
                    self.between.epoch_begins(goes_on=self.steps > self._began)
                yield self.epoch
                if not self.stopping:
                    self._forgotten.epoch_over(stepped=self.steps > self._began)
                    self.epoch, self._began = self.epoch + 1, self.steps
                    self.account.next_epoch()
                    self._between(force=True)

    def batches(self, loader: Loader, steps: int) -> Iterator[Any]:
        """Batches of one epoch after the other, until the run has `steps` steps. Raises Misused where an epoch passes
        without `step`. As `epochs` otherwise."""
        with self._looping():
            while self.steps < steps and not self.stopping:
                before = self.steps
                self.account.next_epoch()
                for batch in loader:
                    yield batch
                    if self.steps >= steps or self.stopping:
                        break
                else:
                    if self.steps == before:
                        raise Misused(f"an epoch of loader {loader.name!r} passed without run.step()")

    def step(self) -> None:
        """After each optimizer step: the batches that were handed out are trained on. A save or exchange that is due is
        made when the loop asks for its next batch, so that whatever follows the step in the loop belongs to it; at once
        where no loader is looped over. That is collective."""
        if not (counts_only := self._counts_only) and self._sharding is not None:
            self._sharding.check_closed()
        self.steps += 1
        looping, keyed, self.keyed = self.account.step(), self.keyed, False
        if counts_only and looping and keyed:
            return
        if not keyed or self._sharding is not None:
            self._key_main()
        if (every := self._every.steps) is not None and self.steps % every == 0:
            self._requests.forced = True
            self.disturb()
        if self.watched:
            self._marks.step()
        if not looping:
            self._forgotten.stepped(in_epoch=self._early.within)
            self.asked()

    def digest(self) -> str:
        """SHA-256 of the states, vars, random generators and places: equal digests go on alike. After a step."""
        states = {name: thing.state_dict() for name, thing in self._states.items()}
        places = [self.steps, self.epoch, self.account.places()]
        return digest({"states": states, "vars": self.vars.state_dict(), "places": places})

    def close(self) -> None:
        """Saves what is not saved, and waits for the disk, as `epochs` and `batches` do. Collective. Raises
        CheckpointNotWritten."""
        self.progress.close()
        self.account.close()
        self._requests.reached()
        # A label may have been asked for on one rank, and behind the last checkpoint.
        asked = self._saved != self._reached() or self._requests.ordered or self._requests.label is not None
        unsaved, late = self.alike.most([int(asked), self._early.late(self._save_s())])
        with self._marks.section(SAVE):
            if unsaved and late:
                self._skip()
            elif unsaved:
                self._save(self._requests.label or "")
            # All wait for all: one that ends before has the launcher end the others as they write.
            self._world.together(self._persistence.wait)
        self._marks.ended()
        self._requests.saved(self._persistence.wait)
        self._requests.closed()
        self._key_main()  # what follows draws the same numbers in a start that finds nothing left to do

    def complete(self) -> None:
        """Behind all that belongs to the training: saves, and leaves a mark by which later starts of the same command
        under `--exact-resume` end at once with 0; none where the run stops. Collective. Raises CheckpointNotWritten,
        OSError, WrongState."""
        self.close()
        if self.stopping:
            self.log.warning("run.complete() leaves no mark, as the run stopped at step %d", self.steps)
            return
        self._persistence.complete(self.steps, self.epoch)

    @property
    def ledger(self) -> Ledger:
        """What has been trained on, up to the last step."""
        self._enter()
        return self._ledger

    @property
    def level(self) -> str:
        """What is equal to a run without restarts, whatever the number of ranks: "samples", "batches" or "bits"."""
        if self._sharding is not None:
            return "bits"
        return "batches" if all(loader.fixed_batch for loader in self._loaders.values()) else "samples"

    # -- what loaders call ---------------------------------------------------------------------------------------------

    def got(self) -> None:
        """As `Context` defines it."""
        self._marks.got((account := self.account).may_evaluate and account.evaluating())

    def asked(self) -> None:
        """As `Context` defines it; also between two steps where no loader is looped over, equally often on all."""
        self._boundaries += 1
        if self._streamed or len(self.account.committed) >= TOGETHER:
            self._enter()
        if (requests := self._requests).listens:
            requests.reached()
        if self.world_size > 1:
            due = self._exchanges.due(self._boundaries)
        else:  # it need ask nobody: whether it has anything to do, for the price of a clock
            if self._counts_only:
                self.quiet_until_s = self._timetable.due_s  # before the rest: a signal's handler may disturb it
            due = requests.stop or requests.label is not None or self._early.pending
            due = due or monotonic() >= self._timetable.due_s
        if due or requests.forced:
            self._between(force=requests.forced)
            self.disturb()
        if self.watched:
            self._marks.asked()

    def _reached(self) -> tuple[int, int, int]:
        """What a checkpoint would add to the one before it, if anything."""
        self._enter()
        return self._commits, self.steps, self.epoch

    def _enter(self) -> None:
        """What was committed since the last time, into the ledger: many batches at once cost a third of one by one."""
        spans = self.account.take()
        self._ledger.add(spans)
        self._commits += len(spans)
        for loader in self._loaders.values() if self._streamed else ():
            loader.committed()

    def _key_main(self, steps: int | None = None, turn: int | None = None) -> None:
        steps, turn = self.steps if steps is None else steps, self._turn() if turn is None else turn
        key_everything(mix(mix(self._key, steps), turn))

    def _between(self, force: bool) -> None:
        now_s = monotonic()
        due = self.rank == 0 and now_s >= self._timetable.due_s and not self._persistence.busy
        requests, interval = self._requests, self._exchanges.proposal(self._boundaries, now_s)
        measure, stop, late = self._early.numbers(self._save_s())
        due = due or requests.label is not None or bool(measure)
        saves, stops, late, interval = self.alike.most([int(due), int(requests.stop or stop), late, interval])
        self._exchanges.agreed(self._boundaries, interval)
        between = self.account.between_steps()  # else the end waits: batches in use would be lost to their epoch
        self.stopping |= bool(stops := stops and between and not self.stopping)
        if late and (saves or stops or force):
            self._skip()
        elif (saves or stops or force) and between:
            with self._marks.section(SAVE):
                self._save(requests.label or "")
                requests.saved(self._persistence.wait)
        if stops and self._early.within:
            self._end_early()

    def _end_early(self) -> None:
        self.close()
        if not self._requests.stop_ordered:
            self._early.leave(self.steps)

    def _skip(self) -> None:
        self._early.tell_skipped(self.steps, self._save_s())
        self._saved = self._reached()
        self._requests.saved(self._persistence.wait)

    def _save_s(self) -> float:
        return known_s(self._timetable.longest_s, self._persistence.took_s, self._persistence.busy)

    @contextmanager
    def _looping(self) -> Iterator[None]:
        end_when_uncaught(self.log, self.rank, self.world_size)
        self.account.begin_loop(over_epochs=True)
        with self._early.noticing(lambda: (self.stopping, self.steps - self._saved[1])):
            if self.steps or self._turn():
                self._key_main()
            yield
        self._end_early() if self.stopping else self.close()
        self.account.behind = True
        if self.between is not None:
            self.between.passed()

    def _save(self, label: str) -> None:
        self._enter()
        began_s = monotonic()
        label = next((text for text in self._world.gather(label) if text), "")
        # Of two checkpoints of one place that differ in `asked`, both are kept.
        run: dict[str, Any] = {"seed": self.seed, "epoch": self.epoch, "began": self._began, "asked": self._asked}
        run |= {"world_size": self.world_size, "means": self._reductions.means(), **self.account.passed()}
        run |= {"order": ORDER_VERSION, "level": self.level, "frozen": frozen_in(self._states)}
        run |= {"shards": None} if self._sharding is None else self._sharding.kept()
        known = self._found.run["loaders"] if self._found is not None else {}  # not all may have been made yet
        run |= {"loaders": known | {name: loader.identity() for name, loader in self._loaders.items()}}
        snapshot = Snapshot(self.steps, self.account.places(), run, self._ledger.head(), self._ledger.to_bytes(), label)
        states = {name: thing.state_dict() for name, thing in self._states.items()}
        states |= {OWN: own_parts(self._states, states, self._world), _METRICS: self._reductions.metrics()}
        streams = {name: loader.stream_state for name, loader in self._loaders.items()}
        states |= {_VARS: kept_of(self.vars, self._world, self.log), _STREAMS: self._streams | streams}
        self._persistence.save(snapshot, states)
        self.log.info("checkpoint of step %d, level %s", self.steps, self.level)
        self._saved = self._reached()
        self._timetable.saved(began_s)

    # -- the start -----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._marks = marks_of(self.rank, os.path.abspath(self._persistence.folder.path))
        if (found := self._persistence.find(self._states)) is not None:
            self._load(found)
        if self._sharding is not None:
            self._sharding.begin(None if found is None else found.manifest.run)

    def _load(self, found: Found) -> None:
        manifest, where = found.manifest, f"the checkpoint of step {found.manifest.step}"
        check_run(manifest, self.seed, where)
        accept(manifest, self._shards, where, self.log)
        states = with_own(found.load(self._states), self._states, self._world, where, self.log)
        check_names(set(states) - {_VARS, _STREAMS, _METRICS}, set(self._states), where)
        load_all(self._states, states, where)
        set_frozen(self._states, manifest.run.get("frozen", {}), where, self.log)
        self.vars.load_state_dict(states[_VARS])
        self._streams = states[_STREAMS]
        self._reductions.load(manifest.run["means"], states.get(_METRICS, {}))
        self._ledger = Ledger.from_bytes(found.ledger)
        self.account.go_on(manifest.places, manifest.run)
        self._found, self.steps, self.epoch = manifest, manifest.step, int(manifest.run["epoch"])
        self._began, self.ranks_before = int(manifest.run.get("began", self.steps)), int(manifest.run["world_size"])
        ranks = f"{self.world_size} ranks ({self.ranks_before} before), level {manifest.run['level']}"
        within = "".join(f", {name} at {place[1]}" for name, place in manifest.places.items() if place[1])
        self.log.info("resumed at step %d, epoch %d%s, with %s", self.steps, self.epoch, within, ranks)
