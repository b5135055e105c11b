"""A run whose loops belong to a framework: it says which batch is done, and its own state says where its loops go on.

In a plain script the loops are run from the top and the library finds its place in them. A framework that has been told
its epoch and batch enters its loops in the middle, so passes over loaders need no account here, only positions.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader

from ..data.batching import batches_are_sliced
from ..data.cursors import Account, Cursor, Pass, Span
from ..data.loader import Loader
from ..data.randomness import key_everything
from ..errors import NotResumable
from ..keys import key_of, mix
from ..run import Run
from ..schedule import Every


class DrivenAccount(Account):
    """The positions of loaders whose batches are committed one by one, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.may_save: bool | Callable[[], bool] = True
        """Whether what is captured now is a state that the framework can be put back into; a function is called on all
        ranks where a checkpoint is due."""
        self.was_over: set[str] = set()
        """Loaders whose pass was over when the checkpoint was made, while another one's was not."""
        self.skip: set[str] = set()
        """Loaders whose next pass gives nothing."""
        self._given: set[str] = set()
        self._current: dict[str, Pass] = {}

    def begin(self, loader: str) -> Pass:
        """A pass begins at the loader's position if it has given nothing since that was set, else at a new epoch."""
        self.cursors[loader].held.clear()
        if loader in self._given:
            self.leave(loader)
        self._given.discard(loader)
        self.over[loader], self.cursors[loader].at_end = 0, False
        begun = self._current[loader] = Pass(loader, frozenset(), outermost=True, skipped=loader in self.skip)
        self.skip.discard(loader)
        return begun

    def ask(self, going: Pass) -> bool:
        return False

    def hand_out(self, span: Span) -> None:
        cursor = self.cursors[span.loader]
        self._given.add(span.loader)
        cursor.held.append(span)
        if len(cursor.held) == 1:
            self._end_marks(cursor)

    def done(self, loader: str) -> None:
        """The oldest batch that was handed out and is not done, is done."""
        cursor = self.cursors[loader]
        if cursor.held:
            self._commit_first(cursor)
            self._end_marks(cursor)

    def end(self, going: Pass, exhausted: bool = False, over: bool = True, evaluated: bool = False) -> None:
        if self._current.get(going.loader) is going:
            del self._current[going.loader]
            if exhausted:
                self.over[going.loader] = 1
            else:
                self.cursors[going.loader].held.clear()

    def leave(self, loader: str) -> None:
        """The framework leaves the pass here, at a limit of its own: its next pass is one of a new epoch, also for a
        start that goes on from a checkpoint taken before that."""
        cursor = self.cursors[loader]
        cursor.held.clear()
        if cursor.position:
            cursor.epoch, cursor.position = cursor.epoch + 1, 0

    def places(self) -> dict[str, list[int]]:
        """As those of `Account`: a framework makes the loader of a validation when it comes to one."""
        here = {name: [cursor.epoch, cursor.position, self.over.get(name, 0)] for name, cursor in self.cursors.items()}
        return self.kept | here

    def restore(self, loader: str, place: list[int], may_rehearse: bool = False) -> None:
        cursor = self.cursors[loader]
        cursor.epoch, cursor.position, over = place
        if over:
            self.was_over.add(loader)

    def go_to(self, loader: str, epoch: int, position: int) -> None:
        """The next pass of this loader begins here."""
        cursor = self.cursors[loader]
        cursor.held.clear()
        cursor.epoch, cursor.position, cursor.at_end = epoch, position, False
        self._given.discard(loader)

    def step(self) -> bool:
        return True

    def between_steps(self) -> bool:
        return self.may_save() if callable(self.may_save) else self.may_save

    def _end_marks(self, cursor: Cursor) -> None:
        """The end of a stream is a span of no samples: nobody will say that it is done."""
        while cursor.held and cursor.held[0].first == cursor.held[0].last:
            self._commit_first(cursor)

    def _commit_first(self, cursor: Cursor) -> None:
        span = cursor.held.pop(0)
        cursor.epoch, cursor.position = (span.epoch + 1, 0) if span.ends_epoch else (span.epoch, span.last)
        cursor.at_end = span.ends_epoch
        self.committed.append(span)


class DrivenRun(Run):
    """A run without `epochs` and `batches`: the framework calls `batch_done`, `step` and `boundary`."""

    account: DrivenAccount

    def __init__(
        self,
        directory: str | os.PathLike[str] | None,
        *,
        seed: int = 0,
        every: Every | None = None,
        capture: Callable[[], None] = lambda: None,
        **states: Any,
    ) -> None:
        """capture: called on every rank just before the states are asked for.

        Collective. Raises what `Run` raises.
        """
        self._capture = capture
        super().__init__(directory, seed=seed, every=every, **states)
        kept, self.account, self.between = self.account.kept, DrivenAccount(), None
        self.account.kept = kept

    @property
    def resumed(self) -> bool:
        """Whether a checkpoint was found."""
        return self._found is not None

    @property
    def loaders(self) -> dict[str, Loader]:
        return self._loaders

    @property
    def world(self) -> Any:
        """What the ranks exchange messages with; see `World`."""
        return self._world

    def take_over(self, loader: Any, name: str, **options: Any) -> Loader:
        """The loader that stands for a DataLoader of the framework's. A loader of this name that is there already has
        been made anew by the framework: its place stays.

        Raises NotResumable, WrongState.
        """
        if not isinstance(loader, DataLoader):
            raise NotResumable(
                f"{name} is a {type(loader).__name__}, whose position cannot be read: give a torch DataLoader, or turn "
                "exact resume off"
            )
        before, found = self.account.cursors.get(name), self._found
        if before is not None:
            self._loaders.pop(name)
            self._names.free(name)
            self._found = None
        kept = self._found.run["loaders"].get(name) if self._found is not None else None
        if kept is not None and "global_batch" not in options and batches_are_sliced(loader):
            options["global_batch"] = int(kept["batch"])
        try:
            made = self.loader(loader, name=name, **options)
        finally:
            self._found = found
        if before is not None:
            self.account.cursors[name] = before
        return made

    def batch_done(self, name: str) -> None:
        """The oldest batch of this loader that was handed out is trained on, or evaluated."""
        self.account.done(name)

    def boundary(self, may_save: bool | Callable[[], bool] = True, evaluated: int = 0) -> None:
        """Between two batches, on all ranks equally often: what is due is done. Collective.

        may_save: as of the account; the same on all ranks.
        evaluated: batches of the evaluation that is going on; they count like steps for `Every(steps=)`.
        """
        self.account.may_save = may_save
        if evaluated and self._every.steps and evaluated % self._every.steps == 0:
            self._requests.forced = True
        self.asked()

    def finish(self) -> None:
        """The framework's loops are over: saves the state as it is now, and waits for the disk. Collective.

        Raises CheckpointNotWritten.
        """
        self.boundary(may_save=False)
        self.account.close()
        self._save(self._requests.label or "")
        self._persistence.wait()
        self._requests.saved(self._persistence.wait)
        self._requests.closed()

    def found_over(self) -> None:
        """In the place of `finish`, in a start from the state that it saved: there is nothing to save."""
        self._requests.closed()

    def key_end(self) -> None:
        """Keys the generators for what the script does behind the loops, in a start that finds them over as well."""
        self._key_main()

    def key_loaders(self, kind: str, epoch: int) -> None:
        """Keys the generators for what the script draws as it makes its loaders for an epoch, the same on all ranks."""
        key_everything(key_of(self.seed, "loaders", kind, epoch))

    def key_batch(self, name: str) -> None:
        """Keys the generators of this process for the oldest batch that is handed out and not done."""
        if held := self.account.cursors[name].held:
            key_everything(mix(key_of(self.seed, name, "batch", held[0].epoch, held[0].first), self.rank))

    def _save(self, label: str) -> None:
        self._capture()
        super()._save(label)
