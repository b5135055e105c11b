"""The stores that the contract is tested on. Each test runs once for each kind of store that its fixture lists."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.store_stages import ELECTING, HOSTED, LEASE_S, Stage, opened


@pytest.fixture(scope="session", autouse=True)
def _first_use(stores_in_use: None) -> None:
    """Before the first test."""


@pytest.fixture(params=[*HOSTED, *ELECTING])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """A new store of each kind, with leases longer than any test."""
    with opened(request.param) as made:
        yield made


@pytest.fixture(params=HOSTED)
def hosted(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """A new store of each hosted kind."""
    with opened(request.param) as made:
        yield made


@pytest.fixture(params=ELECTING)
def electing(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """A new store of each electing kind, with leases longer than any test."""
    with opened(request.param) as made:
        yield made


@pytest.fixture(params=ELECTING)
def leasing(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """A new store of each electing kind, with leases of LEASE_S, which only the test renews."""
    with opened(request.param, LEASE_S) as made:
        yield made
