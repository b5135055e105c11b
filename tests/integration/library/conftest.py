"""What tests of the library share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.desk import Desk
from support.rigs.embedded import Embedded


@pytest.fixture(autouse=True)
def _private_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Workers use one thread each, and temporary files are in the test's own directory."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", None)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.close()


@pytest.fixture
def embedded() -> Iterator[Embedded]:
    made = Embedded()
    yield made
    for node in made.nodes:
        node.end()
