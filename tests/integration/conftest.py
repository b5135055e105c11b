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


@pytest.fixture(scope="session")
def stores_in_use() -> None:
    """Starts here what the first use of a store leaves behind, so that the leak check blames no test: the etcd servers,
    which run until the process exits, and a pipe that libuv never closes."""
    from elastic_agent.rendezvous.c10d.opening import open_c10d  # most tests need neither
    from support.etcd_servers import start_shared_servers

    open_c10d("127.0.0.1:0", "first", is_host=True).close_host()
    start_shared_servers()
