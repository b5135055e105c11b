"""What tests of bad input run, and with what."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.rigs.command_line import OneNode
from support.rigs.torch_store import TorchStore


@pytest.fixture
def script(tmp_path: Path) -> str:
    """A worker that prints `trained` and exits 0."""
    path = tmp_path / "train.py"
    path.write_text("print('trained')\n")
    return str(path)


@pytest.fixture
def one_node(tmp_path: Path) -> Iterator[OneNode]:
    made = OneNode(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def foreign() -> Iterator[TorchStore]:
    """One process for all tests, because importing torch takes longer than most of them."""
    made = TorchStore()
    yield made
    made.close()
