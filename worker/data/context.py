"""What a loader needs of the run that it belongs to, and one `for` over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from .alike import Alike
from .cursors import Account, Pass
from .sharded import Division


class Context(Protocol):
    """What a loader needs of its run."""

    account: Account
    seed: int
    rank: int
    world_size: int
    ranks_before: int | None
    """How many ranks the start had that took the checkpoint; None: there is none; 0: that is not known."""
    stopping: bool
    """Whether all ranks have agreed to end early: loops over loaders end then."""
    log: Any
    between: Any
    """As `loop.between.Between`; None where no loop is entered again."""
    alike: Alike
    """What this rank reads, until all have compared it."""
    division: Division | None
    """At level `bits`, how global batches are cut into shards."""

    key: Callable[[int], None]
    """Keys the training process's generators for what follows a batch, by a key of its place, and of the rank where
    there is no division."""
    keyed: bool
    """Whether they have been keyed for a batch since the last step."""
    watched: bool
    """Whether somebody looks at `got`."""

    def got(self) -> None:
        """A batch goes to the loop."""

    quiet_until_s: float
    """Before that, by the monotonic clock, nothing is to be done between two steps: `asked` may be left out for some
    dozens of batches, in which it would only have counted."""

    def gradients(self) -> Any:
        """Something that is another one once a gradient of what is trained has changed; None where nothing is known."""

    def asked(self) -> None:
        """The loop is done with a batch that is committed: a place where a checkpoint may be taken."""


def iteration(context: Context, going: Pass, batches: Iterator[Any]) -> Iterator[Any]:
    """One `for`: begins when it is made and not at its first batch, so that the order in which loops begin is known."""
    if going.outermost and context.between is not None:
        context.between.loop_begins()
    begun = _until_left(context, going, batches)
    next(begun)  # else a `for` that is left before its first batch would not end the pass
    return begun


def _until_left(context: Context, going: Pass, batches: Iterator[Any]) -> Iterator[Any]:
    exhausted, before = False, context.gradients() if going.undecided else None
    try:
        yield None
        yield from batches
        exhausted = True
    finally:
        # Gradients may be off in the body of the loop only.
        evaluated = exhausted and not going.trained and before is not None and context.gradients() == before
        context.account.end(going, exhausted, over=not context.stopping, evaluated=evaluated)
        if going.outermost and context.between is not None:
            context.between.passed()
