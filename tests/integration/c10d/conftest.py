"""A TCPStore of the job "job" that this process serves, and another node's connection to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from elastic_agent.rendezvous.c10d.opening import open_c10d
from elastic_agent.rendezvous.c10d.store import C10dStore
from support.c10d_stores import hosting


@pytest.fixture(scope="session", autouse=True)
def _first_use() -> None:
    """Start a first server here: libuv keeps one pipe until the process exits, which the leak check would report."""
    with hosting():
        pass


@pytest.fixture
def host() -> Iterator[C10dStore]:
    """A store of the job "job", served by this process."""
    with hosting() as store:
        yield store


@pytest.fixture
def guest(host: C10dStore) -> Iterator[C10dStore]:
    """Another node's connection to it."""
    with closing(open_c10d(str(host.endpoint), "job", is_host=False)) as store:
        yield store
