"""accelerate and Lightning Fabric: loops that the script has written, over things that the framework has prepared."""

from __future__ import annotations

import functools
import os
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from ..checks import keepable
from ..data.loader import Loader
from ..data.orderings import plain_batches
from ..errors import Misused, NotResumable
from ..loop.forgotten import HOOKS, hooks_that_keep, schedules_left_out
from ..loop.gradients import mark
from ..run import Run
from ..schedule import Every
from . import switch

_LATER, _FIRST_RANKS = "states prepared later", "ranks of the first start"
_LOADED = "what the script loaded in the first start"
"""Names among `run.vars`; no attribute that a script could write has a space."""


_THEIRS = (
    "batch_size", "sampler", "batch_sampler", "drop_last", "num_workers", "collate_fn", "pin_memory", "timeout",
    "worker_init_fn", "prefetch_factor", "persistent_workers", "generator", "multiprocessing_context", "in_order",
)  # fmt: skip
"""What a prepared loader says of itself as the script's own does."""


class Placed:
    """A loader whose batches are on the framework's device."""

    def __init__(
        self, prepared: Prepared, loader: DataLoader[Any], number: int, to_device: Callable[[Any], Any]
    ) -> None:
        self._prepared, self._loader, self._number, self._to_device = prepared, loader, number, to_device
        self.dataset = loader.dataset
        self.end_of_dataloader = False
        """Whether the batch in hand is the last of its epoch; accelerate asks for it to end an accumulation."""
        self.remainder = -1
        self.begins: Callable[[Placed], None] = lambda _: None
        self.ends: Callable[[Placed], None] = lambda _: None

    @property
    def exact(self) -> Loader:
        """The loader of this library."""
        return self._prepared.loader(self._number)

    @property
    def total_batch_size(self) -> int:
        """Samples of a batch over all ranks, those of the first start."""
        sampler, batch = self._loader.batch_sampler, self.exact.global_batch
        if sampler is None or plain_batches(sampler):
            return batch
        # Batches of a sampler of the script's own are not cut: each rank has one of them.
        return int(sampler.batch_size) * batch  # type: ignore[attr-defined]

    @property
    def total_dataset_length(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def set_epoch(self, epoch: int) -> None:
        """Nothing: the order of an epoch follows from its number, which the run counts."""

    def state_dict(self) -> dict[str, Any]:
        """The place behind the last step, for code that asks for it; checkpoints have it without being asked."""
        return self.exact.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to a place, before the loop begins. Raises WrongState for the state of another loader."""
        self.exact.load_state_dict(state)

    def __getattr__(self, name: str) -> Any:
        if name in _THEIRS:
            return getattr(self._loader, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __len__(self) -> int:
        return len(self.exact)

    def __iter__(self) -> Iterator[Any]:
        self._prepared.check()
        # The order in which loops begin counts, so it begins now and not at its first batch.
        return self._given(self.exact, iter(self.exact))

    def _given(self, loader: Loader, batches: Iterator[Any]) -> Iterator[Any]:
        run = self._prepared.run
        self.end_of_dataloader = False
        self.begins(self)
        try:
            for batch in batches:
                held = run.account.cursors[loader.name].held
                self.end_of_dataloader = bool(held) and held[-1].ends_epoch
                if self._prepared.trains():
                    self._prepared.weight = loader.weight
                yield self._to_device(batch)
        finally:
            self.ends(self)


class PreparedRun(Run):
    """A run that may be given further states after it has loaded the others."""

    def __init__(self, directory: str | os.PathLike[str] | None, **options: Any) -> None:
        """As `Run`."""
        self._later: dict[str, Any] = {}
        self._saves = False
        super().__init__(directory, **options)
        self._loaded = [
            (group, {name: _copied(value) for name, value in group.items() if name != "params"})
            for thing in self._states.values()
            for group in getattr(thing, "param_groups", ())
        ]
        """Groups of parameters with what the checkpoint has for them."""
        if self.vars.get(_FIRST_RANKS) is None:
            found = self._found
            setattr(self.vars, _FIRST_RANKS, self.world_size if found is None else int(found.run["world_size"]))

    @property
    def first_ranks(self) -> int:
        """How many ranks there were at the first start, of which the global batches are."""
        return int(self.vars.get(_FIRST_RANKS))

    def loads(self, call: str, path: str | os.PathLike[str] | None) -> bool:
        """Whether the script is to load a checkpoint of its own: as a beginning in the first start only, and behind a
        loop always, such as the best weights for a last evaluation. Raises Misused where it is a beginning that the
        first start did not have, so that this would replace what this one goes on with."""
        if self.account.has_begun or self.account.behind:
            return True
        loaded, name = self.vars.get(_LOADED, []), os.fspath(path or "")
        if self._found is None:
            setattr(self.vars, _LOADED, [*loaded, name])
            return True
        if name not in loaded:
            raise Misused(
                f"{call}({name!r}): this start goes on from step {self._found.step} of exact(...), which has loaded "
                "everything that was prepared; what the script loads would be older than the place in the data. Take "
                "the call out, and loop over .exact.epochs(n)"
            )
        self.log.info("%s(%r) is left out: the first start had it, and this one goes on from there", call, name)
        return False

    def add(self, name: str, thing: Any) -> None:
        """Another state; where the checkpoint has it, it is loaded now."""
        thing = keepable({name: thing})[name]
        if name in (kept := self.vars.get(_LATER, {})):
            thing.load_state_dict(kept[name])
            for group, values in self._loaded:  # a schedule that is made puts the first rate into its optimizer
                group.update(values)
        self._later[name] = thing
        self.gradients = functools.partial(mark, {**self._states, **self._later})
        if self.between is not None:
            self.between.add(name, thing)

    def _say_left_out(self) -> None:
        """At the first save, behind which little is prepared."""
        if self._saves or self.rank:
            return
        self._saves = True
        given = [getattr(each, "unwrapped", each) for each in (*self._states.values(), *self._later.values())]
        for kind in hooks_that_keep(given):
            self.log.warning(HOOKS, kind)
        for kind in schedules_left_out(getattr(each, "scheduler", each) for each in given):
            self.log.warning(
                "a %s of an optimizer that is kept is not kept itself, and begins anew in each start: prepare it, or "
                "give it by name, as exact(..., schedule=schedule)",
                kind,
            )

    def _save(self, label: str) -> None:
        self._say_left_out()
        # Of those that the script has not come to yet, what the last checkpoint had.
        later = {**self.vars.get(_LATER, {}), **{name: thing.state_dict() for name, thing in self._later.items()}}
        if later:
            setattr(self.vars, _LATER, later)
        super()._save(label)


class Prepared:
    """What a framework has prepared. The run is made once an optimizer and a loader are known, and loads then; what is
    prepared behind that is loaded as it is prepared."""

    def __init__(
        self, directory: str | os.PathLike[str] | None, seed: int, every: Every | None, states: dict[str, Any]
    ) -> None:
        self._directory = switch.chosen(directory)
        self._seed, self._every, self._states = seed, every or Every(*switch.save_every()), dict(states)
        self._waiting: list[tuple[DataLoader[Any], int | None]] = []
        self._made: list[Loader] = []
        self._run: PreparedRun | None = None
        self.weight = 1.0
        """Of the training batch in hand: the loss is multiplied by it."""

    def add(self, kind: str, thing: Any) -> None:
        """Another model, optimizer or schedule, whose state is kept."""
        name = f"{kind}{sum(name.rstrip('0123456789') == kind for name in self._states)}"
        self._states[name] = thing
        if self._run is not None:
            self._run.add(name, thing)

    def check(self) -> None:
        """Before a loop. Raises Misused where nothing would be kept."""
        if not self._states:
            raise Misused(
                "exact(...) knows no model and no optimizer, so it has nothing to keep: prepare them with this object "
                "before the first loop, or give them by name, as exact(..., 'checkpoints', model=net)"
            )

    def place(
        self, loader: DataLoader[Any], to_device: Callable[[Any], Any], global_batch: int | None = None
    ) -> Placed:
        """The loader that the script gets in place of its own. global_batch: as for `Run.loader`."""
        self._waiting.append((loader, global_batch))
        return Placed(self, loader, len(self._waiting) - 1, to_device)

    def ready(self) -> None:
        """Makes the run, and with it loads, once there is an optimizer and a loader. Collective."""
        if self._run is None and self._waiting and any(name.startswith("optimizer") for name in self._states):
            self.start()

    def start(self) -> PreparedRun:
        """Makes the run, and the loaders that are not made. Collective."""
        if self._run is None:
            self._run = PreparedRun(self._directory, seed=self._seed, every=self._every, **self._states)
        # In the order in which they were prepared: their names are numbers.
        for loader, global_batch in self._waiting[len(self._made) :]:
            self._made.append(self._run.loader(loader, global_batch=global_batch))
        return self._run

    @property
    def run(self) -> PreparedRun:
        """The run; made now at the latest. Collective then."""
        return self._run or self.start()

    def loads(self, call: str, path: str | os.PathLike[str] | None) -> bool:
        """As the run's; what a script loads before there is one, the run loads over."""
        return self._run is None or self._run.loads(call, path)

    def loader(self, number: int) -> Loader:
        self.start()
        return self._made[number]

    def trains(self) -> bool:
        return torch.is_grad_enabled()

    def stepped(self) -> None:
        """After an optimizer step."""
        self.run.step()

    def epochs(self, count: int) -> Iterator[int]:
        """As `Run.epochs`: the epochs that are left, the interrupted one first."""
        return self.run.epochs(count)

    def close(self) -> None:
        """Saves what is not saved, and waits for the disk. Collective."""
        if self._run is not None:
            self._run.close()


def split_batch(loader: DataLoader[Any]) -> int:
    """Samples of a batch over all ranks where accelerate splits the script's batches among them. Raises
    NotResumable."""
    sampler: Any = loader.batch_sampler
    if sampler is not None and not plain_batches(sampler):
        raise NotResumable(
            "split_batches=True divides each batch of a batch sampler of the script's own among the ranks, and here "
            "each rank is given whole ones: leave it out, and let the sampler make a rank's batches"
        )
    size: int = loader.batch_size if sampler is None else sampler.batch_size  # type: ignore[assignment]
    return size


def call_after(thing: Any, method: str, then: Callable[[], None]) -> None:
    """`then` behind each call of a method, which stays a bound one: torch's schedules want one of an optimizer."""
    before = getattr(thing, method)

    def calling(_: Any, *args: Any, **options: Any) -> Any:
        done = before(*args, **options)
        then()
        return done

    setattr(thing, method, types.MethodType(calling, thing))


def itself(thing: Any) -> Any:
    return thing


class Unwrapped:
    """The state of a model that may be wrapped, by the names that it has unwrapped."""

    def __init__(self, unwrap: Callable[[], Any]) -> None:
        self._unwrap = unwrap

    def state_dict(self) -> Any:
        return self._unwrap().state_dict()

    def load_state_dict(self, state: Any) -> Any:
        return self._unwrap().load_state_dict(state)

    @property
    def unwrapped(self) -> Any:
        """The model."""
        return self._unwrap()


def _copied(value: Any) -> Any:
    """A rate may be a tensor, and schedules write into it."""
    return value.clone() if isinstance(value, torch.Tensor) else value
