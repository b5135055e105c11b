"""Planting bugs: a function or a table of the protocol is changed, and the invariants must find it.

A simulator whose invariants no bug can break proves nothing. The changed function is compiled and its code exchanged in
place, so that tables which hold the function have the bug, too.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from .syntax import Edit


@dataclass(frozen=True)
class Mutant:
    """A bug: this edit of the function `where`, which may be the getter of a property."""

    name: str
    where: Callable[..., Any]
    edit: Edit
    slow: bool = False
    """It costs time, which only a job shows in which thousands of workers end at once."""

    def function(self) -> FunctionType:
        where: object = self.where
        function = where.fget if isinstance(where, property) else where
        if not isinstance(function, FunctionType):
            raise TypeError(f"{self.name}: {where!r} is no function")
        return function

    def __str__(self) -> str:
        lines = zip(*(ast.unparse(each).splitlines() for each in self.changed()), strict=False)
        held, bug = next((held.strip(), bug.strip()) for held, bug in lines if held != bug)
        return f"{self.name} ({self.function().__qualname__}: `{held}` is `{bug}`)"

    def changed(self) -> tuple[ast.FunctionDef, ast.FunctionDef]:
        """The function without and with the bug. Raises LookupError if it has no place for it."""
        whole = ast.parse(textwrap.dedent(inspect.getsource(self.function()))).body[0]
        if not isinstance(whole, ast.FunctionDef):
            raise TypeError(f"{self.name}: {self.function().__qualname__} is no plain function")
        whole.decorator_list = []
        try:
            return whole, self.edit(whole)
        except LookupError as error:
            raise LookupError(f"{self.name}: {self.function().__qualname__}: {error}") from error

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The bug is there. Raises LookupError if the function has no place for it."""
        function = self.function()
        module = ast.Module([self.changed()[1]], [])
        flags = __future__.annotations.compiler_flag
        made: dict[str, Any] = {}
        exec(compile(module, f"<{self.name}>", "exec", flags, dont_inherit=True), function.__globals__, made)
        held, function.__code__ = function.__code__, made[function.__name__].__code__
        try:
            yield
        finally:
            function.__code__ = held


@dataclass(frozen=True)
class Misplaced:
    """A bug in a table: what happens at `key` is what happens at another."""

    name: str
    table: Mapping[Any, Any]
    key: Any
    value: Any

    def __str__(self) -> str:
        return self.name

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The bug is there."""
        table = self.table
        if not isinstance(table, MutableMapping):
            raise TypeError(f"{self.name}: the table cannot be changed")
        held = table[self.key]
        table[self.key] = self.value
        try:
            yield
        finally:
            table[self.key] = held
