"""The modules that functions and classes of a program need where they are called."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import CodeType, ModuleType
from typing import Any


def modules_of(things: Iterable[Any]) -> list[str]:
    """Their modules, and of what the main program defines, which travels as code, the modules of what it names."""
    found: dict[str, None] = {}
    for thing in things:
        home = getattr(thing, "__module__", None)
        names = [home] if home != "__main__" else [name for each in _functions(thing) for name in _named(each)]
        found |= dict.fromkeys(name for name in names if name)
    own = __name__.partition(".")[0]
    return [name for name in found if name != "__main__" and name.partition(".")[0] != own and name in sys.modules]


def _functions(thing: Any) -> list[Any]:
    parts = vars(thing).values() if isinstance(thing, type) else [thing]
    return [part for part in parts if isinstance(getattr(part, "__code__", None), CodeType)]


def _named(function: Any) -> Iterator[str | None]:
    for name in _names(function.__code__):
        value = function.__globals__.get(name)
        if isinstance(value, ModuleType):
            yield value.__name__
        elif value is not None:
            yield getattr(value, "__module__", None)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
