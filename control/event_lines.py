"""An agent's events as values of a line each, and the files that hold them.

They come from a control socket, or from the file that ELASTIC_AGENT_EVENTS names and what was put aside for it.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

Event = Mapping[str, Any]

_NEEDED = {
    "event": ("phase", "round", "because"),
    "announced": ("phase", "because"),
    "concluded": ("because",),
    "stage": ("stage", "round", "took_s"),
    "goodput": ("wall_s", "workers", "measured", "buckets", "lost"),
}
"""Keys without which a line of such a kind says nothing."""
_TEXTS = frozenset(["because", "cause", "charged", "happened", "id", "kind", "name", "node", "phase", "stage", "what"])
_NUMBERS = frozenset(
    ("at_s", "exit_code", "length_s", "missed", "nproc", "number", "round", "time_s", "took_s", "version", "wall_s",
     "workers")
)  # fmt: skip
_PARTS = {"ended": {"round", "kind", "because"}, "lost": {"round", "kind", "length_s"}, "members": {"node", "name"}}
"""What an event has within it, or None instead, and what each of these must have."""


def files_of_events(path: str) -> list[str]:
    """A file of events behind those that were put aside for it, the oldest first."""
    folder, name = os.path.split(os.path.abspath(path))
    numbers = [each[len(name) + 1 :] for each in os.listdir(folder) if each.startswith(f"{name}.")]
    aside = sorted(int(number) for number in numbers if number.isdecimal() and number.isascii())
    return [*(f"{path}.{number}" for number in aside), path]


def events_in(path: str, note: Callable[[str], None]) -> list[dict[str, Any]]:
    """The events of a file. What a host that lost its power left of a line, or in its place, is left out, and `note` is
    told where that is not the end of the file; raises ValueError, in one line, for a file without any event in it that
    is not empty."""
    found, broken = [], []
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        for number, line in enumerate(file, 1):
            try:
                found.append(_event_in(line))
            except (ValueError, KeyError, TypeError):
                if line.endswith("\n"):
                    broken.append(number)
    if broken and not found:
        raise ValueError(f"{path}: line {broken[0]} is no event of an agent")
    if broken:
        more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
        note(f"{path}: line {broken[0]}{more} left out: no event of an agent, or damaged")
    return found


def _event_in(line: str) -> dict[str, Any]:
    """Raises ValueError, KeyError and TypeError where there is none."""
    event = json.loads(line)
    needed = _NEEDED.get(event["what"], ())
    at_s = event.get("at_s", event.get("atS"))
    if "node" not in event or at_s is None or not all(key in event for key in needed) or not _is_as_written(event):
        raise ValueError(line)
    return {**event, "at_s": at_s}


def _is_as_written(event: Event) -> bool:
    """Whether the values of an event are of the kinds that an agent writes, as far as a story or a page reads them."""
    return all(_fits(_in_file(name), value) for name, value in event.items())


def _fits(name: str, value: object) -> bool:
    if name in _TEXTS:
        return isinstance(value, str)
    if name in _NUMBERS:
        return _is_number(value)
    if name == "buckets":
        return isinstance(value, dict) and all(map(_is_number, value.values()))
    if name not in _PARTS or (value is None and name != "lost"):
        return True
    parts = value if isinstance(value, list) and name != "ended" else [value]
    return all(isinstance(each, dict) and _is_as_written(each) and _PARTS[name] <= each.keys() for each in parts)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


@lru_cache(maxsize=256)
def _in_file(name: str) -> str:
    return re.sub(r"([A-Z])", lambda letter: f"_{letter[1].lower()}", name)


def normal(event: Event) -> dict[str, Any]:
    """Names as the events file has them, whichever way the event came."""
    made = {_in_file(name): value for name, value in event.items()}
    if made.get("what") == "announced" and "happened" not in made:
        made["round"] = made.pop("number", 0)  # a line of the file
    made["members"] = [normal(member) for member in made.get("members") or ()]
    if made.get("ended"):
        made["ended"] = normal(made["ended"])
    return made
