"""`--preload auto`, before any worker has run: what the script imports before it does anything else.

Only an import that nothing of the script's own can have come before is safe to make earlier: a script that sets a
variable, or imports a module of its own that may, means it for the imports that follow.
"""

from __future__ import annotations

from .import_trace import installed
from .import_tree import is_standard

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _ast
    from collections.abc import Iterator, Sequence

ONLY_AST = 0x0400
"""`ast.PyCF_ONLY_AST`: compile() returns the tree. (The module ast itself would be found imported by every script.)"""


def first_imports(argv: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The installed modules that the script of this worker's command imports first, in their order, with the names that
    it takes from each: packages such as transformers import what is asked of them.

    Empty where there is no file to read: for -m, whose packages would have to be imported to find it, and an archive.
    """
    if argv[2] == "-m" or not argv[2].endswith(".py"):
        return {}
    try:
        with open(argv[2], "rb") as file:
            tree = compile(file.read(), argv[2], "exec", ONLY_AST, dont_inherit=True)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return {}  # the worker will say what is wrong with it
    found: dict[str, tuple[str, ...]] = {}
    for module, names in _imports(tree.body):
        if is_standard(module):
            continue
        if not installed(module):
            break
        found[module] = (*found.get(module, ()), *names)
    return found


def _imports(body: Sequence[_ast.stmt]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The modules imported by these statements, up to the first one that may do something else."""
    import _ast

    for each in body:
        if isinstance(each, _ast.Import):
            yield from ((alias.name, ()) for alias in each.names)
        elif isinstance(each, _ast.ImportFrom) and each.module and not each.level:
            yield each.module, tuple(alias.name for alias in each.names if alias.name != "*")
        elif not _is_inert(each):
            return


def _is_inert(each: _ast.stmt) -> bool:
    """Whether this statement only gives a name to a constant or to a function, or is a text."""
    import _ast

    if isinstance(each, (_ast.FunctionDef, _ast.AsyncFunctionDef)):
        defaults = (*each.args.defaults, *filter(None, each.args.kw_defaults))
        return not each.decorator_list and all(isinstance(value, _ast.Constant) for value in defaults)
    if isinstance(each, _ast.Assign):
        return isinstance(each.value, _ast.Constant) and all(isinstance(to, _ast.Name) for to in each.targets)
    return isinstance(each, _ast.Expr) and isinstance(each.value, _ast.Constant)
