"""Which samples have been trained on: a pure account of batches handed out and batches committed.

A batch is *handed out* to the loop, and *committed* once the loop has used it up: at `step`, or, for a loader that only
evaluates, when the loop asks for its next batch. What was handed out and not committed is handed out again after a
restart, and after a `break`.

Loops may be nested. While a pass over an inner loader is going on that began when a batch of an outer loader was
handed out, that batch stays in use over the steps of the inner loop, and is committed when the inner pass is over or
the loop asks for the outer loader's next batch.

A script that starts again runs its loops from the top. Passes that were over by then, one after the other within the
same epoch of the run (a validation after the training, say), give nothing the second time. A pass inside of another's
loop is not counted: that loop goes on where it was.

What a script evaluates, or looks at without a step, before its loop over epochs it reads again in each start, and is
given what it was the first time: a rehearsal, in which loaders are where they are at a first start. They are put where
the checkpoint has them once the loop begins.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Span(NamedTuple):
    """The positions [first, last) of one epoch of a loader: one global batch."""

    loader: str
    epoch: int
    first: int
    last: int
    ends_epoch: bool


_NONE: frozenset[str] = frozenset()
span_of = functools.partial(tuple.__new__, Span)
"""`Span` of a tuple of its fields, at half the price."""


@dataclass(slots=True)
class Cursor:
    """Where one loader is."""

    epoch: int = 0
    position: int = 0
    """Committed: the next sample after a restart."""
    held: list[Span] = field(default_factory=list)
    """Handed out, not committed; the oldest first."""
    at_end: bool = False
    """Whether the last batch of an epoch is committed and the next pass has not begun."""
    in_use: bool = False
    """Whether a step was taken while a pass over another loader was going on inside of the newest held batch."""
    stepped: bool = False
    """Whether a step has committed a batch since the loop asked for one."""
    evaluates: bool = False
    """Whether its batches are committed by asking for the next one."""

    def ahead(self) -> tuple[int, int]:
        """Epoch and position of the next batch to hand out in the pass that is going on."""
        return _after(self.held[-1]) if self.held else (self.epoch, self.position)


@dataclass(eq=False, slots=True)
class Pass:
    """One `for` over a loader."""

    loader: str
    inside: frozenset[str]
    """Loaders that had a batch handed out when this pass began."""
    outermost: bool
    """Whether this one began in no other's loop: none that was going on had given a batch yet."""
    gave: bool = False
    """Whether it has given a batch."""
    follows: bool = False
    """Whether it is outermost, and another such pass of this epoch of the run, or the loop over epochs, is over."""
    loose: bool = False
    """Whether the loop that it began in is over: it is an iterator that is kept, and no loop inside of that."""
    trained: bool = False
    """Whether a step was taken since it began."""
    number: int = 0
    """The first one to begin has 1."""
    asked_at: int = 0
    """How many passes had begun when it was asked last."""
    inner: int = 0
    """How often others were asked since it was asked last."""
    most_inner: int = 0
    """The most of that, between two batches."""
    undecided: bool = False
    """Whether nobody has said if it trains or evaluates."""
    earlier: bool = False
    """Whether it began in an epoch of the run before: an iterator that is kept."""
    skipped: bool = False
    """Whether it was over before the script started again, so that it gives nothing."""
    place: tuple[int, int] = (0, 0)
    """What was committed as it began."""


class Account:
    """The cursors of all loaders of a run, and the passes that are going on."""

    def __init__(self) -> None:
        self.cursors: dict[str, Cursor] = {}
        self.kept: dict[str, list[int]] = {}
        """Where the checkpoint that the run went on from has its loaders."""
        self.over: dict[str, int] = {}
        """Of each loader: outermost passes that are over in this epoch of the run."""
        self._looks, self._kept_looks = dict[str, list[int]](), dict[str, list[int]]()
        """Numbers of those that were left with nothing committed in them, as `next(iter(loader))`: given again."""
        self._skips: dict[str, int] = {}
        self._trained: set[str] = set()
        """Loaders of which a pass is over in which a step was taken."""
        self._passes: list[Pass] = []
        self.settled = True
        """Whether nothing that checkpoints keep was changed between the passes of this epoch of the run."""
        self.behind = False
        """Whether the loop over epochs is over."""
        self.committed: list[Span] = []
        """Since `take` was called last."""
        self.may_evaluate = False
        """Whether a batch that no step commits was handed out since `evaluating` found none in use."""
        self._begun = 0
        """How many passes have begun."""
        self._open: list[Pass] = []
        """The loops whose body is going on, each inside of the one before."""
        self.rehearsed: list[str] | None = None
        """Loaders that were looped over without a step before the run's loop over epochs began; None: it has not begun,
        at any start."""
        self.rehearses = False
        """Whether that loop is still to come in a start that goes on within it."""
        self.alone: Pass | None = None
        """The only pass that is going on, if it trains and no other loader has a batch in use: most runs are in one
        nearly always, so that what it asks and steps comes to is known."""
        self._cursor_alone = Cursor()
        self._aside: dict[str, list[int]] = {}
        """Where loaders go on behind a rehearsal."""

    def begin(self, loader: str) -> Pass:
        """A `for` over `loader` begins: after its last committed batch, or after those that wait for a step."""
        self.alone = None
        self.cursors[loader].at_end = False
        for stale in [going for going in self._passes if going.loader == loader]:
            self.end(stale)
        # Of loops that go on: one that came to its end may have left a batch to the next step, wherever that is.
        inside = frozenset(going.loader for going in self._passes if self.cursors[going.loader].held)
        begun = Pass(loader, inside, outermost=not any(going.gave and not going.loose for going in self._passes))
        self._begun = begun.number = self._begun + 1
        begun.follows = begun.outermost and (self.behind or bool(self.over))
        if begun.outermost and not begun.follows:
            self.settled = True
        if begun.outermost and self._skips.get(loader, 0):
            self._skips[loader] -= 1
            begun.skipped = self.over.get(loader, 0) not in self._kept_looks.get(loader, ())
        begun.place = (self.cursors[loader].epoch, self.cursors[loader].position)
        self._passes.append(begun)
        return begun

    def ask(self, going: Pass) -> bool:
        """The loop asks for the next batch, so it is done with the one before, whatever came after the step included.

        Returns whether a state captured now is one that the script comes back to by running its loops from the top.
        """
        cursor = self.cursors[going.loader]
        stepped = done = cursor.stepped
        cursor.stepped = False
        going.asked_at = self._begun
        if self._open != [going]:
            self._reopen(going)
        if cursor.held and (cursor.evaluates or cursor.in_use):
            # An evaluation inside of a training loop is not entered again: only that loop is.
            done = done or cursor.in_use or (going.outermost and self.settled)
            beside = [other for name, other in self.cursors.items() if other.in_use and name not in going.inside]
            for each in (cursor, *beside):  # as of `zip`, whose body is over for all of them
                self._commit(each)
        if done and cursor.at_end and going.inside and any(self.cursors[name].stepped for name in going.inside):
            return False  # what the outer loop does behind this one belongs to the step as well: it asks next
        if done:  # as `between_steps`, at every step
            for other in self.cursors.values():
                if other.held and not other.evaluates and not other.in_use:
                    return False
        if stepped and going.gave and going.trained and not going.inside and self._passes == self._open == [going]:
            self._note_alone(going, cursor)
        return done and not self._aside and (len(self._open) == 1 or self._between_iterations(going))

    def _note_alone(self, going: Pass, cursor: Cursor) -> None:
        if not (cursor.evaluates or self.rehearses or self._aside or any(each.held for each in self.cursors.values())):
            self.alone, self._cursor_alone = going, cursor

    def _leave(self, going: Pass) -> None:
        """The bodies of this loop, and of those inside of it, are over; those around it go on."""
        if going in self._open:
            del self._open[self._open.index(going) :]

    def _reopen(self, going: Pass) -> None:
        """Another iteration of this loop begins."""
        self.alone = None
        self._leave(going)
        for around in self._open:
            around.inner += 1
        going.most_inner, going.inner = max(going.most_inner, going.inner), 0
        self._open.append(going)

    def _between_iterations(self, going: Pass) -> bool:
        """Whether this is no iterator that another loop's body takes a batch from, behind a step that has committed the
        loop's own: a start would go on with the loop's next iteration. One that is asked more often than ever before
        while the loop asks for nothing has outlived the loop."""
        return not any(
            around.asked_at >= going.number
            and not self.cursors[around.loader].held
            and around.inner <= max(1, around.most_inner)
            for around in self._open[:-1]
        )

    def hand_out(self, span: Span) -> None:
        cursor = self.cursors[loader := span[0]]
        cursor.held.append(span)
        if cursor.evaluates:
            self.may_evaluate = True
        for going in self._passes:
            if going.loader == loader:
                going.gave = True

    def end(self, going: Pass, exhausted: bool = False, over: bool = True, evaluated: bool = False) -> None:
        """The pass has come to its end (exhausted), or its `for` was left. over: whether a later start must not go on
        in it. evaluated: whether it is known that nothing was trained in it."""
        self.alone = None
        self._leave(going)
        if going in self._passes:
            self._passes.remove(going)
            for other in self._passes:
                other.loose = other.loose or going.loader in other.inside
            cursor = self.cursors[going.loader]
            cursor.evaluates = cursor.evaluates or evaluated
            # The end of a stream has no sample, so no step will commit it.
            if cursor.in_use or evaluated or (exhausted and all(span.first == span.last for span in cursor.held)):
                self._commit(cursor)
            elif not exhausted:
                # The batch that was handed out last was not trained on, as no step followed.
                cursor.held.clear()
            if going.trained:
                self._trained.add(going.loader)
            if going.outermost and over and not going.earlier:
                number = self.over[going.loader] = self.over.get(going.loader, 0) + 1
                if not (exhausted or going.trained or going.skipped) and going.place == (cursor.epoch, cursor.position):
                    self._looks.setdefault(going.loader, []).append(number - 1)

    def close(self) -> None:
        """No step follows: what was handed out and not committed was not trained on."""
        for cursor in self.cursors.values():
            cursor.held.clear()

    def next_epoch(self) -> None:
        """An epoch of the run is over, or its passes need not be told apart."""
        self.over.clear()
        self._looks, self._kept_looks = {}, {}
        self._skips.clear()
        for going in self._passes:
            going.earlier = True
        self.kept = {name: [epoch, position, 0] for name, (epoch, position, _) in self.kept.items()}

    def places(self) -> dict[str, list[int]]:
        """What a checkpoint keeps of each loader: epoch, position, and the passes that are over. Of one that has not
        been made yet, what the last checkpoint kept."""
        self.begin_loop()
        now = (going.loader for going in self._passes if going.outermost and not going.earlier)
        at_end = {loader for loader in now if self.cursors[loader].at_end}
        return self.kept | {
            name: [cursor.epoch, cursor.position, self.over.get(name, 0) + (name in at_end)]
            for name, cursor in self.cursors.items()
        }

    def restore(self, loader: str, place: list[int], may_rehearse: bool = False) -> None:
        """Puts a loader where a checkpoint has it; after the rehearsal, if there is one and it may take part."""
        if self.rehearses and may_rehearse:
            self._aside[loader] = place
            return
        cursor = self.cursors[loader]
        cursor.epoch, cursor.position, self._skips[loader] = place

    def begin_loop(self, over_epochs: bool = False) -> None:
        """What trains begins now, and what was evaluated until now does not count. over_epochs: it is the loop over the
        run's epochs."""
        self.behind = self.behind and not over_epochs
        if over_epochs and self.rehearsed is None:
            self.rehearsed = [name for name in self.over if self.cursors[name].evaluates or name not in self._trained]
            for name in self.rehearsed:
                del self.over[name]
                self._looks.pop(name, None)
        self.alone = None
        if self._aside:
            self._passes = [going for going in self._passes if going.loader not in self._aside]
            for here in (self._open, self.over, self._looks, self.committed):
                here.clear()
            for loader, place in self._aside.items():
                self.cursors[loader].held.clear()
                self.cursors[loader].at_end = False
                self.restore(loader, place)
            self._aside.clear()
        self.rehearses = False

    def passed(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the places."""
        return {"rehearsed": self.rehearsed, "looks": self._kept_looks | self._looks}

    def go_on(self, places: dict[str, list[int]], passed: Mapping[str, Any]) -> None:
        """A start goes on from a checkpoint with these. passed: as the method gives it, or of an earlier version."""
        self.kept, self._kept_looks, self.rehearsed = dict(places), passed.get("looks", {}), passed.get("rehearsed")
        self.rehearses = self.rehearsed is not None

    def place(self, loader: str) -> tuple[int, int]:
        """Epoch and position of the next batch of the run, whatever a rehearsal is doing."""
        if loader in self._aside:
            epoch, position, _ = self._aside[loader]
            return epoch, position
        return self.cursors[loader].ahead()

    def step(self) -> bool:
        """A training step is done: what it commits is in `committed`. Returns whether a loop over a loader is going on,
        which will ask for its next batch, or was over before this step: a start that finds it over would step again."""
        if self.alone is not None:
            cursor = self._cursor_alone
            if held := cursor.held:  # as `_commit`, but for the call
                _, cursor.epoch, _, cursor.position, cursor.at_end = held[-1]
                if cursor.at_end:
                    cursor.epoch, cursor.position = cursor.epoch + 1, 0
                self.committed += held
                held.clear()
                cursor.stepped = True
            return True
        if self.rehearses:
            self.begin_loop()
        going_on_in, looping = _NONE, False
        for going in self._passes:
            looping = looping or going.gave
            going.trained = True
            if going.inside and not going.loose and not self._over(going):
                going_on_in |= going.inside
        for name, cursor in self.cursors.items():
            if not cursor.held:
                continue
            if name in going_on_in:
                cursor.in_use = True
                continue
            looping = cursor.stepped = True
            self._commit(cursor)
        return looping

    def outermost(self) -> str | None:
        """The loader of the loop that all others are inside of, or that has gone on longest."""
        return next((going.loader for going in self._passes if going.gave), None)

    def goes_over(self, loader: str) -> bool:
        """Whether a pass over this loader is going on and has given a batch."""
        return any(going.gave and going.loader == loader for going in self._passes)

    @property
    def has_begun(self) -> bool:
        """Whether a loader was looped over in this start."""
        return self._begun > 0

    def evaluating(self) -> bool:
        """Whether the batch that was handed out last, or another that no step commits, is in use."""
        for cursor in self.cursors.values():
            if cursor.held and cursor.evaluates:
                return True
        self.may_evaluate = False
        return False

    def take(self) -> list[Span]:
        """What has been committed since this was asked last."""
        if self._aside:
            self.begin_loop()
        taken, self.committed = self.committed, []
        return taken

    def between_steps(self) -> bool:
        """Whether no batch that a step would commit is handed out: a state captured now is that of the last commit."""
        for cursor in self.cursors.values():  # noqa: SIM110 - at every step: a generator costs as much as all else here
            if cursor.held and not cursor.evaluates and not cursor.in_use:
                return False
        return True

    def _over(self, going: Pass) -> bool:
        held = self.cursors[going.loader].held
        return bool(held) and held[-1].ends_epoch

    def _commit(self, cursor: Cursor) -> None:
        if held := cursor.held:
            _, cursor.epoch, _, cursor.position, cursor.at_end = held[-1]
            if cursor.at_end:
                cursor.epoch, cursor.position = cursor.epoch + 1, 0
            self.committed += held
            held.clear()
        cursor.in_use = False


def _after(span: Span) -> tuple[int, int]:
    return (span.epoch + 1, 0) if span.ends_epoch else (span.epoch, span.last)
