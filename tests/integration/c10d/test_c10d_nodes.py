"""Agents of one job and the addresses and descriptors that they need: node 0 named by a loopback name, a node behind a
port forwarder, more nodes than the soft limit of descriptors allows."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elastic_agent.rendezvous.c10d.descriptors import PER_NODE, WARN_FROM
from elastic_agent.rendezvous.endpoint import is_loopback, outward_address
from support.crowd import CONF, LEASE_S
from support.desk import WORKER, Desk
from support.harness import ProcessNode
from support.network import free_port

CROWD = 40
"""Nodes beside the host. Two descriptors each are more than `LIMIT`."""
LIMIT = 64

needs_outward = pytest.mark.skipif(outward_address() is None, reason="this host has loopback addresses only")


class Nodes:
    """Agents that run the obedient worker."""

    def __init__(self, folder: Path) -> None:
        self.desk = Desk(folder)
        self.port = free_port()
        self._folder = folder
        self._started: list[ProcessNode] = []

    def start(self, *flags: str, within: tuple[str, ...] = ()) -> ProcessNode:
        name = f"n{len(self._started)}"
        env = {**os.environ, "TEST_NODE": name, "TEST_DESK": self.desk.path, "OMP_NUM_THREADS": "1", "LOGLEVEL": "INFO"}
        settings = ["--rdzv-id", "nodes", "--rdzv-conf", "read_timeout=30,last_call_quiet=0.5"]
        self._started.append(ProcessNode(name, [*settings, *flags, WORKER], env, self._folder, within=within))
        return self._started[-1]

    def finish(self) -> None:
        for worker in self.desk.world():
            worker.order("exit 0")
        assert [node.wait() for node in self._started] == [0] * len(self._started)

    def close(self) -> None:
        for node in self._started:
            node.end()
        self.desk.close()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    yield made
    made.close()


@needs_outward
@pytest.mark.parametrize(
    "names", [("localhost", "127.0.0.2"), ("127.0.0.1", "outward"), ("0.0.0.0", "0.0.0.0"), ("localhost", "localhost")]
)
def test_node_0_is_reached_whichever_loopback_name_it_calls_itself(names: tuple[str, str], nodes: Nodes) -> None:
    """As under torchrun: its store is on every address of the host, and no node offers workers a loopback address. No
    agent has loaded grpc, which only etcd needs."""
    agents = []
    for rank, name in enumerate(names):
        address = str(outward_address()) if name == "outward" else name
        flags = ["--nnodes", "2", "--node-rank", str(rank), "--master-addr", address, "--master-port", str(nodes.port)]
        agents.append(nodes.start(*flags))
    world = nodes.desk.wait_world(2)
    for agent in agents:
        assert "cygrpc" not in Path(f"/proc/{agent.process.pid}/maps").read_text()
    assert not [worker.env["MASTER_ADDR"] for worker in world if is_loopback(worker.env["MASTER_ADDR"])]
    nodes.finish()


@needs_outward
def test_a_node_behind_a_port_forwarder_offers_an_address_of_its_own(nodes: Nodes) -> None:
    """The store seems to be on this host; it is the master of the round, so that its address counts."""
    with Forwarder(nodes.port) as port:
        common = ["--nnodes", "2", "--rdzv-backend", "c10d"]
        nodes.start(*common, "--rdzv-endpoint", f"127.0.0.1:{nodes.port}", "--node-rank", "1")
        nodes.start(*common, "--rdzv-endpoint", f"localhost:{port}", "--rdzv-conf", "is_host=0", "--node-rank", "0")
        world = nodes.desk.wait_world(2)
        assert [worker.node for worker in world] == ["n1", "n0"]
        assert world[0].env["MASTER_ADDR"] == outward_address()
        nodes.finish()


class Forwarder:
    """A port on this host behind which another one is."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._server = socket.create_server(("127.0.0.1", 0))
        self._links: list[socket.socket] = []

    def __enter__(self) -> int:
        threading.Thread(target=self._accept, daemon=True).start()
        return int(self._server.getsockname()[1])

    def __exit__(self, *_raised: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        for each in (self._server, *self._links):
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._server.accept()
            except OSError:
                return  # the test is over
            self._links.append(link)
            try:
                further = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                link.shutdown(socket.SHUT_RDWR)
                continue  # nobody listens there yet
            self._links.append(further)
            for one, other in ((link, further), (further, link)):
                threading.Thread(target=_pass_on, args=(one, other), daemon=True).start()


def _pass_on(one: socket.socket, other: socket.socket) -> None:
    try:
        while data := one.recv(65536):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)
    except OSError:
        return  # closed from the other side, or by the test


def limited(soft: int, hard: int) -> tuple[str, ...]:
    """A command that runs another with these limits of open descriptors."""
    limit = f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))"
    return (sys.executable, "-c", f"import os, resource, sys; {limit}; os.execv(sys.argv[1], sys.argv[1:])")


def test_a_host_takes_more_nodes_than_its_soft_limit_has_descriptors(nodes: Nodes) -> None:
    """It raises the limit; its workers do not get the raised one. Each node holds two connections."""
    endpoint = f"127.0.0.1:{nodes.port}"
    common = ["--nnodes", str(CROWD + 1), "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-conf", CONF]
    host = nodes.start(*common, within=limited(LIMIT, 4096))
    with Crowd(endpoint) as (expect, go_on):
        expect("running")
        held = len(list(Path(f"/proc/{host.process.pid}/fd").iterdir()))
        assert LIMIT < held < 2 * CROWD + 60
        [worker] = nodes.desk.wait(lambda: nodes.desk.workers, "the host's worker")
        limits = Path(f"/proc/{worker.pid}/limits").read_text()
        assert next(line.split()[3:5] for line in limits.splitlines() if "open files" in line) == [str(LIMIT), "4096"]
        go_on()
        worker.order("exit 0")
        expect("finished")
    assert host.wait() == 0


def test_a_host_without_descriptors_for_all_nodes_says_so(nodes: Nodes) -> None:
    """Before it has none left, and then."""
    endpoint, limit = f"127.0.0.1:{nodes.port}", LIMIT + 20
    common = ["--nnodes", str(CROWD + 1), "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint]
    host = nodes.start(*common, "--rdzv-conf", f"lease={LEASE_S:g}", within=limited(LIMIT, limit))
    host.wait_text("round 1: 1 of at least")
    used = len(list(Path(f"/proc/{host.process.pid}/fd").iterdir()))
    few = (math.ceil(limit * WARN_FROM) - used) // PER_NODE + 1
    with Crowd(endpoint, few):
        host.wait_text(f"of {limit} file descriptors of this agent, which hosts the store, are in use: about")
        with Crowd(endpoint, CROWD - few, few):
            host.wait_text(f"all {limit} file descriptors of this agent, which hosts the store, are in use")
            host.end()


class Crowd:
    """That many nodes without workers in another process (`support/crowd.py`), of a job of `CROWD` and one more."""

    def __init__(self, endpoint: str, count: int = CROWD, first: int = 0) -> None:
        args = (endpoint, "nodes", CROWD + 1, count, first, WORKER)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.crowd", *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def __enter__(self) -> tuple[Callable[[str], None], Callable[[], None]]:
        return self._expect, self._go_on

    def __exit__(self, *_raised: object) -> None:
        self._process.kill()
        with self._process:
            pass

    def _expect(self, what: str) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == what

    def _go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
