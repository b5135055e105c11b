"""Names in production modules that stand for something else while a world runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

Substitute = tuple[Any, str, object]
"""A module, a name in it, and the value that the name has while a world runs."""


@contextmanager
def substituted(exchanged: Iterable[Substitute]) -> Iterator[None]:
    """Inside, each name has its substitute; afterwards, what it had before."""
    exchanged = list(exchanged)
    held = [(module, name, getattr(module, name)) for module, name, _ in exchanged]
    for module, name, instead in exchanged:
        setattr(module, name, instead)
    try:
        yield
    finally:
        for module, name, original in held:
            setattr(module, name, original)
