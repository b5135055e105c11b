"""What tests of the agent as a process share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.rigs.one_host import Host


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.close()
