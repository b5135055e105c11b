"""The names of a run's loaders, which tell their orders and places apart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .errors import Misused


class Names:
    """Which loaders there are. Those that the body of the loop over epochs makes are made anew in each epoch: the one
    of an epoch has the name, and with it the place, of the one of the epoch before."""

    def __init__(self) -> None:
        self._made: set[str] = set()
        """Outside of the loop over epochs."""
        self._here: set[str] | None = None
        """In the body of this epoch; None outside of the loop."""

    @property
    def within(self) -> bool:
        """Whether a loader that is made now is made anew in each epoch."""
        return self._here is not None

    @contextmanager
    def epochs(self) -> Iterator[None]:
        """Around the loop over epochs."""
        try:
            yield
        finally:
            self._here = None

    def epoch_begins(self) -> None:
        """The body of another epoch begins."""
        self._here = set()

    def of(self, asked: str | None) -> str:
        """The name of the next loader. asked: by the script. Raises Misused where another one has it."""
        if self._here is None:
            name, here = asked or f"loader{len(self._made)}", self._made
        else:
            name, here = asked or f"loader{len(self._here)} of the epoch", self._here
        if name in here | self._made:
            raise Misused(f"two loaders are named {name!r}: names tell their orders and places apart")
        here.add(name)
        return name

    def free(self, name: str) -> None:
        """Another loader may have this name, as a framework makes one anew."""
        self._made.discard(name)
        if self._here is not None:
            self._here.discard(name)
