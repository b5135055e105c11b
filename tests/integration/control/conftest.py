"""What tests of the control service share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.outside.asking import Asking


@pytest.fixture
def asking() -> Iterator[Asking]:
    made = Asking()
    yield made
    made.close()
