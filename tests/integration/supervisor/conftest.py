"""What tests of the supervisor share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe: read end, write end."""
    ends = os.pipe()
    yield ends
    for fd in ends:
        os.close(fd)
