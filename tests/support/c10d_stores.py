"""TCPStores for tests: served by this process, by another process, or not a store of elastic-agent at all."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from elastic_agent.agent.worker_store.in_thread import ServerThread
from elastic_agent.rendezvous.c10d.claim import claim
from elastic_agent.rendezvous.c10d.client import TcpStoreClient, connect
from elastic_agent.rendezvous.c10d.opening import open_c10d
from elastic_agent.rendezvous.c10d.store import C10dStore
from elastic_agent.rendezvous.endpoint import parse_endpoint
from elastic_agent.rendezvous.store import StoreError
from support.network import free_port

BOUND_S = 30.0
"""How long an immediate effect may take on a busy host."""


@contextmanager
def hosting(run_id: str = "job", endpoint: str = "127.0.0.1:0") -> Iterator[C10dStore]:
    """A store served by this process."""
    store = open_c10d(endpoint, run_id, is_host=True)
    try:
        yield store
    finally:
        store.close_host()


@contextmanager
def elsewhere() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A store of the job "job" served by another process, and its endpoint."""
    code = (
        "import sys\n"
        "from elastic_agent.rendezvous.c10d.opening import open_c10d\n"
        "store = open_c10d('127.0.0.1:0', 'job', is_host=True)\n"
        "print(store.endpoint, flush=True)\n"
        "sys.stdin.read()\n"
    )
    started = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with started as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def raw_client(store: C10dStore) -> TcpStoreClient:
    """A connection that may write anything, as another program's."""
    where = store.endpoint
    return connect((socket.AF_INET, (where.host, where.port)), "raw", 5.0, 5.0)


def vacant() -> str:
    """An endpoint at which nobody listens, and which the kernel gives to nobody meanwhile."""
    return f"127.0.0.1:{free_port()}"


@contextmanager
def listening() -> Iterator[tuple[socket.socket, str]]:
    """A socket on which the kernel accepts connections, and its endpoint."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server, f"127.0.0.1:{server.getsockname()[1]}"


def seconds_to_raise(expected: type[StoreError], match: str, endpoint: str, connect_timeout_s: float = 60.0) -> float:
    """How long opening the store as a client takes to raise exactly this type, with a message of one line."""
    started = time.monotonic()
    with pytest.raises(expected, match=match) as caught:
        open_c10d(endpoint, "job", is_host=False, connect_timeout_s=connect_timeout_s)
    assert type(caught.value) is expected
    assert "\n" not in str(caught.value)
    return time.monotonic() - started


def bound_to(endpoint: str) -> socket.socket:
    """As of the agent of the node that this endpoint names."""
    bound = claim(parse_endpoint(endpoint)).socket
    assert bound is not None
    return bound


class FasterAgent:
    """On the same host: it listens at the endpoint once this node has bound that, and before it listens itself."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.servers: list[ServerThread] = []

    def start(self, bound: socket.socket) -> ServerThread:
        if not self.servers:
            self.servers.append(ServerThread(bound_to(self.endpoint)))
        return ServerThread(bound)

    def close(self) -> None:
        for server in self.servers:
            server.close()
