"""Which modules are imported before workers are forked: `program/modules.py`; and where torch 2.4 has DTensors."""

from __future__ import annotations

import importlib.util
import json
import logging.handlers
import sys
from types import ModuleType
from typing import Any

import pytest

from elastic_agent.trainer.program.modules import modules_of


def test_what_a_module_defines_needs_that_module() -> None:
    assert modules_of([json.dumps, logging.handlers.SocketHandler]) == ["json", "logging.handlers"]


def test_what_the_main_program_defines_needs_what_it_names() -> None:
    """A function and a class of `__main__` travel as code; in them, also in a function inside, are names of modules
    and of what modules define."""

    def creator(config: dict[str, Any]) -> Any:
        return [json.dumps(each) for each in config] + [lambda: logging.handlers]

    class Operator:
        def setup(self, config: dict[str, Any]) -> Any:
            return modules_of, pytest_like(config)

    for thing in (creator, Operator):
        thing.__module__ = "__main__"
    assert modules_of([creator]) == ["json", "logging"]
    assert modules_of([Operator, Operator]) == [__name__]


def pytest_like(config: dict[str, Any]) -> Any:
    return config


def test_ours_and_those_that_are_not_imported_are_left_out() -> None:
    def lost() -> None: ...

    lost.__module__ = "a_module_of_nobody"
    assert modules_of([modules_of, lost]) == []


def test_dtensors_are_found_where_torch_2_4_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.distributed.tensor` is there, and empty; workers of a trainer could not start."""
    from elastic_agent.trainer.in_worker import states

    before = ModuleType("torch.distributed._tensor")
    found = {name: vars(states)[name] for name in ("DTensor", "distribute_tensor")}
    vars(before).update(found)
    monkeypatch.setitem(sys.modules, before.__name__, before)
    empty = ModuleType("torch.distributed.tensor")
    monkeypatch.setitem(sys.modules, empty.__name__, empty)
    spec = importlib.util.spec_from_file_location(f"{states.__name__}_again", states.__file__)
    assert spec is not None
    assert spec.loader is not None
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    assert {name: vars(again)[name] for name in found} == found
