"""What all readers are: they look once, and keep what the next look needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property

from ..commands import Asker, FileSystems
from ..decisions.trend import Sample
from ..decisions.watches import Reading, ReadingResult
from ..job_view import JobView
from ..table.kinds import Threshold
from ..table.quantities import Dimension, size_text
from ..table.watch import Watch
from .processes import matching


class Reader(ABC):
    """Reads what one watch is about. Used by one thread at a time."""

    def __init__(self, watch: Watch, job: JobView | None = None) -> None:
        """`job`: the one around it, where it runs in an agent."""
        self._watch = watch
        self._job = job
        self.samples: dict[str, list[Sample]] = {}
        """What it keeps over looks, by names of its own; saved between runs of `--once`."""

    @cached_property
    def _threshold(self) -> Threshold:
        """The watch's, of a kind that has one."""
        if self._watch.threshold is None:
            raise ValueError(f"{self._watch.title} has no threshold")
        return self._watch.threshold

    def _processes(self) -> list[int]:
        """Those that `process` finds; without it the workers of the job around."""
        if not self._watch.process and self._job is not None:
            return sorted(self._job.workers().values())
        return matching(self._watch.process) if self._watch.process else []

    @property
    def _whose(self) -> str:
        """What `_processes` are called where there are none."""
        return f"process matches {self._watch.process!r}" if self._watch.process else "worker of this node runs"

    @abstractmethod
    def read(self, now: float) -> Reading:
        """One look. `now`: seconds of a clock that never goes backwards. Raises NoReading where it cannot be read."""

    def keep(self) -> None:  # noqa: B027 - most need nothing
        """It is to look often: what a look needs is kept for the next one, until `close`."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Let go of what it holds."""


class AskingReader(Reader):
    """One that asks through a helper process or a command, which may hang."""

    def __init__(self, watch: Watch, job: JobView | None = None) -> None:
        super().__init__(watch, job)
        self._asker = Asker()
        self.file_systems = FileSystems()
        """Whoever runs several readers gives all of them the same one."""

    def keep(self) -> None:
        self._asker.keeps = self.file_systems.keeps = True

    def close(self) -> None:
        self._asker.close()
        self.file_systems.close()


def judged(over: bool, text: str) -> Reading:
    """A reading over its threshold, or under it."""
    return Reading(ReadingResult.OVER if over else ReadingResult.UNDER, text)


def not_yet(text: str) -> Reading:
    """A reading that needs more looks."""
    return Reading(ReadingResult.NOT_YET, text)


def stock(threshold: Threshold, total: float, free: float, used: float, noun: str = "") -> Reading:
    """A reading of something that is used up, against `% used`, `% free` or an amount free.

    `noun` is what is counted, if not bytes. As df does, the percentage is of what users can have.
    """
    room = used + free
    percent = 100.0 * used / room if room else 0.0
    counted = f"{free:.0f} {noun}" if noun else size_text(free)
    text = f"{percent:.1f} % used, {counted} free"
    if threshold.dimension is Dimension.PERCENT:
        over = percent >= threshold.value if threshold.side == "used" else 100.0 - percent <= threshold.value
    else:
        over = free <= threshold.value
    return judged(over and total > 0, f"{text} (limit {threshold.text})")
