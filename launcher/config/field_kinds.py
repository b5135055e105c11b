"""Whether the fields of a `LaunchConfig` that a program made hold what their annotations say.

The command line needs none of this: what it passes has been read from text already.
"""

# ruff: noqa: ANN401 - what a program gives is of any type
from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ...agent.errors import UsageError
from ...agent.spec import Rotation
from ...proto.frozen import replace

SHOWN = 60
"""Characters of a wrong value that a message shows."""
_WORDS = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "True or False",
    "None": "None",
    "Mapping": "a mapping",
    "Iterable": "a list",
    "Sequence": "a list",
    "Callable": "a function",
    "os.PathLike": "a path",
    "Rotation": "a Rotation",
}
"""What messages call the kinds that annotations of `LaunchConfig` name."""
_TYPES: dict[str, Any] = {
    "str": str,
    "Mapping": Mapping,
    "Iterable": Iterable,
    "Sequence": Sequence,
    "os.PathLike": os.PathLike,
    "Rotation": Rotation,
}


def in_kind(config: Any) -> Any:
    """The same `LaunchConfig`, with numbers that are texts as numbers, and the default where a field whose default is
    no number holds None. Raises UsageError, in one line, for the first field that holds something else than its
    annotation says."""
    defaults = type(config)()
    meant: dict[str, Any] = {}
    for name, annotation in type(config).__annotations__.items():
        value, default = getattr(config, name), getattr(defaults, name)
        # Without the brackets of what a collection holds, there is a bar between two kinds only.
        kinds = re.sub(r"\[.*\]", "", annotation).split(" | ")
        number = isinstance(default, (int, float)) and not isinstance(default, bool)
        if value is None and default is not None and not number:
            meant[name] = default
            continue
        if isinstance(value, str) and "str" not in kinds:
            value = meant[name] = _number(kinds, value)
        if not any(_is(kind, value) for kind in kinds):
            allowed = " or ".join(_WORDS[kind] for kind in kinds)
            raise UsageError(f"{name} is {_shown(value)}, of type {type(value).__name__}; give {allowed}")
        _check_text(name, value)
        _check_items(name, annotation, value)
    return replace(config, **meant) if meant else config


def _number(kinds: Sequence[str], text: str) -> Any:
    """The number that a text has for a field of these kinds; where it has none, the text."""
    for kind, made in (("int", int), ("float", float)):
        with contextlib.suppress(ValueError):
            if kind in kinds:
                return made(text)
    return text


def _is(kind: str, value: Any) -> bool:
    if kind in ("int", "float"):  # also numpy's; `values` says whether it is a right one
        return hasattr(value, "__float__") or hasattr(value, "__index__")
    if kind == "bool":
        return not isinstance(value, (str, bytes, bytearray)) or not value
    if kind == "None":
        return value is None
    if kind == "object":
        return True
    if kind == "Callable":
        return callable(value)
    return isinstance(value, _TYPES[kind]) and not isinstance(value, (bytes, bytearray))


def _check_text(name: str, value: Any) -> None:
    """Most texts become part of a path, an argument or a variable."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        return
    try:
        broken = b"\0" in os.fsencode(text)
    except UnicodeEncodeError:
        broken = True
    if broken:
        raise UsageError(f"{name} is {_shown(value)}, with a character that no path or variable can have; leave it out")


def _check_items(name: str, annotation: str, value: Any) -> None:
    """Texts within a collection. What can be iterated but once is left for whoever uses it."""
    if isinstance(value, str) or not isinstance(value, Collection):
        return
    items: list[Any] = []
    if "Iterable[str]" in annotation or "Mapping[str" in annotation:
        items += value
    variables = "Mapping[str, str]" in annotation
    if variables and isinstance(value, Mapping):
        items += value.values()
    for item in items:
        if not isinstance(item, str):
            raise UsageError(f"{name} has {_shown(item)}, of type {type(item).__name__}; give text")
        if variables:
            _check_text(name, item)


def _shown(value: Any) -> str:
    try:
        text = " ".join(repr(value).split())
    except Exception:  # noqa: BLE001 - of the user's own class
        text = object.__repr__(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
