"""What several tests of trainers ask for by name."""

from __future__ import annotations

import pytest


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers compute with one thread each, as those of several on a node do."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
