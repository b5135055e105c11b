"""docs/house-map.md, drawn from docstrings and imports: `python -m tests.project.house_map` writes it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from support.source_tree import ROOT, core, imports

PAGE = ROOT / "docs" / "house-map.md"

HEAD = """# The map of the house

Each folder with what lives there, each module with what it is for, and who imports whom.
Drawn from the docstrings and the imports by `python -m tests.project.house_map`; a test fails when this page and the
code disagree. Do not edit it by hand.

Imports inside functions count too. The rules behind the arrows are in [design](design.md#floors); which file holds
which rule is in [CONTRIBUTING](../CONTRIBUTING.md#where-is-what).
"""


def page() -> str:
    """The whole page."""
    floors = _floors()
    return "\n".join([HEAD, "## Floors\n", _diagram(floors, _edges(floors)), *map(_floor, floors)])


def folders() -> list[str]:
    """Every folder that is installed, floor by floor, each before those inside it."""
    found = {module.path.rpartition("/")[0] for module in core()}
    return [folder for floor in _floors() for folder in sorted(found) if _floor_of(folder) == floor]


def first_sentence(text: str) -> str:
    """The text up to its first full stop that ends a sentence, on one line."""
    line = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s", line, maxsplit=1)[0].rstrip(":")


def _floor_of(folder: str) -> str:
    return folder.partition("/")[0]


def _floors() -> list[str]:
    """Top-level folders from the ground up, as the imports have it."""
    names = sorted({module.folder for module in core()})
    below = {name: [there for here, there in _edges(names) if here == name] for name in names}
    return list(TopologicalSorter(below).static_order())


def _edges(nodes: Iterable[str]) -> list[tuple[str, str]]:
    """(importer, imported) among these folders; a module belongs to the innermost of them."""
    known = list(nodes)
    homes = {module.path: _innermost(module.path, known) for module in core()}
    pairs = {(homes[path], homes[there]) for path, imported in _imported().items() for there in imported}
    return sorted((here, there) for here, there in pairs if here and there and here != there)


def _innermost(path: str, known: list[str]) -> str:
    return max((node for node in known if path.startswith(f"{node}/")), key=len, default="")


@cache
def _imported() -> dict[str, set[str]]:
    """Paths of the modules of ours that each module imports, by its path. A name in a module counts as the module."""
    homes = {module.name: module.path for module in core()}
    found: dict[str, set[str]] = {}
    for module in core():
        names = {name for _, name in imports(module)}
        paths = {homes.get(name if name in homes else name.rpartition(".")[0], module.path) for name in names}
        found[module.path] = paths - {module.path}
    return found


def _floor(floor: str) -> str:
    rooms = [folder for folder in folders() if _floor_of(folder) == floor]
    parts = [f"## {floor}\n"]
    if len(rooms) > 1:
        parts.append(_diagram(rooms, _edges(rooms)))
    return "\n".join([*parts, *(_room(room, deep=len(rooms) > 1) for room in rooms)])


def _room(folder: str, *, deep: bool) -> str:
    """One folder: its first sentence, what it imports, its modules."""
    inside = [module for module in core() if module.path.rpartition("/")[0] == folder]
    init = next(module for module in inside if module.path.endswith("/__init__.py"))
    targets = [there for here, there in _edges(folders()) if here == folder]
    imported = ", ".join(f"`{there}`" for there in targets) or "nothing of ours"
    lines = [f"### {folder}\n"] if deep else []
    lines += [f"{first_sentence(ast.get_docstring(init.tree) or '')}", f"Imports {imported}.\n"]
    modules = [(module.path, ast.get_docstring(module.tree) or "") for module in inside if module is not init]
    modules += [(path.relative_to(ROOT).as_posix(), _comment(path.read_text())) for path in _schemas(folder)]
    if modules:
        lines += ["| module | what |", "|---|---|"]
        lines += [f"| {_link(path)} | {first_sentence(text).replace('|', chr(92) + '|')} |" for path, text in modules]
        lines.append("")
    return "\n".join(lines)


def _link(path: str) -> str:
    return f"[{path.rpartition('/')[2].removesuffix('.py')}](../{path})"


def _schemas(folder: str) -> list[Path]:
    return sorted((ROOT / folder).glob("*.proto"))


def _comment(text: str) -> str:
    """The comment that a schema begins with."""
    lines = text.splitlines()
    end = next((at for at, line in enumerate(lines) if not line.startswith("//")), len(lines))
    return "\n".join(line.removeprefix("//").strip() for line in lines[:end])


def _diagram(nodes: list[str], edges: list[tuple[str, str]]) -> str:
    """An arrow leads from the importer to what it imports; what imports nothing here stands at the bottom."""
    lines = ["```mermaid", "flowchart TD"]
    lines += [f'    {_id(node)}["{node}"]' for node in nodes]
    lines += [f"    {_id(here)} --> {_id(there)}" for here, there in edges]
    return "\n".join([*lines, "```", ""])


def _id(folder: str) -> str:
    return folder.replace("/", "_")


if __name__ == "__main__":
    PAGE.write_text(page())
