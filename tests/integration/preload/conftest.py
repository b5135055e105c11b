"""What tests of --preload share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.rigs.preloaded import Job


@pytest.fixture
def jobs() -> Iterator[list[Job]]:
    """The jobs that the test makes, closed at its end."""
    made: list[Job] = []
    yield made
    for job in made:
        job.supervisor.close()
