"""Which modules are imported before workers are forked: `program/modules.py`."""

from __future__ import annotations

import json
import logging.handlers
from typing import Any

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
