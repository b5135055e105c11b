"""An import hook for one module: calls a function when that module has been executed. Imports nothing of ours, because
every Python that is started with the switch on loads it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


class TakePlace:
    """A finder for `sys.meta_path`. Removes itself once it is used."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._then = then

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """The module's own spec, with a loader that calls `then` at the end; None for every other module."""
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._then)  # type: ignore[assignment]
        return spec


class _Loader:
    """The module's own loader, and one step more."""

    def __init__(self, own: Any, then: Callable[[ModuleType], None]) -> None:
        self._own = own
        self._then = then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._own.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._own.exec_module(module)
        self._then(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)
