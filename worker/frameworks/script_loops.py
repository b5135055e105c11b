"""accelerate and Lightning Fabric: loops that the script has written, over things that the framework has prepared."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader

from ..data.loader import Loader
from ..run import Run
from ..schedule import Every
from . import switch


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

    def __len__(self) -> int:
        return len(self.exact)

    def __iter__(self) -> Iterator[Any]:
        loader, run = self.exact, self._prepared.run
        batches = iter(loader)
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


class Prepared:
    """What a framework has prepared. The run is made once an optimizer and a loader are known, and loads then."""

    def __init__(
        self, directory: str | os.PathLike[str] | None, seed: int, every: Every | None, states: dict[str, Any]
    ) -> None:
        self._directory = switch.chosen(directory)
        self._seed, self._every, self._states = seed, every or Every(*switch.save_every()), dict(states)
        self._waiting: list[DataLoader[Any]] = []
        self._made: list[Loader] = []
        self._run: Run | None = None
        self.weight = 1.0
        """Of the training batch in hand: the loss is multiplied by it."""

    def add(self, kind: str, thing: Any) -> None:
        """Another model, optimizer or schedule, whose state is kept."""
        number = sum(name.rstrip("0123456789") == kind for name in self._states)
        self._states[f"{kind}{number}"] = thing

    def place(self, loader: DataLoader[Any], to_device: Callable[[Any], Any]) -> Placed:
        """The loader that the script gets in place of its own."""
        self._waiting.append(loader)
        return Placed(self, loader, len(self._waiting) - 1, to_device)

    def ready(self) -> None:
        """Makes the run, and with it loads, once there is an optimizer and a loader. Collective."""
        if self._run is None and self._waiting and any(name.startswith("optimizer") for name in self._states):
            self.start()

    def start(self) -> Run:
        if self._run is None:
            self._run = Run(self._directory, seed=self._seed, every=self._every, **self._states)
        # In the order in which they were prepared: their names are numbers.
        self._made += [self._run.loader(loader) for loader in self._waiting[len(self._made) :]]
        return self._run

    @property
    def run(self) -> Run:
        """The run; made now at the latest."""
        return self._run or self.start()

    def loader(self, number: int) -> Loader:
        self.start()
        return self._made[number]

    def trains(self) -> bool:
        import torch

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


class Unwrapped:
    """The state of a model that may be wrapped, by the names that it has unwrapped."""

    def __init__(self, unwrap: Callable[[], Any]) -> None:
        self._unwrap = unwrap

    def state_dict(self) -> Any:
        return self._unwrap().state_dict()

    def load_state_dict(self, state: Any) -> Any:
        return self._unwrap().load_state_dict(state)
