"""What all readers are: they look once, and keep what the next look needs."""

from __future__ import annotations

from typing import Protocol

from ..decisions.trend import Sample
from ..decisions.watches import Reading, Verdict
from ..table.kinds import Threshold
from ..table.quantities import Dimension, size_text
from ..table.watch import Watch


class Reader(Protocol):
    """Reads what one watch is about. Used by one thread at a time."""

    samples: dict[str, list[Sample]]
    """What it keeps over looks, by names of its own; saved between runs of `--once`."""

    def read(self, now: float) -> Reading:
        """One look. `now`: seconds of a clock that never goes backwards. Raises NoAnswer where it cannot be read."""
        ...

    def close(self) -> None:
        """Let go of what it holds."""
        ...


def threshold_of(watch: Watch) -> Threshold:
    """The threshold of a watch whose kind has one."""
    if watch.threshold is None:
        raise ValueError(f"{watch.title} has no threshold")
    return watch.threshold


def judged(over: bool, text: str) -> Reading:
    """A reading over its threshold, or under it."""
    return Reading(Verdict.OVER if over else Verdict.UNDER, text)


def not_yet(text: str) -> Reading:
    """A reading that needs more looks."""
    return Reading(Verdict.NOT_YET, text)


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
