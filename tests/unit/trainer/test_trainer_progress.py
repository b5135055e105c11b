"""Where a trainer draws a progress bar."""

from __future__ import annotations

import io
import sys
import types

import pytest

from elastic_agent.trainer.program.progress import drawable


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_is_drawn_on_a_terminal_and_in_a_notebook_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert not drawable(wanted=True)
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    assert drawable(wanted=True)
    monkeypatch.delitem(sys.modules, "ipykernel")
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert drawable(wanted=True)
    assert not drawable(wanted=False)
