"""Which module was imported by which, and what each did while it was imported that a forked worker could not share."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

EVERY_VARIABLE = "*"
"""Among the variables that an import has read: it looked at the whole environment."""


class Import:
    """One module's import. (No dataclass: every script would find that module imported.)"""

    __slots__ = ("at_exit", "began", "failed", "faults", "made_files", "name", "over", "parent", "reads")

    def __init__(self, name: str, parent: Import | None, began: int) -> None:
        self.name = name
        self.parent = parent
        """The import during which this one happened; None for what surrounds all of them."""
        self.reads: set[str] = set()
        """Variables that it has read, itself and not by what it imported in turn."""
        self.faults: list[str] = []
        """Why no worker may be forked after it, each in one clause with the module's name."""
        self.at_exit: list[str] = []
        """Functions that it registered to run at exit."""
        self.made_files = False
        """Whether it made a file or a directory."""
        self.failed = False
        self.began, self.over = began, began
        """When, counted in imports that had begun."""

    def chain(self) -> Iterator[Import]:
        """This import, and those during which it happened, outermost last."""
        at: Import | None = self
        while at is not None:
            yield at
            at = at.parent


class Tree:
    """All imports of this process since it is watched, in the order in which they began."""

    def __init__(self) -> None:
        self.root = Import("", None, 0)
        """What surrounds all imports."""
        self.now = self.root
        """The innermost import that is under way."""
        self.imports: list[Import] = []

    def begin(self, name: str) -> Import:
        """An import begins within the one that is under way."""
        self.now = Import(name, self.now, len(self.imports))
        self.imports.append(self.now)
        return self.now

    def end(self, ended: Import, *, failed: bool) -> None:
        """This import is over, and with it all that began since."""
        ended.failed = failed
        ended.over = len(self.imports)
        self.now = ended.parent or self.root

    def guilty(self) -> list[Import]:
        """The imports with a fault, also the one that surrounds all."""
        return [each for each in (self.root, *self.imports) if each.faults]

    def readers(self, names: Collection[str]) -> dict[Import, str]:
        """The imports that have read one of these variables, with its name."""
        found = {}
        for each in (self.root, *self.imports):
            if names and EVERY_VARIABLE in each.reads:
                found[each] = EVERY_VARIABLE
            elif read := each.reads.intersection(names):
                found[each] = min(read)
        return found

    def without(self, guilty: Collection[Import]) -> list[str]:
        """The modules whose import has nothing to do with these: without what each was imported by, and without what
        imports it. The fewest names that stand for them all, in the order in which they were imported."""
        left_out = self._with_dependents({each for one in guilty for each in one.chain()})
        names = {each.name for each in left_out}
        kept: dict[str, None] = {}
        for each in self.imports:
            if each in left_out or each.failed or not (each.parent is self.root or each.parent in left_out):
                continue
            if not is_below(each.name, names):
                kept[each.name] = None
        return list(kept)

    def left_out(self, guilty: Collection[Import]) -> list[str]:
        """The modules that are not among those of `without`: the fewest packages and modules that stand for all."""
        names = {each.name for each in self._with_dependents({each for one in guilty for each in one.chain()})}
        return sorted(name for name in names if name and not is_below(name, names))

    def _with_dependents(self, left_out: set[Import]) -> set[Import]:
        """These imports, and those of modules that hold something of theirs, which they found imported already."""
        found = left_out - {self.root}
        first = {each.name: each.began for each in found}
        held = {each: names_in(each.name) for each in self.imports if each not in found and not is_standard(each.name)}
        grown = True
        while grown:
            grown = False
            for each, names in list(held.items()):
                # What began after this one was over was put into it by somebody else.
                if any(first.get(name, each.over) < each.over for name in names):
                    more = {one for one in each.chain() if one is not self.root}
                    first.update((one.name, one.began) for one in more)
                    found |= more
                    del held[each]
                    grown = True
        return found


def names_in(module: str) -> set[str]:
    """The modules from which the values of this module's globals come, as far as modules, classes and functions say."""
    kinds = (type(sys), type, type(names_in))
    found = set()
    for value in list(vars(sys.modules[module]).values()) if module in sys.modules else ():
        if type(value) in kinds:
            name = vars(value).get("__name__") if type(value) is kinds[0] else value.__module__
            found.add(name if isinstance(name, str) else "")
    return found - {module}


def is_below(name: str, packages: Collection[str]) -> bool:
    """Whether this module is in one of these packages."""
    parts = name.split(".")
    return any(".".join(parts[:at]) in packages for at in range(1, len(parts)))


def is_standard(name: str) -> bool:
    """Whether this module is part of Python."""
    return name.partition(".")[0] in sys.stdlib_module_names


def reads(by: Import, name: str) -> str:
    """The clause about an import that has read a variable."""
    what = "the whole environment" if name == EVERY_VARIABLE else name
    which = "which" if name == EVERY_VARIABLE else "whose value"
    return f"{by.name or 'sitecustomize'} reads {what} when it is imported, {which} differs between workers"


def packages(modules: list[str]) -> list[str]:
    """The packages of these modules, without Python's own."""
    return list(dict.fromkeys(name.partition(".")[0] for name in modules if not is_standard(name)))
