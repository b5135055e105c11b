"""A place in a function, named by its role and its position in the syntax tree, and what is changed there.

    branch(2).never()                           the condition of the third `if`, `elif` or `while` is False
    returned(0).operand(1).removed()            `return a or b` becomes `return a`
    given(SEEN.lost).becomes(None)              lost=... becomes lost=None; SEEN is fields(Seen)
    call(Keys.round, 1).argument(0).becomes(1)  the first argument of the second call of Keys.round is 1

So no local name and no text of the function is repeated in a bug. Functions, and fields of dataclasses, are named by a
reference, which the type checker sees and a renaming tool changes. Positions count from 0 in the order of the source,
-1 is the last; an outer expression comes before those in it. F-strings, docstrings and annotations have no places.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from . import tree

T = TypeVar("T")

Constant = int | float | str | None | tuple[()]
Find = Callable[[ast.AST], Sequence[ast.AST | None]]
Change = Callable[[ast.FunctionDef, ast.AST], tuple[ast.AST, ast.AST | None]]
"""In this function, of the node at the place: which node goes, and what comes instead; None: nothing."""


@dataclass(frozen=True)
class Edit:
    """What a bug does to a function."""

    place: Place
    change: Change

    def __call__(self, function: ast.FunctionDef) -> ast.FunctionDef:
        """A changed copy. Raises LookupError if the function has no such place."""
        changed = copy.deepcopy(function)
        tree.exchange(changed, *self.change(changed, self.place.find(changed)))
        return changed


class Expression:
    """What may come to a place."""

    def build(self, function: ast.FunctionDef, here: ast.AST) -> ast.expr:
        """`here`: the node at the place that is changed."""
        raise NotImplementedError

    def attribute(self, field: object) -> Expression:
        """This field of the object that the expression yields."""
        return Built(lambda *at: ast.Attribute(self.build(*at), _name(field), ast.Load()))

    def method(self, function: object, *given: Expression) -> Expression:
        """What this method of the object returns for these arguments."""
        return Built(lambda *at: ast.Call(self.attribute(function).build(*at), [each.build(*at) for each in given], []))


@dataclass(frozen=True)
class Built(Expression):
    """One made of others."""

    make: Callable[[ast.FunctionDef, ast.AST], ast.expr]

    def build(self, function: ast.FunctionDef, here: ast.AST) -> ast.expr:
        return self.make(function, here)


@dataclass(frozen=True)
class Place(Expression):
    """A node of a function; as an expression, a copy of it. Methods lead to places further inside or make an Edit."""

    steps: tuple[tuple[str, Find, int], ...] = ()
    from_here: bool = False
    """The steps begin at the place that is changed, not at the function."""

    def __str__(self) -> str:
        return ".".join(f"{name}({index})" for name, _, index in self.steps)

    def find(self, node: ast.AST) -> ast.AST:
        """Raises LookupError."""
        for name, find, index in self.steps:
            there = find(node)
            found = there[index] if -len(there) <= index < len(there) else None
            if found is None:
                raise LookupError(f"no {self}: {name} {index} of {len(there)}")
            node = found
        return node

    def build(self, function: ast.FunctionDef, here: ast.AST) -> ast.expr:
        found = copy.deepcopy(self.find(here if self.from_here else function))
        if isinstance(found, ast.arg):
            return ast.Name(found.arg, ast.Load())
        if isinstance(found, ast.Name):
            return ast.Name(found.id, ast.Load())
        if not isinstance(found, ast.expr):
            raise LookupError(f"{self} is no expression")
        return found

    def _to(self, name: str, find: Find, index: int) -> Place:
        return Place((*self.steps, (name, find, index)), self.from_here)

    # -- anywhere inside -----------------------------------------------------------------------------------------------

    def branch(self, n: int) -> Place:
        """The condition of an `if`, `elif` or `while`."""
        return self._to("branch", tree.branches, n)

    def choice(self, n: int) -> Place:
        """The condition of a conditional expression."""
        return self._to("choice", lambda at: [each.test for each in tree.inside(at, ast.IfExp)], n)

    def condition(self, n: int) -> Place:
        """A condition of a comprehension."""
        return self._to("condition", lambda at: [one for of in tree.inside(at, ast.comprehension) for one in of.ifs], n)

    def comparison(self, n: int) -> Place:
        return self._to("comparison", lambda at: tree.inside(at, ast.Compare), n)

    def operation(self, n: int) -> Place:
        """Arithmetic."""
        return self._to("operation", lambda at: tree.inside(at, ast.BinOp), n)

    def subscript(self, n: int) -> Place:
        """Operand 0 is what is looked into, operand 1 the index or slice."""
        return self._to("subscript", lambda at: tree.inside(at, ast.Subscript), n)

    def call(self, which: int | Callable[..., object], n: int = 0) -> Place:
        """The call at this position, or the `n`-th of this function."""
        if isinstance(which, int):
            return self._to("call", lambda at: tree.inside(at, ast.Call), which)
        name = _name(which)
        return self._to(f"{name}-call", lambda at: [c for c in tree.inside(at, ast.Call) if tree.called(c) == name], n)

    def given(self, field: object, n: int = 0) -> Place:
        """What a call gives to this field, by keyword."""
        name = _name(field)
        return self._to(f"{name}=", lambda at: [k.value for k in tree.inside(at, ast.keyword) if k.arg == name], n)

    def returned(self, n: int) -> Place:
        """What a `return` gives back."""
        return self._to("returned", lambda at: [each.value for each in tree.inside(at, ast.Return)], n)

    def assignment(self, n: int) -> Place:
        """The statement."""
        return self._to("assignment", lambda at: tree.inside(at, *tree.Assigning), n)

    def looped(self, n: int) -> Place:
        """What the `for` of a loop or comprehension binds."""
        return self._to("looped", tree.loop_targets, n)

    # -- a part of what is here ----------------------------------------------------------------------------------------

    @property
    def value(self) -> Place:
        """The right side of an assignment."""
        return self._to("value", lambda at: [at.value] if isinstance(at, tree.Assigning) else [], 0)

    @property
    def target(self) -> Place:
        """The left side of an assignment."""
        return self._to("target", lambda at: at.targets if isinstance(at, ast.Assign) else [], 0)

    def operand(self, n: int) -> Place:
        """Of `and`, `or`, a comparison, arithmetic or a subscript."""
        return self._to("operand", tree.operands, n)

    def element(self, n: int) -> Place:
        """Of a tuple or list."""
        return self._to("element", lambda at: at.elts if isinstance(at, (ast.Tuple, ast.List)) else [], n)

    def argument(self, n: int) -> Place:
        """Of a call: those by position, then those by keyword."""
        return self._to("argument", tree.arguments, n)

    @property
    def receiver(self) -> Place:
        """The object of which a call calls a method."""
        return self._to("receiver", tree.receivers, 0)

    # -- what is changed -----------------------------------------------------------------------------------------------

    def becomes(self, what: Expression | Constant) -> Edit:
        if isinstance(what, Expression):
            return Edit(self, lambda function, here: (here, what.build(function, here)))
        return Edit(self, lambda _, here: (here, tree.constant(what)))

    def never(self) -> Edit:
        return self.becomes(False)

    def always(self) -> Edit:
        return self.becomes(True)

    def plus(self, number: float) -> Edit:
        return self.becomes(plus(ITSELF, number))

    def times(self, number: float) -> Edit:
        return self.becomes(Built(lambda *at: ast.BinOp(ITSELF.build(*at), ast.Mult(), tree.constant(number))))

    def removed(self) -> Edit:
        """A statement, an operand, an element or a keyword argument is no longer there."""
        return Edit(self, tree.without)

    def operator(self, symbol: str) -> Edit:
        """Another operator stands between the operands. `=`: an assignment sets, where it added."""
        return Edit(self, lambda _, here: (here, tree.with_operator(here, symbol)))

    def swapped(self) -> Edit:
        """The two operands change places."""
        return Edit(self, lambda _, here: (here, tree.swapped(here)))

    def calls(self, function: Callable[..., object]) -> Edit:
        """Another builtin function is called with the same arguments."""
        return Edit(self, lambda _, here: (tree.callee(here), ast.Name(_name(function), ast.Load())))

    def once(self) -> Edit:
        """The `while` whose condition this is runs its body one time."""
        return Edit(self, lambda function, here: (loop := tree.parent(function, here), tree.one_time(loop)))


FUNCTION = Place()
ITSELF = Place(from_here=True)
"""What is at the place that is changed."""
UNUSED = Built(lambda *_: ast.Name("_", ast.Store()))
"""A variable that nothing reads, as the target of an assignment."""

branch, choice, condition = FUNCTION.branch, FUNCTION.choice, FUNCTION.condition
comparison, operation, subscript = FUNCTION.comparison, FUNCTION.operation, FUNCTION.subscript
assignment, looped, returned = FUNCTION.assignment, FUNCTION.looped, FUNCTION.returned
call, given = FUNCTION.call, FUNCTION.given


def parameter(n: int) -> Place:
    """Of the function; 0 is a method's `self`."""
    return FUNCTION._to("parameter", lambda at: at.args.args if isinstance(at, ast.FunctionDef) else [], n)


def both(first: Expression, second: Expression) -> Expression:
    return Built(lambda *at: ast.BoolOp(ast.And(), [first.build(*at), second.build(*at)]))


def either(first: Expression, second: Expression) -> Expression:
    return Built(lambda *at: ast.BoolOp(ast.Or(), [first.build(*at), second.build(*at)]))


def negated(part: Expression) -> Expression:
    return Built(lambda *at: ast.UnaryOp(ast.Not(), part.build(*at)))


def same(left: Expression, right: Expression) -> Expression:
    """`left is right`."""
    return Built(lambda *at: ast.Compare(left.build(*at), [ast.Is()], [right.build(*at)]))


def within(text: str, whole: Expression) -> Expression:
    """`text in whole`."""
    return Built(lambda *at: ast.Compare(tree.constant(text), [ast.In()], [whole.build(*at)]))


def plus(part: Expression, number: float) -> Expression:
    operator = ast.Sub() if number < 0 else ast.Add()
    return Built(lambda *at: ast.BinOp(part.build(*at), operator, tree.constant(abs(number))))


def each_with_each(many: Expression) -> Expression:
    """Whether there are any, found out by comparing each with each."""

    def build(function: ast.FunctionDef, here: ast.AST) -> ast.expr:
        counted = ast.parse("sum(map(_.count, _)) > 0", mode="eval").body
        for node in ast.walk(counted):
            if isinstance(node, ast.Name) and node.id == "_":
                tree.exchange(counted, node, many.build(function, here))
        return counted

    return Built(build)


def fields(kind: type[T]) -> T:
    """The fields of this dataclass, to name one of them by an attribute that the type checker sees."""
    names = [each.name for each in dataclass_fields(cast("Any", kind))]
    return cast("T", SimpleNamespace(**{name: SimpleNamespace(__name__=name) for name in names}))


def _name(reference: object) -> str:
    """Raises TypeError if this is neither a function, a class nor of `fields`."""
    name = getattr(reference, "__name__", None)
    if not isinstance(name, str):
        raise TypeError(f"{reference!r} has no name")
    return name
