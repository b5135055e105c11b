"""A training run that can be killed at any moment: what was committed is neither lost nor repeated."""

from __future__ import annotations

import io
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from .checkpoints.folder import Retention
from .checkpoints.manifest import Manifest
from .data.cursors import Account, Cursor, Span
from .data.loader import Loader
from .data.order import VERSION as ORDER_VERSION
from .data.randomness import key_everything
from .errors import CheckpointNotWritten, Misused, WrongState
from .failing import fail_together
from .frameworks.switch import chosen
from .keys import key_of, mix
from .ledger import Ledger
from .persistence import Found, Persistence, Snapshot
from .schedule import Every, Exchanges, advised_s
from .values import Mean, Vars
from .world import World

_VARS, _STREAMS = "run.vars", "run.streams"


class Run:
    """What a training script asks for its place, its data and its checkpoints.

    Made after the model and the optimizer, on every rank, with the same arguments. On return the newest checkpoint
    that verifies has been loaded into them.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        seed: int = 0,
        every: Every | None = None,
        keep: Retention | None = None,
        **states: Any,
    ) -> None:
        """directory: of the checkpoints; made if missing (default: that of --exact-resume). seed: of order and random
        numbers. every: when to save (default: every 10 minutes, and at the end of each epoch and of the run). keep:
        which checkpoints stay (default: the two newest, and labelled ones). states: by name, anything with
        `state_dict` and `load_state_dict`.

        Collective. Raises Misused, WrongState.
        """
        for name, thing in states.items():
            if not all(callable(getattr(thing, needed, None)) for needed in ("state_dict", "load_state_dict")):
                raise Misused(f"Run({name}=...): {type(thing).__name__} has no state_dict() and load_state_dict()")
        self._world = World()
        self.rank, self.world_size, self.seed = self._world.rank, self._world.size, seed
        self.log = _log_of(self.rank)
        self.vars = Vars()
        self.account = Account()
        self.ledger = Ledger()
        self.steps = 0
        """Steps done, over all restarts."""
        self.epoch = 0
        """The epoch of `epochs` that is going on."""
        self.stopping = False
        """Whether all ranks have agreed to end early."""
        self._states, self._every = states, every or Every()
        self._loaders: dict[str, Loader] = {}
        self._means: dict[str, Mean] = {}
        self._keyed_by_batch = False
        self._label: str | None = None
        self._stop_asked = False
        self._exchanges = Exchanges(alone=self.world_size == 1)
        self._key = key_of(seed, "main")
        self._persistence = Persistence(self._world, Path(chosen(directory)), keep or Retention(), self.log.warning)
        self._found: Manifest | None = None
        self._streams: dict[str, Any] = {}
        self._boundaries = self._commits = 0
        self._forced = False
        if (found := self._persistence.find()) is not None:
            self._load(found)
        self._saved = (self._commits, self.epoch)
        self._saved_at_s = time.monotonic()
        self._blocked_s = 0.0
        self._key_main()

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
    ) -> Loader:
        """A loader that begins where the run is.

        global_batch: samples of a step over all ranks (default: the DataLoader's batch size times the ranks at the
        first start). name: of its order and place (default: loader0, loader1, ... as they are made). train: whether
        its batches are committed by `step`; False: by asking for the next one; None: False while gradients are off.
        random: "auto", "always" or "never", whether the dataset draws random numbers. on_sample: called with a key
        before each sample, for libraries with generators of their own. replay: an iterable dataset that cannot say
        where it is is read again from the start of its epoch, by every rank.

        Raises NotResumable, WrongState.
        """
        name = name or f"loader{len(self._loaders)}"
        if name in self._loaders:
            raise Misused(f"two loaders are named {name!r}: names tell their orders and places apart")
        self.account.cursors[name] = Cursor()
        made = self._loaders[name] = Loader(self, loader, name, global_batch, train, random, on_sample, replay)
        if self._found is not None and name in self._found.places:
            made.adopt(self._found.run["loaders"][name], self._streams.get(name))
            self.account.restore(name, self._found.places[name])
        return made

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of the epochs that are left, the interrupted one first. Saves at the end of each, and waits for
        the last save; ends early where `stop` was called."""
        while self.epoch < count and not self.stopping:
            yield self.epoch
            if not self.stopping:
                self.epoch += 1
                self.account.next_epoch()
                self._between(force=True)
        self.close()

    def batches(self, loader: Loader, steps: int) -> Iterator[Any]:
        """Batches of one epoch after the other, until the run has `steps` steps. Raises Misused where an epoch passes
        without `step`."""
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
        self.close()

    def step(self) -> None:
        """After each optimizer step: the batches that were handed out are trained on.

        What is due, a save or an exchange of requests, is done when the loop asks for its next batch, so that whatever
        follows the step in the loop belongs to it; at once where no loader is looped over. That is collective.
        """
        self.steps += 1
        for span in self.account.step():
            self._enter(span)
        if not self._keyed_by_batch:
            self._key_main()
        self._keyed_by_batch = False
        every = self._every.steps
        self._forced = self._forced or (every is not None and self.steps % every == 0)
        if not self.account.looping():
            self._boundary()

    def save(self, label: str = "") -> None:
        """Asks for a checkpoint, on any rank: it is made at the next exchange. label: keeps it beyond retention."""
        self._label = label

    def stop(self) -> None:
        """Asks for the end, on any rank: at the next exchange all ranks save and leave `epochs` or `batches`."""
        self._stop_asked = True

    def rng(self, name: str) -> torch.Generator:
        """A generator for this step and rank, the same after a restart."""
        return torch.Generator().manual_seed(key_of(self.seed, "rng", name, self.steps, self.rank))

    def mean(self, name: str) -> Mean:
        """A mean over samples and ranks that checkpoints keep, by name."""
        if name not in self._means:
            self._means[name] = Mean(self._world)
            kept = self._found.run["means"] if self._found is not None else {}
            if name in kept:
                self._means[name].restore(kept[name])
        return self._means[name]

    def fail_together(self) -> AbstractContextManager[None]:
        """Around the loop: an exception on this rank ends its process at once, with the cause in the error file, so
        that no other rank waits for it in a collective until the timeout: the launcher sees the exit and ends them."""
        return fail_together(self.log, self.rank)

    def close(self) -> None:
        """Saves what is not saved, and waits for the disk. Collective. `epochs` and `batches` do it at their end.

        Raises CheckpointNotWritten.
        """
        self.account.close()
        if self._saved != (self._commits, self.epoch):
            self._save("")
        self._persistence.wait()

    @property
    def level(self) -> str:
        """What is equal to a run without restarts, whatever the number of ranks: "samples" or "batches"."""
        return "batches" if all(loader.fixed_batch for loader in self._loaders.values()) else "samples"

    # -- what loaders call ---------------------------------------------------------------------------------------------

    def handed_out(self, key: int) -> None:
        """See `Context`."""
        self._keyed_by_batch = True
        key_everything(mix(key, self.rank))

    def asked(self) -> None:
        """See `Context`."""
        for span in self.account.take():
            self._enter(span)
        self._boundary()

    # -- between steps -------------------------------------------------------------------------------------------------

    def _boundary(self) -> None:
        """Between two batches, or two steps: all ranks come here equally often."""
        self._boundaries += 1
        if self._forced or self._exchanges.due(self._boundaries):
            self._between(force=self._forced)

    def _enter(self, span: Span) -> None:
        self.ledger.add(span)
        self._commits += 1
        cursor = self.account.cursors[span.loader]
        self._loaders[span.loader].committed(cursor.epoch, cursor.position)

    def _key_main(self) -> None:
        key_everything(mix(mix(self._key, self.steps), self.rank))

    def _between(self, force: bool) -> None:
        now_s = time.monotonic()
        due = self.rank == 0 and self._due(now_s)
        interval = self._exchanges.proposal(self._boundaries, now_s)
        asked = [int(due or self._label is not None), int(self._stop_asked)]
        saves, stops, interval = self._world.most([*asked, interval])
        self._exchanges.agreed(self._boundaries, interval)
        self.stopping = self.stopping or bool(stops)
        if (saves or stops or force) and self.account.between_steps():
            self._save(self._label or "")
            self._label, self._forced = None, False

    def _due(self, now_s: float) -> bool:
        if self._persistence.busy:
            return False
        interval_s = self._every.seconds
        if self._every.failures_s is not None:
            interval_s = advised_s(self._blocked_s, self._every.failures_s)
        return interval_s is not None and now_s - self._saved_at_s >= interval_s

    def _save(self, label: str) -> None:
        began_s = time.monotonic()
        label = next((text for text in self._world.gather(label) if text), "")
        run = {
            "seed": self.seed,
            "epoch": self.epoch,
            "world_size": self.world_size,
            "order": ORDER_VERSION,
            "level": self.level,
            "loaders": {name: loader.identity() for name, loader in self._loaders.items()},
            "means": {name: mean.gather() for name, mean in self._means.items()},
        }
        if self._persistence.writes:
            ledger = json.dumps(self.ledger.to_json()).encode()
            snapshot = Snapshot(self.steps, self.account.places(), run, self.ledger.head(), ledger, label)
            states = {name: thing.state_dict() for name, thing in self._states.items()}
            states[_VARS] = self.vars.state_dict()
            states[_STREAMS] = {name: loader.stream_state for name, loader in self._loaders.items()}
            try:
                self._persistence.save(snapshot, states)
            except CheckpointNotWritten:
                # The writer has said so already; this save is the next attempt.
                self._persistence.save(snapshot, states)
        self._saved, self._saved_at_s = (self._commits, self.epoch), time.monotonic()
        self._blocked_s = self._saved_at_s - began_s

    # -- the start -----------------------------------------------------------------------------------------------------

    def _load(self, found: Found) -> None:
        manifest, where = found.manifest, f"the checkpoint of step {found.manifest.step}"
        if manifest.run["order"] != ORDER_VERSION:
            raise WrongState(
                f"{where} has order version {manifest.run['order']}, and this version of elastic-agent makes "
                f"{ORDER_VERSION}: go on with the version that wrote it, or begin anew in another directory"
            )
        if manifest.run["seed"] != self.seed:
            raise WrongState(f"{where} has seed {manifest.run['seed']}, and Run(..., seed={self.seed}) another")
        states = torch.load(io.BytesIO(found.state), weights_only=True, map_location="cpu")
        kept, given = set(states) - {_VARS, _STREAMS}, set(self._states)
        if kept != given:
            raise WrongState(
                f"{where} holds {', '.join(sorted(kept)) or 'nothing'}, and Run(...) was given "
                f"{', '.join(sorted(given)) or 'nothing'}"
            )
        for name, thing in self._states.items():
            thing.load_state_dict(states[name])
        self.vars.load_state_dict(states[_VARS])
        self._streams = states[_STREAMS]
        self.ledger = Ledger.from_json(json.loads(found.ledger))
        self._found = manifest
        self.steps = manifest.step
        self.epoch = int(manifest.run["epoch"])
        ranks = f"{self.world_size} ranks ({manifest.run['world_size']} before)"
        self.log.info(
            "resumed at step %d, epoch %d, with %s, level %s", self.steps, self.epoch, ranks, manifest.run["level"]
        )


def _log_of(rank: int) -> logging.Logger:
    """The run's log: every record of rank 0, warnings of the others."""
    log = logging.getLogger(f"elastic_agent.worker.rank{rank}")
    if rank:
        log.setLevel(logging.WARNING)
    return log
