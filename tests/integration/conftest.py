"""What tests with real processes share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from elastic_agent.agent.processes.supervisor import Supervisor


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    """A supervisor with a nursery."""
    made = Supervisor()
    made.open()
    yield made
    made.close()
