"""What production modules call by name can be something else for as long as a world runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

Substitute = tuple[Any, str, object]
"""A module, a name in it, and what is to stand there."""


@contextmanager
def substituted(exchanged: Iterable[Substitute]) -> Iterator[None]:
    """While it lasts, each name stands for what is to stand there."""
    exchanged = list(exchanged)
    held = [(module, name, getattr(module, name)) for module, name, _ in exchanged]
    for module, name, instead in exchanged:
        setattr(module, name, instead)
    try:
        yield
    finally:
        for module, name, original in held:
            setattr(module, name, original)
