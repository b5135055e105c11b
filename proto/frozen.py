"""`dataclass`, `field` and `replace` as in `dataclasses`, for frozen classes only, at a tenth of their time at import.

An agent defines more than a hundred such classes before it starts its workers. `dataclasses` writes and compiles six
methods for each, a third of a millisecond a class, most of which no plain job calls, and needs `inspect` for it.
Here a method is compiled when it is first called, `__init__` once a class has many values. What `dataclasses` itself
looks for in a class (`fields`, `asdict`, `is_dataclass`) is made when it looks. Type checkers see the original.

Not here: classes that are not frozen, inheritance between such classes, and the options of `field` that nobody uses.
"""

# ruff: noqa: ANN401 - the same for classes of any fields
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import Field
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - for others to import
    from dataclasses import field as field  # noqa: PLC0414 - as above
    from dataclasses import replace as replace  # noqa: PLC0414 - as above

Decorator = Callable[[type[Any]], type[Any]]
Function = Callable[..., Any]

QUICK_FROM = 64
"""After so many replaced values of a class, a function is compiled for that: it takes as long as 150 of them."""
COMPILED_FROM = 64
"""After so many values of a class its `__init__` is compiled: it takes as long as these do without, and most classes of
an agent have a handful."""


class _Unset:
    """No value was given."""

    def __repr__(self) -> str:
        return "<unset>"


_UNSET = _Unset()


class _Made:
    """What `field` returns: how a field's default is made, and whether its value may be shown."""

    __slots__ = ("default", "factory", "shown")

    def __init__(self, default: object, factory: Function | None, shown: bool) -> None:
        self.default, self.factory, self.shown = default, factory, shown


class _Lazy:
    """A class attribute that is made when it is first looked up, and then takes the place of this object."""

    __slots__ = ("_fields", "_make", "_name", "_owner")

    def __init__(self, make: Callable[[type[Any], Mapping[str, _Made]], Any], fields: Mapping[str, _Made]) -> None:
        self._make, self._fields = make, fields
        self._owner: type[Any] = object
        self._name = ""

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, instance: object, _: type[Any] | None = None) -> Any:
        made = self._make(self._owner, self._fields)
        setattr(self._owner, self._name, made)
        return made.__get__(instance) if instance is not None and hasattr(made, "__get__") else made


class _LazyInit(_Lazy):
    """`__init__`, which is compiled for a class of many values, and for who looks at it."""

    __slots__ = ("_count", "_plain")

    def __init__(self, fields: Mapping[str, _Made]) -> None:
        super().__init__(_init, fields)
        self._count = 0
        """How many values have been made without it."""
        self._plain: Function | None = None

    def __get__(self, instance: object, owner: type[Any] | None = None) -> Any:
        if instance is None or self._count >= COMPILED_FROM:
            return super().__get__(instance, owner)
        self._count += 1
        if self._plain is None:
            self._plain = _plain_init(self._owner, self._fields)
        return self._plain.__get__(instance)


def _dataclass(*, frozen: bool, slots: bool = False) -> Decorator:
    """As `dataclasses.dataclass`. Raises TypeError for what is said above not to be here, ValueError for a default
    that is mutable."""
    if not frozen:
        raise TypeError("this dataclass is for frozen classes; take that of dataclasses")
    return lambda cls: _define(cls, slots=slots)


def _field(*, default: object = _UNSET, default_factory: Function | None = None, repr: bool = True) -> Any:  # noqa: A002 - as dataclasses calls it
    """As `dataclasses.field`."""
    return _Made(default, default_factory, repr)


_replaced: dict[type[Any], int] = {}
"""How many values of a class were replaced by `_replace` alone."""
_quick: dict[type[Any], Function] = {}
"""What replaces values of a class of which many are, in a third of the time."""


def _replace(value: Any, /, **changes: object) -> Any:
    """As `dataclasses.replace`, for classes whose fields are all parameters."""
    cls = type(value)
    if (quick := _quick.get(cls)) is not None:
        return quick(value, **changes)
    _replaced[cls] = count = _replaced.get(cls, 0) + 1
    if count == QUICK_FROM and _may_be_quick(cls):
        _quick[cls] = _quick_replace(cls)
    for name in value.__match_args__:
        if name not in changes:
            changes[name] = getattr(value, name)
    return cls(**changes)


def _define(cls: type[Any], *, slots: bool) -> type[Any]:
    if any("__match_args__" in vars(base) for base in cls.__mro__[1:]):
        raise TypeError(f"{cls.__qualname__} inherits from another dataclass; take the decorator of dataclasses")
    own = dict(vars(cls))
    names = tuple(cls.__annotations__)
    fields = {name: _made(name, own.pop(name, _UNSET)) for name in names}
    added: dict[str, Any] = {
        "__match_args__": names,
        "__setattr__": _refuse_to_set,
        "__delattr__": _refuse_to_delete,
        "__replace__": _replace,
        "__dataclass_fields__": _Lazy(_fields, fields),
        "__dataclass_params__": _Lazy(_params, fields),
    }
    made_late = {"__repr__": _repr, "__eq__": _eq, "__hash__": _hash}
    methods = {"__init__": _LazyInit(fields), **{name: _Lazy(make, fields) for name, make in made_late.items()}}
    added.update({name: method for name, method in methods.items() if name not in own})
    if not slots:
        for name, value in added.items():
            setattr(cls, name, value)
            if isinstance(value, _Lazy):
                value.__set_name__(cls, name)
        for name, made in fields.items():
            if made.default is not _UNSET:
                setattr(cls, name, made.default)
            elif made.factory is not None:
                delattr(cls, name)
        return cls
    for name in ("__dict__", "__weakref__"):
        own.pop(name, None)
    states = {"__slots__": names, "__getstate__": _get_state, "__setstate__": _set_state}
    make: Callable[..., type[Any]] = type(cls)
    return make(cls.__name__, cls.__bases__, {**own, **added, **states, "__qualname__": cls.__qualname__})


def _made(name: str, given: object) -> _Made:
    made = given if isinstance(given, _Made) else _Made(given, None, True)
    if type(made.default).__hash__ is None:
        raise ValueError(f"mutable default {type(made.default)} for field {name} is not allowed: use default_factory")
    return made


# -- what is made late ---------------------------------------------------------------------------------------------
def _function(owner: type[Any], name: str, parameters: list[str], body: list[str], scope: dict[str, Any]) -> Function:
    lines = [f"def {name}({', '.join(['self', *parameters])}):", *body]
    exec("\n ".join(lines), scope)  # noqa: S102 - names of fields, nothing else
    function: Function = scope.pop(name)
    function.__qualname__ = f"{owner.__qualname__}.{name}"
    function.__module__ = owner.__module__
    return function


def _init(owner: type[Any], fields: Mapping[str, _Made]) -> Function:
    scope: dict[str, Any] = {"_set": object.__setattr__, "_UNSET": _UNSET}
    parameters, body = [], []
    for name, made in fields.items():
        value, parameter = name, name
        if made.factory is not None:
            scope[f"_make_{name}"] = made.factory
            value, parameter = f"_make_{name}() if {name} is _UNSET else {name}", f"{name}=_UNSET"
        elif made.default is not _UNSET:
            scope[f"_default_{name}"] = made.default
            parameter = f"{name}=_default_{name}"
        parameters.append(parameter)
        body.append(f"_set(self, {name!r}, {value})")
    if hasattr(owner, "__post_init__"):
        body.append("self.__post_init__()")
    init = _function(owner, "__init__", parameters, body or ["pass"], scope)
    init._filled_in = True  # type: ignore[attr-defined]
    init.__annotations__ = {**owner.__annotations__, "return": None}
    return init


def _plain_init(owner: type[Any], fields: Mapping[str, _Made]) -> Function:
    """As `_init`, in several times the time of a call, and without one to make it."""
    names, finish = tuple(fields), getattr(owner, "__post_init__", None)

    def init(self: Any, /, *given: object, **named: object) -> None:
        values = dict(zip(names, given, strict=False))
        if len(given) > len(names) or not values.keys().isdisjoint(named) or not named.keys() <= fields.keys():
            _init(owner, fields)(self, *given, **named)  # which raises TypeError
        values.update(named)
        for name, made in fields.items():
            value = values.get(name, made.default)
            if value is _UNSET:
                if made.factory is None:
                    _init(owner, fields)(self, *given, **named)  # as above
                else:
                    value = made.factory()
            object.__setattr__(self, name, value)
        if finish is not None:
            self.__post_init__()

    return init


def _may_be_quick(cls: type[Any]) -> bool:
    """Whether a value of this class is its slots, filled in, and nothing else happens to it."""
    plain = "__slots__" in vars(cls) and "__match_args__" in vars(cls) and not hasattr(cls, "__post_init__")
    return plain and getattr(cls.__init__, "_filled_in", False)


def _quick_replace(cls: type[Any]) -> Function:
    """`_replace` for one class."""
    scope: dict[str, Any] = {"_new": object.__new__, "_cls": cls, "_UNSET": _UNSET}
    body = ["made = _new(_cls)"]
    for name in cls.__match_args__:
        scope[f"_set_{name}"] = vars(cls)[name].__set__
        body.append(f"_set_{name}(made, self.{name} if {name} is _UNSET else {name})")
    parameters = ["/", "*", *(f"{name}=_UNSET" for name in cls.__match_args__)]
    return _function(cls, "__replace__", parameters, [*body, "return made"], scope)


def _repr(owner: type[Any], fields: Mapping[str, _Made]) -> Function:
    shown = ", ".join(f"{name}={{self.{name}!r}}" for name, made in fields.items() if made.shown)
    return _function(owner, "__repr__", [], [f'return f"{{self.__class__.__qualname__}}({shown})"'], {})


def _eq(owner: type[Any], fields: Mapping[str, _Made]) -> Function:
    ours, theirs = _values("self", fields), _values("other", fields)
    same = f"return {ours} == {theirs} if other.__class__ is self.__class__ else NotImplemented"
    return _function(owner, "__eq__", ["other"], [same], {})


def _hash(owner: type[Any], fields: Mapping[str, _Made]) -> Function:
    return _function(owner, "__hash__", [], [f"return hash({_values('self', fields)})"], {})


def _values(of: str, fields: Mapping[str, _Made]) -> str:
    return f"({''.join(f'{of}.{name}, ' for name in fields)})"


def _fields(owner: type[Any], fields: Mapping[str, _Made]) -> dict[str, Field[Any]]:
    fields_of: dict[str, Field[Any]] = _original(owner, fields).__dataclass_fields__
    return fields_of


def _params(owner: type[Any], fields: Mapping[str, _Made]) -> object:
    return _original(owner, fields).__dataclass_params__


def _original(owner: type[Any], fields: Mapping[str, _Made]) -> Any:
    """A class with these fields that `dataclasses` has made."""
    import dataclasses

    defaults: dict[str, Any] = {}
    for name, made in fields.items():
        if made.factory is not None:
            defaults[name] = dataclasses.field(default_factory=made.factory, repr=made.shown)
        elif made.default is not _UNSET:
            defaults[name] = dataclasses.field(default=made.default, repr=made.shown)
    about = {"__module__": owner.__module__, "__doc__": owner.__doc__, "__annotations__": owner.__annotations__}
    return dataclasses.dataclass(frozen=True)(type(owner.__name__, (), about | defaults))


# -- the same for all classes --------------------------------------------------------------------------------------
def _refuse_to_set(self: Any, name: str, value: object) -> None:
    if _is_frozen(self, name):
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _refuse_to_delete(self: Any, name: str) -> None:
    if _is_frozen(self, name):
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(self, name)


def _is_frozen(value: Any, name: str) -> bool:
    """As with `dataclasses`, a subclass without the decorator may have attributes of its own."""
    return "__match_args__" in vars(type(value)) or name in value.__match_args__


def _get_state(self: Any) -> list[object]:
    return [getattr(self, name) for name in self.__match_args__]


def _set_state(self: Any, state: list[object]) -> None:
    for name, value in zip(self.__match_args__, state, strict=True):
        object.__setattr__(self, name, value)


if not TYPE_CHECKING:
    dataclass, field, replace = _dataclass, _field, _replace
