"""Quantities that people type: `12 hours`, `200 GB`, `90 %`, `4 cores`, `85 C`."""

from __future__ import annotations

import math
import re
from enum import Enum


class Dimension(Enum):
    """What a number counts; the value is its unit."""

    TIME = "s"
    SIZE = "B"
    PERCENT = "%"
    CORES = "cores"
    CELSIUS = "C"
    COUNT = ""


_TIMES = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
_PREFIXES = "KMGTP"
_SIZES = {
    "b": 1.0,
    **{f"{prefix}B".lower(): 1000.0 ** (power + 1) for power, prefix in enumerate(_PREFIXES)},
    **{f"{prefix}iB".lower(): 1024.0 ** (power + 1) for power, prefix in enumerate(_PREFIXES)},
}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z%]*)")
_OTHERS = {"%": Dimension.PERCENT, "percent": Dimension.PERCENT, "c": Dimension.CELSIUS}
_OTHERS |= {"core": Dimension.CORES, "cores": Dimension.CORES}
SIDES = ("used", "free", "left", "lost")


def quantity(text: str) -> tuple[float, Dimension, str] | None:
    """(value in the dimension's unit, dimension, what follows) of a text such as `90 % used`; None if it is none."""
    match = _QUANTITY.match(text)
    if not match:
        return None
    number, unit, rest = float(match[1]), match[2].lower(), text[match.end() :].strip().lower()
    if unit in SIDES and not rest:
        unit, rest = "", unit
    if not math.isfinite(number):
        return None
    if unit in _TIMES:
        return number * _TIMES[unit], Dimension.TIME, rest
    if unit in _SIZES:
        return number * _SIZES[unit], Dimension.SIZE, rest
    if unit in _OTHERS:
        return number, _OTHERS[unit], rest
    return (number, Dimension.COUNT, rest) if not unit else None


def time_s(text: str) -> float | None:
    """Seconds of `90 s`, `5 min`, `3h`, `90 days`; None if it is no length of time."""
    found = quantity(text)
    return found[0] if found and found[1] is Dimension.TIME and not found[2] else None


def size_b(text: str) -> float | None:
    """Bytes of `200 GB` (10^9) or `200 GiB` (2^30); None if it is no size."""
    found = quantity(text)
    return found[0] if found and found[1] is Dimension.SIZE and not found[2] else None


def size_text(size: float) -> str:
    """A size for people: `3.1 GB`, `870 B`."""
    for power, prefix in reversed(list(enumerate(_PREFIXES, 1))):
        if abs(size) >= 1000.0**power:
            return f"{size / 1000.0**power:.3g} {prefix}B"
    return f"{size:.0f} B"
