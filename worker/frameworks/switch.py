"""`--exact-resume DIR` as a process of the job sees it: two variables. Imports nothing but the standard library."""

from __future__ import annotations

import os
import re

from ..errors import Misused

DIRECTORY = "ELASTIC_AGENT_EXACT_RESUME"
"""The directory of the checkpoints; unset or empty: the switch is off."""
SAVE_EVERY = "ELASTIC_AGENT_SAVE_EVERY"
"""How often to save: `50` steps or `90s`, or both, as `50,90s`; unset: every 10 minutes."""
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""How a URL begins, also where it has been made a Path."""


def directory() -> str:
    """The directory that the switch names; empty where it is off."""
    return os.environ.get(DIRECTORY, "")


def chosen(asked: str | os.PathLike[str] | None) -> str:
    """The directory that a script asks for, else the switch's. Raises Misused where there is neither, or no directory
    in what is asked for."""
    place = os.fspath(directory() if asked is None else asked)
    if not place and asked is None:
        raise Misused("Run() has no directory: name one, or start the job with --exact-resume DIR")
    if not place:
        raise Misused("Run('') names no directory: give one, or '.' for the working directory")
    if _URL.match(place):
        raise Misused(
            f"Run({place!r}) names a URL, and checkpoints are written to a directory: give one, and "
            f"Run(..., copy_to={place!r}) for copies there"
        )
    return place


def save_every() -> tuple[int | None, float | None]:
    """Steps and seconds between saves. Raises Misused for a text that is neither."""
    text = os.environ.get(SAVE_EVERY, "").strip() or "600s"
    steps: int | None = None
    seconds: float | None = None
    for part in text.split(","):
        try:
            if part.strip().endswith("s"):
                seconds = float(part.strip()[:-1])
            else:
                steps = int(part)
        except ValueError:
            raise Misused(
                f"{SAVE_EVERY} is {text!r}: write a number of steps, such as 50, or of seconds, such as 90s, or both "
                "with a comma"
            ) from None
    if (steps is not None and steps < 1) or (seconds is not None and seconds <= 0):
        raise Misused(f"{SAVE_EVERY} is {text!r}: the least is 1 step, and more than 0 seconds")
    return steps, seconds
