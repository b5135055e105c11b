"""The map of the house is the one that the code has, and what CONTRIBUTING says is in a file is there."""

from __future__ import annotations

import ast
import re

import pytest

from project import house_map
from support.source_tree import ROOT, core, parse, tracked

HEADING = "| you look for | file | there |"


def places() -> list[tuple[str, str]]:
    """(file, symbol) of each row of CONTRIBUTING's table; a symbol in double quotes is a text in that file."""
    table = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition(HEADING)[2].split("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return [(path.strip("`"), symbol.strip("`")) for _, path, symbol in rows]


def holds(path: str, symbol: str) -> bool:
    """Whether a Python file defines this name or has this text, or a schema this message."""
    if path.endswith(".proto"):
        return re.search(rf"^(message|enum) {symbol} ", (ROOT / path).read_text(), flags=re.MULTILINE) is not None
    nodes = list(ast.walk(parse(ROOT / path).tree))
    if symbol.startswith('"'):
        return any(isinstance(node, ast.Constant) and node.value == symbol.strip('"') for node in nodes)
    defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return symbol in defined | stored


def test_the_map_is_drawn_from_the_code() -> None:
    """docs/house-map.md shows what is there; `python -m tests.project.house_map` draws it anew."""
    assert house_map.PAGE.read_text(encoding="utf-8") == house_map.page()


def test_every_module_is_on_the_map() -> None:
    """A module that the map leaves out is one that nobody finds."""
    text = house_map.page()
    modules = [module.path for module in core() if not module.path.endswith("__init__.py")]
    assert not [path for path in modules if f"](../{path})" not in text]


def test_every_folder_of_tests_says_what_lives_there() -> None:
    """In the docstring of its `__init__.py`, or in a line of tests/README.md if it is no package."""
    modules = [ROOT / path for path in tracked() if path.suffix == ".py" and path.parts[0] == "tests"]
    folders = {path.parent for path in modules} - {ROOT / "tests"}
    packages = {path.parent for path in modules if path.name == "__init__.py"}
    assert not [folder for folder in packages if not ast.get_docstring(parse(folder / "__init__.py").tree)]
    lines = (ROOT / "tests/README.md").read_text(encoding="utf-8").splitlines()
    listed = [line.split("`")[1] for line in lines if line.startswith("| `")]
    assert listed == sorted(folder.relative_to(ROOT / "tests").as_posix() for folder in folders - packages)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("One thing. And another.", "One thing."),
        ("The agent (`agent.py`) runs: it\nloops. It ends.", "The agent (`agent.py`) runs: it loops."),
        ("No full stop\n\nAnother paragraph.", "No full stop"),
        ("It drives the machine:\n\n    step()", "It drives the machine"),
        ("", ""),
    ],
)
def test_first_sentence(text: str, sentence: str) -> None:
    """What the map shows of a docstring, cut where its first sentence ends and nowhere else."""
    assert house_map.first_sentence(text) == sentence


def test_there_are_places_to_check() -> None:
    """A table that was renamed would pass the next test with nothing in it."""
    assert len(places()) >= 30


@pytest.mark.parametrize(("path", "symbol"), places(), ids=str)
def test_what_contributing_points_at_is_there(path: str, symbol: str) -> None:
    """Somebody who looks for a rule finds it in the file that the table names, under the name that it gives."""
    assert (ROOT / path).is_file()
    assert holds(path, symbol)
