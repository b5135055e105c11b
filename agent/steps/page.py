"""The agent's side of the page that it shares with its workers (`proto/steps.py`).

A memory file and two pipes, made with the first workers and kept until the agent's end. They have no names, so nothing
is left of them if the agent is killed. A worker that never looks at them costs nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator

from ...proto import steps
from ...rendezvous.agreements import HOLDS, STOPS, Act, Agreement
from ..lifecycle.events import Acted, BoundAwaited, BoundFound
from ..loop import PIPE_BYTES
from .seen import Shown

Event = Acted | BoundAwaited | BoundFound
_NUMBER = steps.WORD_BYTES
NS = 1_000_000_000
_MEMBARRIER = {"x86_64": 324, "aarch64": 283}
"""Numbers of the system call membarrier(2)."""


class StepPage:
    """The page of one agent. But for `shown`, for the thread of the agent's loop only."""

    def __init__(self) -> None:
        self._page = -1
        self._reports = self._reports_end = self._changes = self._changes_end = -1
        self._bytes = self._slots = 0
        self._running: tuple[int, ...] = ()
        """Slots of workers that have not exited, as of the last look."""
        self._reached = 0
        """The highest step of a worker of an earlier round."""
        self._asked: Agreement | None = None
        """The newest agreement that was asked for, also if workers cannot be asked yet."""
        self._shown = 0
        """Number of the newest agreement in `steps.ASKED`."""
        self._decided: Agreement | None = None
        self._unshown: Agreement | None = None
        """The newest one that was given up before it was in `steps.ASKED`: workers may wait for it."""
        self._answered = self._acted = self._awaited = 0
        """Numbers of the newest agreements of which the machine knows the bound, that all acted, who is awaited."""

    @property
    def fileno(self) -> int:
        """Readable when a worker has changed its slot: `observe` it. -1 before the first `begin`."""
        return self._reports

    def begin(self, workers: int) -> dict[int, str]:
        """Empty the page for the workers of a round. Returns the value of `steps.VARIABLE` by local rank. Raises
        OSError."""
        if self._page < 0:
            self._page = os.memfd_create("elastic-agent-steps", os.MFD_CLOEXEC)
            self._reports, self._reports_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            self._changes, self._changes_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._reached = max((self._reached, *(each.steps for each in self.shown())))
        self._slots = workers
        # Never smaller: a process that is left of an earlier round must not lose pages that it has mapped.
        self._bytes = max(self._bytes, steps.size(workers))
        os.ftruncate(self._page, self._bytes)
        os.pwrite(self._page, bytes(self._bytes), 0)
        self._write(steps.REACHED, self._reached)
        self._asked = self._decided = self._unshown = None
        self._running = tuple(range(workers))
        self._shown = self._answered = self._acted = self._awaited = 0
        place = steps.Place(os.getpid(), self._page, self._reports_end, self._changes, 0)
        return {slot: steps.to_variable(place._replace(slot=slot)) for slot in range(workers)}

    def ask(self, agreement: Agreement, running: Collection[int]) -> list[Event]:
        """Ask for the bound of these workers, by local rank."""
        self._asked = agreement
        return self.review(running)

    def decide(self, agreement: Agreement) -> None:
        """Let the workers act on it where it says, or go on if it was given up."""
        if self._page < 0:
            return
        if agreement.number == self._shown:
            self._show(agreement)
        elif agreement.number > self._shown and not agreement.at:
            self._unshown = agreement
            self._show_given_up()

    def _show_given_up(self) -> None:
        """Write down, once the workers know the decision that the page holds, that the newest was given up unseen."""
        given_up, decided = self._unshown, self._decided
        if given_up is None or (decided is not None and not self._all_know(decided)):
            return
        self._unshown = None
        if given_up.number > self._shown:
            self._shown = given_up.number
            self._show(given_up)
            self._write(steps.ASKED, given_up.number)
            self._changed()

    def _all_know(self, decided: Agreement) -> bool:
        attached = [slot for slot in self._running if self._read(slot, steps.ATTACHED)]
        return all(self._read(slot, steps.NEWEST_READ) >= decided.number for slot in attached)

    def _show(self, agreement: Agreement) -> None:
        self._decided = agreement
        label = agreement.label.encode()
        os.pwrite(self._page, label, steps.LABEL_AT)
        for word, value in (
            (steps.LABEL_BYTES, len(label)),
            (steps.AT, agreement.at),
            (steps.ACTS, _acts(agreement.act) if agreement.at else 0),
            (steps.DECIDED, agreement.number),
        ):
            self._write(word, value)
        self._changed()

    def shown(self) -> tuple[Shown, ...]:
        """How each worker of the round has spent its time, by local rank. From any thread."""
        if self._page < 0 or not self._slots:
            return ()
        try:
            found = os.pread(self._page, self._slots * steps.SLOT_BYTES, steps.SLOTS_AT)
        except OSError:
            return ()  # closed meanwhile: the agent ends
        words = memoryview(found).cast("Q")
        return tuple(_shown(words[at : at + steps.WORDS]) for at in range(0, len(words), steps.WORDS))

    def release(self, number: int) -> None:
        """Let no worker wait any longer behind what it did by this agreement."""
        if self._page >= 0:
            self._write(steps.RELEASED, number)
            self._changed()

    def observe(self, running: Collection[int]) -> list[Event]:
        """What the workers' slots say now. `running`: local ranks whose worker has not exited."""
        _drain(self._reports)
        return self.review(running)

    def review(self, running: Collection[int]) -> list[Event]:
        """As `observe`, after a worker has exited."""
        self._running = tuple(sorted(running))
        if not running:
            return []
        self._show_given_up()
        return list(self._review(list(self._running))) if self._asked is not None else []

    def _review(self, running: list[int]) -> Iterator[Event]:
        asked, decided = self._asked, self._decided
        if asked is None:
            return
        attached = [slot for slot in running if self._read(slot, steps.ATTACHED)]
        if decided is not None and self._all_acted(decided, attached):
            self._acted = decided.number
            yield Acted(decided.number)
        if self._answered == asked.number:
            return
        if len(attached) < len(running) and asked.act is Act.SAVE:
            if self._awaited != asked.number:
                self._awaited = asked.number
                yield BoundAwaited(asked.number, tuple(slot for slot in running if slot not in attached))
            return
        if len(attached) < len(running):
            self._answered = asked.number
            yield BoundFound(asked.number, 0)
            return
        # A decision stays in the page until every worker knows it.
        if decided is not None and any(self._read(slot, steps.NEWEST_READ) < decided.number for slot in attached):
            return
        self._answered = asked.number
        yield BoundFound(asked.number, self._bound(asked.number, attached))

    def _all_acted(self, decided: Agreement, attached: list[int]) -> bool:
        if not decided.at or decided.number == self._acted:
            return False
        return all(self._read(slot, steps.ACTED) >= decided.number for slot in attached)

    def _bound(self, number: int, attached: list[int]) -> int:
        """The boundary that no worker passes before it knows the decision on this agreement.

        A worker writes at which boundary it is, then reads `ASKED`. Here `ASKED` is written, then read where they are.
        With a barrier between the two, a worker that has not seen the new number at its boundary shows that boundary
        here, and sees the number at the next one. Without, it may be one boundary further.
        """
        self._shown = number
        self._write(steps.ASKED, number)
        margin = 1 if _barrier() else 2
        return max(self._read(slot, steps.BOUNDARY) for slot in attached) + margin

    def _read(self, slot: int, word: int) -> int:
        return int.from_bytes(os.pread(self._page, _NUMBER, steps.slot_at(slot, word)), sys.byteorder)

    def _write(self, word: int, value: int) -> None:
        os.pwrite(self._page, value.to_bytes(_NUMBER, sys.byteorder), word * _NUMBER)

    def _changed(self) -> None:
        """End the wait of every worker that waits: an empty pipe becomes readable."""
        _drain(self._changes)
        os.write(self._changes_end, b"\0")

    def close(self) -> None:
        """Close the descriptors. Idempotent."""
        descriptors = (self._page, self._reports, self._reports_end, self._changes, self._changes_end)
        self._page = self._reports = self._reports_end = self._changes = self._changes_end = -1
        for descriptor in descriptors:
            if descriptor >= 0:
                os.close(descriptor)


def _shown(words: memoryview) -> Shown:
    return Shown(
        steps=words[steps.STEPS],
        doing=words[steps.DOING],
        saved=words[steps.SAVED],
        began_s=words[steps.BEGAN_NS] / NS,
        useful_s=words[steps.USEFUL_NS] / NS,
        repeated_s=words[steps.REPEATED_NS] / NS,
        saving_s=words[steps.SAVING_NS] / NS,
        paused_s=words[steps.PAUSED_NS] / NS,
        written_bytes=words[steps.WRITTEN_BYTES],
    )


def _acts(act: Act) -> int:
    return steps.SAVE + (steps.STOP if act in STOPS else 0) + (steps.HOLD if act in HOLDS else 0)


def _drain(descriptor: int) -> None:
    try:
        os.read(descriptor, PIPE_BYTES)
    except BlockingIOError:
        pass  # empty already


def _barrier() -> bool:
    """A full memory barrier on every processor that runs a thread; membarrier(2). False where there is none."""
    from ctypes import CDLL, c_int, c_long

    number = _MEMBARRIER.get(os.uname().machine)
    everywhere = 1
    return number is not None and CDLL(None).syscall(c_long(number), c_int(everywhere), c_int(0), c_int(0)) == 0
