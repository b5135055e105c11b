"""The clusters that the tests of the failover contract run on.

One file for each section of docs/failover-contract.md, which names each test.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from support.etcd_servers import start_shared_servers
from support.harness import SHORT_LEASE, Cluster


@pytest.fixture(scope="session", autouse=True)
def _servers() -> None:
    start_shared_servers()


@pytest.fixture(params=["memory", "electing memory", "c10d", "etcd"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """On each backend: memory stores (one that a node hosts, one that elects the coordinator), c10d and etcd."""
    with closing(Cluster(request.param, tmp_path)) as made:
        yield made


@pytest.fixture(params=["electing memory", "etcd"])
def electing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """On each backend that elects the coordinator, with a short lease."""
    with closing(Cluster(request.param, tmp_path, conf=SHORT_LEASE)) as made:
        yield made


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Cluster]:
    """On the memory store that a node hosts: agents in this process, and a store that outlives its jobs."""
    with closing(Cluster("memory", tmp_path)) as made:
        yield made


@pytest.fixture
def c10d(tmp_path: Path) -> Iterator[Cluster]:
    """On c10d: agents in processes of their own, and a store that ends with its host."""
    with closing(Cluster("c10d", tmp_path)) as made:
        yield made
