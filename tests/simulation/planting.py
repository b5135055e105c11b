"""Planting bugs: a function or a table of the protocol is changed, and the invariants must find it.

A simulator whose invariants no bug can break proves nothing. The text of a function is changed and compiled anew, and
its code exchanged in place, so that tables which hold the function have the bug, too. `mutants.py` lists the bugs.
"""

from __future__ import annotations
import __future__

import functools
import inspect
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from elastic_agent.agent import inbox
from elastic_agent.rendezvous import (
    c10d,
    connection,
    crew,
    driver,
    founding,
    notifications,
    pulse,
    reading,
    takeover,
    term,
)

from . import plan, run

DRIVERS = {
    module.__name__
    for module in (driver, term, crew, pulse, connection, c10d, founding, inbox, notifications, reading, takeover)
}
"""Modules whose bugs show only where production drivers run."""

SEEDS = 2500
"""Within so many a bug must be found."""


@dataclass(frozen=True)
class Mutant:
    """A bug: in `where`, the text `right` becomes `wrong`."""

    name: str
    where: Callable[..., Any]
    right: str
    wrong: str

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The bug is there. Raises LookupError if the function no longer says what is to be changed."""
        function = _function(self.where)
        source = textwrap.dedent(inspect.getsource(function))
        if self.right not in source:
            raise LookupError(f"{self.name}: {function.__qualname__} does not say {self.right!r}")
        held = function.__code__
        made: dict[str, Any] = {}
        text = source.replace(self.right, self.wrong)
        flags = __future__.annotations.compiler_flag
        exec(compile(text, f"<{self.name}>", "exec", flags, dont_inherit=True), function.__globals__, made)
        function.__code__ = _function(next(iter(made.values()))).__code__
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


def _function(where: object) -> FunctionType:
    function = where.fget if isinstance(where, property) else where
    if not isinstance(function, FunctionType):
        raise TypeError(f"{where!r} is no function")
    return function


def find(mutant: Mutant | Misplaced, seeds: int = SEEDS) -> run.SeedFailed | None:
    """A violation that this bug leads to; None if it goes unnoticed. First where it is most likely, and cheap."""
    drawn = _drawn(seeds)
    below = isinstance(mutant, Mutant) and _function(mutant.where).__module__ in DRIVERS
    with mutant.planted():
        for scenario in sorted(drawn, key=lambda scenario: bool(scenario.face) != below):
            try:
                run.play_scenario(scenario)
            except run.SeedFailed as failed:
                return failed
    return None


@functools.lru_cache(maxsize=2)
def _drawn(seeds: int) -> list[plan.Scenario]:
    """Without the largest: each costs as much as a hundred others."""
    drawn = [plan.draw(seed) for seed in range(seeds)]
    return [scenario for scenario in drawn if scenario.job.max_nodes < plan.MANY]


def report(mutants: Sequence[Mutant | Misplaced], escapes: Mapping[str, str]) -> int:
    """Plant each, and say which is found by what; 0 if all are but for the escapes."""
    found, missed = 0, 0
    for mutant in mutants:
        began = time.monotonic()
        failed = find(mutant)
        found += failed is not None
        missed += failed is None and mutant.name not in escapes
        by = f"seed {failed.scenario.seed}: {failed.what}" if failed else f"NOT FOUND; {escapes.get(mutant.name, '')}"
        sys.stdout.write(f"{time.monotonic() - began:6.1f} s  {mutant.name}: {by}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{found} of {len(mutants)} found\n")
    return 1 if missed else 0
