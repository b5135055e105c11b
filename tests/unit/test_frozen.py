"""Frozen classes that are cheap to define behave as those of `dataclasses`."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from elastic_agent.proto import frozen


def definitions(dataclass: Any, field: Any) -> list[type[Any]]:
    """The same two classes, made by this decorator."""

    @dataclass(frozen=True, slots=True)
    class Slotted:
        """With slots."""

        number: int
        names: tuple[str, ...] = ()
        table: dict[str, int] = field(default_factory=dict)
        secret: str = field(default="", repr=False)

        @property
        def twice(self) -> int:
            return self.number * 2

    @dataclass(frozen=True)
    class Open:
        """Without slots."""

        number: int
        names: tuple[str, ...] = ()
        table: dict[str, int] = field(default_factory=dict)
        secret: str = field(default="", repr=False)

    return [Slotted, Open]


OURS = definitions(frozen.dataclass, frozen.field)
THEIRS = definitions(dataclasses.dataclass, dataclasses.field)
PAIRS = pytest.mark.parametrize(("ours", "theirs"), list(zip(OURS, THEIRS, strict=True)), ids=["slots", "no slots"])


@frozen.dataclass(frozen=True, slots=True)
class Pickled:
    """At the top of the module, where pickle looks."""

    number: int
    names: tuple[str, ...] = ()


@PAIRS
def test_a_value_is_made_shown_compared_and_hashed_as_by_dataclasses(ours: type[Any], theirs: type[Any]) -> None:
    for kind in (ours, theirs):
        value = kind(1, names=("a",), secret="s")
        assert (value.number, value.names, value.table, value.secret) == (1, ("a",), {}, "s")
        assert value == kind(1, ("a",), secret="s") != kind(2, ("a",), secret="s")
        assert value != (1, ("a",), {}, "s")
        assert kind(1).table is not kind(1).table
        with pytest.raises(TypeError, match="unhashable type: 'dict'"):
            hash(value)
        with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'number'"):
            kind()
        with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
            kind(1, other=2)
    assert repr(ours(1, secret="s")) == repr(theirs(1, secret="s"))
    assert hash(ours(1, table=())) == hash(theirs(1, table=()))
    assert str(inspect.signature(ours)).replace("<unset>", "<factory>") == str(inspect.signature(theirs))
    assert ours.__match_args__ == theirs.__match_args__


@PAIRS
def test_a_value_cannot_be_changed(ours: type[Any], theirs: type[Any]) -> None:
    for kind in (ours, theirs):
        value = kind(1)
        with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'number'"):
            value.number = 2
        with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'number'"):
            del value.number
        assert value.number == 1
        assert hasattr(value, "__dict__") is (kind in (OURS[1], THEIRS[1]))


@PAIRS
def test_what_dataclasses_offers_works_on_a_value(ours: type[Any], theirs: type[Any]) -> None:
    def fields(kind: type[Any]) -> list[tuple[object, ...]]:
        return [
            (each.name, each.type, each.default, each.default_factory, each.repr) for each in dataclasses.fields(kind)
        ]

    value, other = ours(1, ("a",)), theirs(1, ("a",))
    assert fields(ours) == fields(theirs)
    assert dataclasses.asdict(value) == dataclasses.asdict(other)
    assert dataclasses.replace(value, number=2) == frozen.replace(value, number=2) == ours(2, ("a",))
    assert frozen.replace(other, number=2) == theirs(2, ("a",))
    with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
        frozen.replace(value, other=2)
    assert dataclasses.is_dataclass(ours)


@pytest.mark.parametrize("kind", OURS, ids=["slots", "no slots"])
def test_a_subclass_may_be_a_dataclass_or_have_attributes_of_its_own(kind: type[Any]) -> None:
    plain: Any = type("Plain", (kind,), {})(1)
    plain.more = 2
    assert (plain.more, plain.number) == (2, 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plain.number = 2
    more: Any = dataclasses.dataclass(frozen=True)(type("More", (kind,), {"__annotations__": {"more": int}, "more": 3}))
    assert [each.name for each in dataclasses.fields(more)] == ["number", "names", "table", "secret", "more"]
    assert more(1) == more(1, more=3)


@PAIRS
def test_values_of_a_class_of_which_many_are_replaced_are_the_same(ours: type[Any], theirs: type[Any]) -> None:
    class Own:
        """With a method that a value of it runs through."""

        number: int

        def __post_init__(self) -> None:
            checked.append(self.number)

    checked: list[int] = []
    kind: Any = frozen.dataclass(frozen=True, slots=True)(Own)
    own = kind(0)
    value, other, shown = ours(0, ("a",), {"b": 1}, "c"), theirs(0, ("a",), {"b": 1}, "c"), ours(0)
    for number in range(2 * frozen.QUICK_FROM):
        value, other = frozen.replace(value, number=number), dataclasses.replace(other, number=number)
        assert dataclasses.asdict(value) == dataclasses.asdict(other)
        assert frozen.replace(shown, number=number, names=("z",)) == ours(number, ("z",), shown.table)
        own = frozen.replace(own, number=number)
        with pytest.raises(TypeError, match="unexpected keyword argument 'more'"):
            frozen.replace(value, more=2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.number = 2
    assert checked == [0, *range(2 * frozen.QUICK_FROM)]


def test_a_value_survives_copies_and_pickle() -> None:
    value = Pickled(1, ("a",))
    assert pickle.loads(pickle.dumps(value)) == copy.deepcopy(value) == copy.copy(value) == value


def test_a_method_is_compiled_when_it_is_first_called() -> None:
    (kind, _) = definitions(frozen.dataclass, frozen.field)
    before = {name: vars(kind)[name] for name in ("__init__", "__repr__", "__eq__", "__hash__")}
    assert not [name for name, found in before.items() if inspect.isfunction(found)]
    assert kind(1) == kind(1)
    after = [name for name in before if inspect.isfunction(vars(kind)[name])]
    assert after == ["__eq__"]
    assert kind.__init__.__qualname__.endswith("Slotted.__init__")


def test_how_values_are_made_is_compiled_for_a_class_of_many() -> None:
    """Of most classes an agent makes a handful. They are made, and refused, in the same way."""
    (kind, _), (theirs, _) = (definitions(each.dataclass, each.field) for each in (frozen, dataclasses))
    refused: dict[type[Any], set[str]] = {kind: set(), theirs: set()}
    for number in range(frozen.COMPILED_FROM + 1):
        compiled = inspect.isfunction(vars(kind)["__init__"])
        assert dataclasses.asdict(kind(number, secret="s")) == dataclasses.asdict(theirs(number, secret="s"))
        if number % frozen.COMPILED_FROM:
            continue
        assert compiled is (number > 0)
        for given, named in (((), {}), ((1, (), {}, "", 5), {}), ((1,), {"number": 2}), ((1,), {"other": 2})):
            for each, found in refused.items():
                with pytest.raises(TypeError) as error:
                    each(*given, **named)
                found.add(str(error.value).replace("definitions.<locals>.", ""))
    assert refused[kind] == refused[theirs]
    assert len(refused[kind]) == len(["missing", "too many", "twice", "unknown"])


def test_an_agent_starts_a_plain_job_without_dataclasses(tmp_path: Path) -> None:
    """Nor what that needs: `inspect` takes longer to import than most of ours together."""
    (tmp_path / "job.py").write_text("")
    code = (
        "import atexit, sys; atexit.register(lambda: print(*sys.modules)); "
        "from elastic_agent.__main__ import main; main()"
    )
    argv = [sys.executable, "-c", code, "--standalone", "--log-dir", os.devnull, str(tmp_path / "job.py")]
    imported = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    assert "elastic_agent.agent.agent" in imported
    assert not {"dataclasses", "inspect", "ast", "dis", "json", "torch", "socket", "asyncio", "logging"} & set(imported)


def test_what_is_not_offered_is_refused() -> None:
    with pytest.raises(TypeError, match="for frozen classes"):
        frozen.dataclass(frozen=False)
    with pytest.raises(TypeError, match="inherits from another dataclass"):
        frozen.dataclass(frozen=True)(type("Sub", (Pickled,), {}))
    with pytest.raises(ValueError, match="mutable default <class 'list'> for field many"):
        frozen.dataclass(frozen=True)(type("Bad", (), {"__annotations__": {"many": "list[int]"}, "many": []}))
