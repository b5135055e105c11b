"""Which variables an import reads from `os.environ`, also where it goes through all of them.

Looking through the whole environment is reading every variable, unless each name is only asked how it begins: tqdm and
fsspec, which nearly everything imports, search for names with a prefix of theirs. So whoever iterates is also shown the
names that differ between workers, as strings that record what is done with them.
"""

from __future__ import annotations

import _weakref
import os

from .import_tree import EVERY_VARIABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from typing import Any

    from .import_tree import Import, Tree

HARMLESS = frozenset({"startswith", "endswith", "__class__"})


class Uses:
    """What was done with one name that was shown."""

    __slots__ = ("compared", "used")

    def __init__(self) -> None:
        self.compared = self.used = False


class Shown(str):
    """The name of a variable that some workers have: records whether it was used for more than a comparison."""

    uses: Uses

    def __getattribute__(self, name: str) -> Any:  # noqa: ANN401 - any attribute
        if name not in HARMLESS:
            uses_of(self).used = True
        return object.__getattribute__(self, name)

    def startswith(self, *args: Any) -> bool:  # noqa: ANN401 - as str's
        """As str's."""
        return compared(self, found=str.startswith(self, *args))

    def endswith(self, *args: Any) -> bool:  # noqa: ANN401 - as str's
        """As str's."""
        return compared(self, found=str.endswith(self, *args))

    def __contains__(self, part: object) -> bool:
        return compared(self, found=isinstance(part, str) and str.__contains__(self, part))

    def __eq__(self, other: object) -> bool:
        return compared(self, found=str.__eq__(self, other) is True)

    __hash__ = str.__hash__  # a copy of the environment is no use of it yet


def uses_of(shown: Shown) -> Uses:
    """What was done with this name."""
    found: Uses = object.__getattribute__(shown, "uses")
    return found


def compared(shown: Shown, *, found: bool) -> bool:
    """Record a comparison, and return its result; one that found something is a use."""
    uses = uses_of(shown)
    uses.compared = True
    uses.used = uses.used or found
    return found


class EnvironmentWatch:
    """Methods for `os._Environ` that record, in the import that is under way, what is read."""

    def __init__(self, tree: Tree, per_round: Collection[str]) -> None:
        self._tree = tree
        self._per_round = tuple(per_round)
        self._shown: list[tuple[Import, Callable[[], Shown | None], Uses]] = []
        """Who was shown a name, the name while it is kept by anybody, and what was done with it."""

    def settle(self, ended: Import) -> None:
        """At the end of this import: what it did with the names that it was shown."""
        if not self._shown:
            return
        kept = []
        for one in self._shown:
            by, ref, uses = one
            if by is not ended:
                kept.append(one)
            # One that was not compared was looked at in a way that does not show.
            elif uses.used or not uses.compared or ref() is not None:
                ended.reads.add(EVERY_VARIABLE)
        self._shown = kept

    def get_item(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`__getitem__`: records the name."""

        def recording(environ: os._Environ[Any], name: Any) -> Any:  # noqa: ANN401 - str, or bytes in os.environb
            if type(name) is Shown:
                return ""  # what goes with it, for whoever goes through pairs
            self._tree.now.reads.add(os.fsdecode(name))
            return original(environ, name)

        return recording

    def iterate(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`__iter__`: shows the names that differ between workers too, first, and records what was done with them."""

        def recording(environ: os._Environ[Any]) -> Iterator[Any]:
            by = self._tree.now
            names = list(original(environ))
            if environ is os.environ:
                for name in self._per_round:
                    if name not in names:
                        yield self._show(name, by)
            else:
                by.reads.add(EVERY_VARIABLE)  # in bytes
            yield from names

        return recording

    def _show(self, name: str, by: Import) -> Shown:
        shown = Shown(name)
        shown.uses = Uses()
        self._shown.append((by, _weakref.ref(shown), uses_of(shown)))
        return shown
