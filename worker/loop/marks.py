"""Signs of life for the agent: which step, which section, and how long each took. Nothing is shown where nobody asks.

A mark costs a microsecond or two: a few words in memory that the agent reads too. Behind a step of less than NOTED_S
those that follow are only noted, and counted together at most SHOWN_S later: that there was one, and when, is shown at
once. So they share one system call, and the count is done once for many.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from time import monotonic, thread_time

from ...proto import progress
from ...proto.durations import bucket_of
from ...proto.progress import (
    AT,
    BUCKETS_AT,
    COUNT,
    LONG,
    LONGEST,
    MARKS,
    NAME_BYTES,
    SECTIONS,
    STEPS,
    TOTAL,
    WRITES,
)
from . import account
from .answers import answer

WARM_UP, STEP, EVALUATION, SAVE, AFTER = "warm-up", "step", "evaluation", "save", "after the loop"
WARM_STEPS = 3
"""Steps of a process that count as its warm-up: they compile, and fill caches."""
SHORT_S = 20e-6
"""A wait for data below this is none, and a step's processor time holds so long: reading it costs a system call."""
NOTED_S = 0.05
"""Steps that take so long are counted at once, each with its own processor time."""
SHOWN_S = 0.25
"""How long the lengths of shorter ones may wait for being counted."""


class Marks:
    """What `Run` shows of its progress. Used by the training's own thread."""

    def __init__(self, memory: mmap.mmap | bytearray | None) -> None:
        """memory: progress.SIZE bytes; None: the agent does not watch progress, and nothing is done."""
        self.shows = memory is not None
        """Whether the agent watches progress."""
        view = memoryview(bytearray(progress.SIZE) if memory is None else memory)
        self._bytes, self._words, self._longs, self._doubles = view, view.cast("I"), view.cast("Q"), view.cast("d")
        self._slots: dict[str, int] = {}
        self._section, self._at = "", 0
        """The section that goes on, and its first word."""
        self._base_s = self._cpu_s = 0.0
        self._carried_s = 0.0
        """Of the step that goes on, the time before an evaluation or a save in its midst."""
        self._writes = self._marks = self._steps = 0
        self._stepped_s = self._own_s = self._blocked_s = 0.0
        self._stepped_at_s, self._stepped_cpu_s = -1.0, 0.0
        self._asked_s, self._asked_cpu_s = -1.0, 0.0
        self._ends_s: list[float] = []
        """When steps ended that are noted, and not counted yet."""
        self._note_until_s = -1.0
        """A step that ends before this moment is noted."""
        self._waited_s, self._blocked_share = 0.0, 1.0
        """Waits for data of noted steps, whose processor time is not read; and the share of the last wait of which it
        was that needed none."""
        if self.shows:
            self._base_s, self._cpu_s = monotonic(), thread_time()
            self._words[0] = progress.VERSION
            self._show(WARM_UP, self._base_s)

    def step(self) -> None:
        """A step is done."""
        if (accounts := account.current) is not None:
            accounts.step()
        if not self.shows:
            return
        now_s = monotonic()
        if now_s < self._note_until_s:
            ends_s = self._ends_s
            ends_s.append(now_s)
            number = len(ends_s)
            # Word by word, which takes 1 us less than a struct in a step that has used the caches for something else.
            # Who reads them in between takes this step's time for that of the one before.
            longs = self._longs
            longs[MARKS] = self._marks + number
            longs[STEPS] = self._steps + number
            self._doubles[AT] = now_s
            return
        cpu_s = thread_time()
        self._settle()
        if self._section == EVALUATION:
            self._leave(now_s)
        length_s = self._carried_s + now_s - self._base_s
        self._count(self._at, (length_s,))
        self._steps += 1
        if self._section == STEP:
            self._stepped_s += length_s
            self._own_s += cpu_s - self._cpu_s + self._blocked_s
        self._cpu_s = self._stepped_cpu_s = cpu_s
        self._stepped_at_s = now_s
        self._blocked_s = self._carried_s = 0.0
        self._show(STEP if self._steps >= WARM_STEPS else WARM_UP, now_s)
        if self._section == STEP and length_s < NOTED_S:
            self._note_until_s = now_s + SHOWN_S

    def asked(self) -> None:
        """The loop asks for its next batch."""
        if self.shows:
            self._asked_s = now_s = monotonic()
            if self._ends_s:
                return
            # The thread's processor time is a system call: behind a step it is known already.
            soon = now_s - self._stepped_at_s < SHORT_S
            self._asked_cpu_s = self._stepped_cpu_s if soon else thread_time()

    def got(self, evaluates: bool) -> None:
        """It got one. evaluates: of a loader whose batches no step commits."""
        if self._ends_s and not evaluates:
            if (began_s := self._asked_s) >= 0 and (waited_s := monotonic() - began_s) >= SHORT_S:
                self._waited_s += waited_s
            self._asked_s = -1.0
            return
        if not self.shows:
            return
        now_s = monotonic()
        waited_s = now_s - self._asked_s if self._asked_s >= 0 else 0.0
        self._asked_s = -1.0
        if waited_s >= SHORT_S and not evaluates:
            # The processor time of the wait is counted with the rest of the step's.
            blocked_s = max(0.0, waited_s - (thread_time() - self._asked_cpu_s))
            self._blocked_s += blocked_s
            self._blocked_share = blocked_s / waited_s
        if evaluates:
            self._settle()
            if self._section == EVALUATION:
                self._count(self._at, (now_s - self._base_s,))
            else:
                self._carried_s += now_s - self._base_s
            self._show(EVALUATION, now_s)
        elif self._section == EVALUATION:
            self._leave(now_s)
            self._show(STEP if self._steps >= WARM_STEPS else WARM_UP, now_s)

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """What goes on here is a section of its own, with times of its own, and no part of a step."""
        if (accounts := account.current if name == SAVE else None) is not None:
            accounts.begin_save()
        try:
            with self._shown_section(name):
                yield
        finally:
            if accounts is not None:
                accounts.end_save()

    @contextmanager
    def _shown_section(self, name: str) -> Iterator[None]:
        if not self.shows:
            yield
            return
        self._settle()
        outer, now_s, cpu_s = self._section, monotonic(), thread_time()
        carried_s = self._carried_s + now_s - self._base_s
        self._show(name, now_s)
        at = self._at
        try:
            yield
        finally:
            end_s = monotonic()
            self._count(at, (end_s - now_s,))
            self._carried_s = carried_s
            self._cpu_s += thread_time() - cpu_s
            self._show(outer, end_s)

    def ended(self) -> None:
        """The loop is over; what the script does behind it takes as long as it takes."""
        if (accounts := account.current) is not None:
            accounts.ended()
        if self.shows:
            self._settle()
            self._show(AFTER, monotonic())

    def _settle(self) -> None:
        """Count the steps that were noted. Whoever calls it shows something next."""
        if not (ends_s := self._ends_s):
            return
        self._count(self._at, [end_s - began_s for began_s, end_s in pairwise((self._base_s, *ends_s))])
        self._stepped_s += ends_s[-1] - self._base_s
        self._base_s = ends_s[-1]
        self._steps += len(ends_s)
        self._marks += len(ends_s)
        ends_s.clear()
        self._blocked_s += self._waited_s * self._blocked_share
        self._waited_s = 0.0

    def _leave(self, now_s: float) -> None:
        """The evaluation is over; the step goes on."""
        self._count(self._at, (now_s - self._base_s,))
        self._section = STEP if self._steps >= WARM_STEPS else WARM_UP
        self._name(self._section)
        self._base_s = now_s

    def _count(self, at: int, times_s: Sequence[float]) -> None:
        """More times, at least one, of the section at this word. Until the next `_show`, readers ignore the page."""
        longs, doubles, words = self._longs, self._doubles, self._words
        self._writes |= 1
        longs[WRITES] = self._writes
        longs[at + COUNT] += len(times_s)
        doubles[at + TOTAL] += sum(times_s)
        doubles[at + LONGEST] = max(doubles[at + LONGEST], *times_s)
        for time_s in times_s:
            words[2 * (at + BUCKETS_AT) + bucket_of(time_s)] += 1

    def _show(self, section: str, now_s: float) -> None:
        writes = self._writes | 1
        self._longs[WRITES] = writes
        if section != self._section:
            self._name(section)
        self._marks += 1
        self._base_s, self._note_until_s = now_s, -1.0
        _SHOWN.pack_into(self._bytes, _SHOWN_AT, self._marks, self._steps, now_s, self._stepped_s, self._own_s)
        self._writes = self._longs[WRITES] = writes + 1

    def _name(self, section: str) -> None:
        """This section goes on now."""
        slot = self._slots.setdefault(section, min(len(self._slots), SECTIONS - 1))
        self._section, self._at = section, progress.section_at(slot)
        name = section.encode()[:NAME_BYTES].ljust(NAME_BYTES, b"\0")
        self._bytes[self._at * LONG : self._at * LONG + NAME_BYTES] = name
        self._words[1] = slot


_SHOWN, _SHOWN_AT = struct.Struct("=QQddd"), MARKS * LONG
"""What a mark writes: the rest of the header."""


def marks_of(rank: int, checkpoints: str) -> Marks:
    """The marks of this process, and where its checkpoints go: shown to the agent where it asks for them, else
    nowhere."""
    directory = os.environ.get(progress.DIRECTORY, "")
    if not directory:
        return Marks(None)
    path = progress.file_of(directory, int(os.environ.get("ELASTIC_AGENT_ROUND", "0")), rank)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, progress.SIZE)
            with open(f"{path}.directory", "w") as file:
                file.write(checkpoints)
            shown = Marks(mmap.mmap(descriptor, progress.SIZE))
            answer(f"{path}.ask")
            return shown
        finally:
            os.close(descriptor)
    except OSError:
        return Marks(None)  # the agent watches the output instead; a training does not end for want of a watch
