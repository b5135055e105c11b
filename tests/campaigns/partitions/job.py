"""Plays the partitions of one job, and reads what its workers have written."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from support.desk import WORKER
from support.etcd_servers import Binaries, Server, Servers, binaries
from support.harness import Cluster
from support.network import free_ports

from .judge import Life, Played
from .plan import BEAT_S, GRACE_S, LEASE_S, STORE, STORE_GRACE_S, Partition, Plan
from .router import Router, routed

STAMPING = str(Path(WORKER).with_name("stamping.py"))
CONF = {"lease": LEASE_S, "beat": BEAT_S, "store_grace": STORE_GRACE_S, "last_call_quiet": 0.5}
START_S = 90.0
AGAIN_S = STORE_GRACE_S + GRACE_S + 10.0 + 60.0
"""All nodes work again so long after a partition: nobody is left to ask, and then the machine is busy."""


def now_s() -> float:
    """As the workers' stamps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Job:
    """A job whose nodes are in namespaces of their own."""

    def __init__(self, plan: Plan, folder: Path, store: str = "etcd") -> None:
        """`store`: etcd in a namespace of its own, or c10d, which the first node hosts."""
        self.plan, self.folder, self._store = plan, folder, store
        self.stamps = folder / "stamps"
        self.stamps.mkdir()
        self.played: list[Played] = []

    def play(self, until_s: float) -> None:
        """The partitions of the plan; none begins after `until_s`."""
        with ExitStack() as held:
            nodes = self.plan.nodes
            router = held.enter_context(routed((STORE, *nodes)))
            servers = held.enter_context(etcd_in(router, self.folder)) if self._store == "etcd" else None
            cluster = held.enter_context(closing(Cluster(self._store, self.folder, servers, conf=CONF)))
            if servers is None:
                router.address[STORE] = router.address[nodes[0]]
                cluster.endpoint = f"{router.address[STORE]}:{free_ports(1)[0]}"
            for name in nodes:
                cluster.start(
                    name, nnodes=f"1:{len(nodes)}", max_restarts=1000, grace_s=GRACE_S, worker=STAMPING,
                    env={"TEST_STAMPS": str(self.stamps)}, within=router.within(name),
                )  # fmt: skip
            cluster.desk.wait_world(len(nodes), bound_s=START_S)
            for partition in self.plan.partitions:
                if now_s() < until_s and not self._play(cluster, router, partition):
                    return

    def _play(self, cluster: Cluster, router: Router, partition: Partition) -> bool:
        """Whether all nodes work again."""
        pause = threading.Event()
        pause.wait(partition.after_s)
        size = len(self.plan.nodes)
        agent = cluster.nodes[partition.frozen].process.pid if partition.frozen else 0
        began_s = now_s()
        if agent:
            os.kill(agent, signal.SIGSTOP)
        else:
            router.cut(sorted(pair for pair in partition.cut if len({router.address[name] for name in pair}) == 2))
        pause.wait(partition.for_s)
        if agent:
            os.kill(agent, signal.SIGCONT)
        else:
            router.heal()
        healed_s = now_s()
        pause.wait(1.5 * LEASE_S)  # what a partition leads to shows until then
        try:
            cluster.desk.wait_world(size, bound_s=AGAIN_S)
            complete = True
        except AssertionError:
            complete = False
        self.played.append(Played(partition.kind, partition.disturbs, began_s, healed_s, now_s(), complete))
        return complete

    def lives(self) -> list[Life]:
        """Of all workers so far."""
        found = []
        for path in self.stamps.iterdir():
            node, number, _ = path.name.split(".")
            stamp = path.read_bytes()
            began, last = (int.from_bytes(stamp[at : at + 8], "little") / 1e9 for at in (0, 8))
            found.append(Life(node, int(number), began, last))
        return found


@contextmanager
def etcd_in(router: Router, folder: Path) -> Iterator[Servers]:
    """One etcd server in the store's namespace."""
    found = binaries("3.5")
    program = folder / "etcd"
    program.write_text(f'#!/bin/sh\nexec {" ".join(router.within(STORE))} {found.etcd} "$@"\n')
    program.chmod(0o755)
    client_port, peer_port = free_ports(2)
    within = Binaries(found.version, str(program), found.etcdctl)
    server = Server("etcd0", within, folder / "etcd0", client_port, peer_port, None, ())
    server.host = router.address[STORE]
    server.cluster = f"{server.name}={server.peer_url}"
    try:
        servers = Servers([server])
        servers.start()
        yield servers
    finally:
        server.close()
