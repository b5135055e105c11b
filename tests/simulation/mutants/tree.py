"""Finding nodes of a syntax tree in the order of the source, and building what comes in their place."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import TypeVar

Assigning = (ast.Assign, ast.AugAssign, ast.AnnAssign)

_OPERATORS: dict[str, type[ast.AST]] = {
    "<": ast.Lt,
    "<=": ast.LtE,
    ">=": ast.GtE,
    "is": ast.Is,
    "or": ast.Or,
}

A = TypeVar("A", bound=ast.AST)


def inside(node: ast.AST, *kinds: type[A]) -> list[A]:
    """All nodes of these kinds from this one on inwards, as the source has them; an outer one before those in it."""
    return sorted((each for each in _descend(node) if isinstance(each, kinds)), key=_position)


def _descend(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        parts: Sequence[ast.AST] = node.body
    elif isinstance(node, ast.AnnAssign):
        parts = [part for part in (node.target, node.value) if part is not None]
    elif isinstance(node, ast.JoinedStr):
        parts = ()
    else:
        parts = [*ast.iter_child_nodes(node)]
    for part in parts:
        yield from _descend(part)


def _position(node: ast.AST) -> tuple[int, int]:
    """Where it begins; what has no position of its own begins with its parts."""
    places = ((each.lineno, each.col_offset) for each in ast.walk(node) if isinstance(each, (ast.expr, ast.stmt)))
    return min(places, default=(0, 0))


def branches(node: ast.AST) -> list[ast.expr]:
    """The conditions of `if`, `elif` and `while`."""
    return [each.test for each in inside(node, ast.stmt) if isinstance(each, (ast.If, ast.While))]


def loop_targets(node: ast.AST) -> list[ast.expr]:
    """What each `for` binds, of loops and of comprehensions."""
    return [each.target for each in inside(node, ast.AST) if isinstance(each, (ast.For, ast.comprehension))]


def operands(node: ast.AST) -> list[ast.expr]:
    """Of `and`, `or`, a comparison, arithmetic or a subscript; of another node: none."""
    if isinstance(node, ast.BoolOp):
        return node.values
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators]
    if isinstance(node, ast.Subscript):
        return [node.value, node.slice]
    return []


def arguments(node: ast.AST) -> list[ast.expr]:
    """Of a call, by position and then by keyword; of another node: none."""
    return [*node.args, *(each.value for each in node.keywords)] if isinstance(node, ast.Call) else []


def receivers(node: ast.AST) -> list[ast.expr]:
    """The object of which a call calls a method; of another node: none."""
    return [node.func.value] if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else []


def called(node: ast.Call) -> str:
    """The last name of what is called."""
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def callee(node: ast.AST) -> ast.expr:
    if not isinstance(node, ast.Call):
        raise LookupError(f"{type(node).__name__} is no call")
    return node.func


def swapped(node: ast.AST) -> ast.BinOp:
    """The operation with its operands the other way round."""
    if not isinstance(node, ast.BinOp):
        raise LookupError(f"{type(node).__name__} is no arithmetic")
    return ast.BinOp(node.right, node.op, node.left)


def parent(root: ast.AST, node: ast.AST) -> ast.AST:
    return next(each for each in ast.walk(root) if any(child is node for child in ast.iter_child_nodes(each)))


def constant(value: object) -> ast.expr:
    """The literal of this value."""
    return ast.parse(repr(value), mode="eval").body


def operator(kind: type[A], symbol: str) -> A:
    """Raises LookupError if nodes of this kind have no such operator."""
    made = _OPERATORS.get(symbol)
    if made is None or not issubclass(made, kind):
        raise LookupError(f"no {kind.__name__} is written {symbol!r}")
    return made()


def with_operator(node: ast.AST, symbol: str) -> ast.AST:
    """The same operands with this operator between them; `=`: an assignment sets, where it added."""
    if isinstance(node, ast.AugAssign) and symbol == "=":
        return ast.Assign([node.target], node.value)
    if isinstance(node, ast.Compare):
        return ast.Compare(node.left, [operator(ast.cmpop, symbol)], node.comparators)
    if isinstance(node, ast.BinOp):
        return ast.BoolOp(operator(ast.boolop, symbol), operands(node))
    raise LookupError(f"{type(node).__name__} with {symbol!r}")


def without(root: ast.AST, node: ast.AST) -> tuple[ast.AST, ast.AST | None]:
    """What must go for this node to be gone, and what comes instead; None: nothing."""
    holder = parent(root, node)
    if isinstance(node, ast.stmt):
        return node, ast.Pass()
    if isinstance(holder, ast.Expr):
        return holder, ast.Pass()
    if isinstance(holder, ast.keyword):
        return holder, None
    if isinstance(holder, (ast.BoolOp, ast.BinOp)):
        rest = [each for each in operands(holder) if each is not node]
        return holder, ast.BoolOp(holder.op, rest) if isinstance(holder, ast.BoolOp) and rest[1:] else rest[0]
    if isinstance(holder, (ast.Tuple, ast.List)):
        return node, None
    raise LookupError(f"{type(holder).__name__} cannot do without its {type(node).__name__}")


def one_time(loop: ast.AST) -> ast.For:
    """A `while` whose body runs one time, whatever its condition."""
    if not isinstance(loop, ast.While):
        raise LookupError(f"{type(loop).__name__} is no while")
    times = ast.Call(ast.Name("range", ast.Load()), [ast.Constant(1)], [])
    return ast.For(ast.Name("_", ast.Store()), times, loop.body, loop.orelse)


def exchange(root: ast.AST, gone: ast.AST, instead: ast.AST | None) -> None:
    """In place; `instead` None: nothing comes there."""
    _Exchange(gone, instead).visit(root)
    ast.fix_missing_locations(root)


class _Exchange(ast.NodeTransformer):
    def __init__(self, gone: ast.AST, instead: ast.AST | None) -> None:
        self._gone = gone
        self._instead = instead

    def visit(self, node: ast.AST) -> ast.AST | None:
        return self._instead if node is self._gone else self.generic_visit(node)
