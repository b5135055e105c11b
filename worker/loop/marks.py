"""Signs of life for the agent: which step, which section, and how long each took. Nothing is shown where nobody asks.

A mark costs some microseconds: a few words in memory that the agent maps too.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ...proto import progress
from ...proto.durations import BUCKETS, bucket_of
from ...proto.progress import HEADER, SECTION, SECTIONS
from .answers import answer

WARM_UP, STEP, EVALUATION, SAVE, AFTER = "warm-up", "step", "evaluation", "save", "after the loop"
WARM_STEPS = 3
"""Steps of a process that count as its warm-up: they compile, and fill caches."""
_COUNTS = SECTION.size - 4 * BUCKETS


class Marks:
    """What `Run` shows of its progress. Used by the training's own thread."""

    def __init__(self, memory: mmap.mmap | bytearray | None) -> None:
        """memory: progress.SIZE bytes; None: nobody asks, and nothing is done."""
        self._shows = memory is not None
        self._memory = bytearray() if memory is None else memory
        self._names: dict[str, int] = {}
        self._section = WARM_UP
        self._base_s = self._cpu_s = 0.0
        self._carried_s = 0.0
        """Of the step that goes on, the time before an evaluation or a save in its midst."""
        self._writes = self._marks = self._steps = 0
        self._stepped_s = self._own_s = self._blocked_s = 0.0
        self._asked: tuple[float, float] | None = None
        if self._shows:
            self._base_s, self._cpu_s = time.monotonic(), time.thread_time()
            self._show(self._base_s)

    def step(self) -> None:
        """A step is done."""
        if not self._shows:
            return
        now_s = time.monotonic()
        if self._section == EVALUATION:
            self._leave(now_s)
        length_s = self._carried_s + now_s - self._base_s
        self._count(self._section, length_s)
        self._steps += 1
        cpu_s = time.thread_time()
        if self._section == STEP:
            self._stepped_s += length_s
            self._own_s += cpu_s - self._cpu_s + self._blocked_s
        self._cpu_s, self._blocked_s, self._carried_s = cpu_s, 0.0, 0.0
        self._section = STEP if self._steps >= WARM_STEPS else WARM_UP
        self._show(now_s)

    def asked(self) -> None:
        """The loop wants its next batch."""
        if self._shows:
            self._asked = time.monotonic(), time.thread_time()

    def got(self, evaluates: bool) -> None:
        """It got one. evaluates: of a loader whose batches no step commits."""
        if not self._shows:
            return
        now_s = time.monotonic()
        if self._asked is not None and not evaluates:
            # The processor time of the wait is counted with the rest of the step's.
            self._blocked_s += max(0.0, now_s - self._asked[0] - (time.thread_time() - self._asked[1]))
        self._asked = None
        if evaluates:
            if self._section == EVALUATION:
                self._count(EVALUATION, now_s - self._base_s)
            else:
                self._carried_s += now_s - self._base_s
            self._section = EVALUATION
            self._show(now_s)
        elif self._section == EVALUATION:
            self._leave(now_s)
            self._show(now_s)

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """What goes on here is a section of its own, with times of its own, and no part of a step."""
        if not self._shows:
            yield
            return
        outer, now_s, cpu_s = self._section, time.monotonic(), time.thread_time()
        carried_s = self._carried_s + now_s - self._base_s
        self._section = name
        self._show(now_s)
        try:
            yield
        finally:
            end_s = time.monotonic()
            self._count(name, end_s - now_s)
            self._section, self._carried_s = outer, carried_s
            self._cpu_s += time.thread_time() - cpu_s
            self._show(end_s)

    def ended(self) -> None:
        """The loop is over; what the script does behind it takes as long as it takes."""
        if self._shows:
            self._section = AFTER
            self._show(time.monotonic())

    def _leave(self, now_s: float) -> None:
        """The evaluation is over; the step goes on."""
        self._count(EVALUATION, now_s - self._base_s)
        self._section = STEP if self._steps >= WARM_STEPS else WARM_UP
        self._base_s = now_s

    def _slot(self, name: str) -> int:
        if name not in self._names:
            self._names[name] = min(len(self._names), SECTIONS - 1)
        return self._names[name]

    def _count(self, name: str, seconds: float) -> None:
        at = HEADER.size + self._slot(name) * SECTION.size
        bucket = at + _COUNTS + 4 * bucket_of(seconds)
        memory = self._memory
        _, count, total_s, longest_s = _TIMES.unpack_from(memory, at)
        self._lock()
        text = name.encode()[: progress.NAME_BYTES]
        _TIMES.pack_into(memory, at, text, count + 1, total_s + seconds, max(longest_s, seconds))
        _WORD.pack_into(memory, bucket, _WORD.unpack_from(memory, bucket)[0] + 1)

    def _lock(self) -> None:
        """From here to `_show` whoever reads takes nothing for true."""
        self._writes |= 1
        _LONG.pack_into(self._memory, 8, self._writes)

    def _show(self, now_s: float) -> None:
        at = HEADER.size + self._slot(self._section) * SECTION.size
        self._lock()
        self._marks += 1
        self._base_s = now_s
        _NAME.pack_into(self._memory, at, self._section.encode()[: progress.NAME_BYTES])
        values = (self._marks, self._steps, now_s, self._stepped_s, self._own_s)
        HEADER.pack_into(self._memory, 0, progress.VERSION, self._slot(self._section), self._writes, *values)
        self._writes += 1
        _LONG.pack_into(self._memory, 8, self._writes)


_TIMES = struct.Struct(f"<{progress.NAME_BYTES}sQdd")
_NAME = struct.Struct(f"<{progress.NAME_BYTES}s")
_WORD = struct.Struct("<I")
_LONG = struct.Struct("<Q")


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
