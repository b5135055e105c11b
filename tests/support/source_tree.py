"""The repository as tests/project reads it: parsed modules, their imports and calls, and the files of git."""

from __future__ import annotations

import ast
import gc
import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORE = ("agent", "control", "launcher", "proto", "rendezvous", "trainer", "worker")
"""Folders that are installed."""
BESIDE = ("tests", "examples", "benchmarks")
"""Folders with modules that are not."""
OLDEST_PYTHON = (3, 10)


@dataclass(frozen=True)
class Module:
    """One parsed source file; `path` is relative to the repository root."""

    path: str
    text: str
    tree: ast.Module
    unreadable: str = ""
    """Why Python OLDEST_PYTHON cannot parse it; `tree` is empty then."""

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of the tree. Dozens of rules look at them, so they are walked once."""
        return tuple(ast.walk(self.tree))

    @property
    def folder(self) -> str:
        return self.path.partition("/")[0]

    @property
    def name(self) -> str:
        """The name it is imported by; a package has the name of its folder."""
        return ".".join(["elastic_agent", *self.path.removesuffix(".py").removesuffix("/__init__").split("/")])

    def at(self, node: ast.AST) -> str:
        return f"{self.path}:{getattr(node, 'lineno', 1)}"


@cache
def core() -> tuple[Module, ...]:
    """Every hand-written module of the installed folders."""
    paths = (path for folder in CORE for path in sorted((ROOT / folder).rglob("*.py")))
    return _parse_all(path for path in paths if not re.search(r"_pb2(_grpc)?\.py$", path.name))


@cache
def beside() -> tuple[Module, ...]:
    """Every module of the folders beside the installed ones."""
    return _parse_all(ROOT / path for path in tracked() if path.suffix == ".py" and path.parts[0] in BESIDE)


def _parse_all(paths: Iterable[Path]) -> tuple[Module, ...]:
    """Parse without looks for garbage: over a million nodes that stay, they take four times as long as the parsing."""
    gc.collect()
    gc.disable()
    try:
        modules = tuple(parse(path) for path in paths)
        gc.freeze()
    finally:
        gc.enable()
    return modules


def parse(path: Path) -> Module:
    name, text = path.relative_to(ROOT).as_posix(), path.read_text()
    try:
        return Module(name, text, ast.parse(text, feature_version=OLDEST_PYTHON))
    except SyntaxError as error:
        return Module(name, text, ast.Module([], []), f"{name}:{error.lineno}: {error.msg}")


def imports(module: Module, *, top_level_only: bool = False) -> Iterator[tuple[ast.stmt, str]]:
    """Each import as (statement, absolute dotted name); relative ones start with `elastic_agent`."""
    for node in _run_on_import(module.tree) if top_level_only else module.nodes:
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            # `from concurrent import futures` imports concurrent.futures: the names may be modules.
            yield from ((node, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = ["elastic_agent", *module.path.split("/")[:-1]]
            base = package[: len(package) - node.level + 1] + ([node.module] if node.module else [])
            yield from ((node, ".".join([*base, alias.name])) for alias in node.names)


def _run_on_import(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes that run when the module is imported: all but function bodies and `if TYPE_CHECKING` blocks."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from _run_on_import(child)


@cache
def calls(module: Module) -> tuple[tuple[ast.Call, str], ...]:
    """Each call as (node, full name): `from time import sleep; sleep(1)` and `import time as t; t.sleep(1)` alike."""
    known: dict[str, str] = {}
    for node in module.nodes:
        if isinstance(node, ast.Import):
            known.update({alias.asname: alias.name for alias in node.names if alias.asname})
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            known.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    found = []
    for node in module.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            first, dot, rest = _dotted(node.func).partition(".")
            found.append((node, known.get(first, first) + dot + rest))
    return tuple(found)


def _dotted(node: ast.expr) -> str:
    """As ast.unparse, which takes ten times as long for the usual `a.b.c`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return ast.unparse(node)


@cache
def tracked() -> tuple[Path, ...]:
    """Files that git tracks or would add, relative to the root; outside git (an unpacked archive) all visible files."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, capture_output=True, check=False)
    if listing.returncode == 0:
        names = [name for name in listing.stdout.decode().split("\0") if name]
        return tuple(path for path in map(Path, names) if (ROOT / path).is_file())
    visible = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
    return tuple(path for path in visible if not any(part[0] == "." or part == "__pycache__" for part in path.parts))
