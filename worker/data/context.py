"""What a loader needs of the run that it belongs to, and one `for` over it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from .cursors import Account, Pass
from .sharded import Division


class Context(Protocol):
    """What a loader needs of its run."""

    account: Account
    seed: int
    rank: int
    world_size: int
    stopping: bool
    """Whether all ranks have agreed to end early: loops over loaders end then."""
    log: Any
    division: Division | None
    """At level `bits`, how global batches are cut into shards."""

    def handed_out(self, key: int) -> None:
        """A batch goes to the loop: the training process's generators are keyed for what follows it, by its place."""

    def asked(self) -> None:
        """The loop is done with a batch that is committed: a place where a checkpoint may be taken."""


class Iteration:
    """One `for`: begins when it is made and not at its first batch, so that the order in which loops begin is known."""

    def __init__(self, context: Context, going: Pass, batches: Iterator[Any]) -> None:
        self._context, self._going, self._batches = context, going, batches

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._batches)
        except BaseException as end:
            self._end(exhausted=isinstance(end, StopIteration))
            raise

    def __del__(self) -> None:
        self._end(exhausted=False)

    def _end(self, exhausted: bool) -> None:
        self._context.account.end(self._going, exhausted, over=not self._context.stopping)
