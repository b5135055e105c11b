"""Jobs on three etcd servers, with each kind of fault once. `make chaos STORE=etcd` runs the random ones."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from campaigns.chaos.etcd.faults import (
    FILLER,
    FILLER_BYTES,
    PREFIX,
    QUICK_LOGINS,
    QUOTA,
    ROOT,
    USER,
    EtcdFaults,
)
from campaigns.chaos.etcd.plan import SERVERS
from elastic_agent.rendezvous.etcd.errors import EtcdNoSpace
from elastic_agent.rendezvous.etcd.ops import Put, Read
from support.etcd_servers import Servers, serving
from support.harness import Cluster, Node
from support.network import virtual_switch, why_unavailable

SHORT_S = 1.5
"""How long a fault lasts here."""
LEASE_S = 3
AWAY_S = 5.0
"""Longer than the lease, with what servers add to it; shorter than `store_grace`."""


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Three servers that require a login and have a small quota."""
    flags = ["--quota-backend-bytes", str(QUOTA), *QUICK_LOGINS]
    with serving("3.5", tmp_path_factory.mktemp("etcd"), size=3, flags=flags) as servers:
        servers.require_login(ROOT, USER, PREFIX + "/")
        yield servers


def job(servers: Servers, folder: Path, **conf: Any) -> Cluster:
    """A job on these servers, with a user limited to the job's prefix."""
    made = Cluster("etcd", folder, servers, nnodes="2:3", conf={"beat": 0.4, "lease": LEASE_S, **conf})
    if servers.login:
        (folder / "password").write_text(USER.password)
        made._defaults["conf"] |= {"prefix": PREFIX, "user": USER.user, "password_file": folder / "password"}
    return made


def newest(servers: Servers) -> int:
    with closing(servers.client()) as client:
        return client.read(Read(b"-")).revision


def finish(cluster: Cluster, *nodes: Node) -> None:
    for worker in cluster.desk.world():
        worker.order("exit 0")
    assert [node.wait() for node in nodes] == [0] * len(nodes)


@pytest.mark.parametrize("kind", SERVERS)
def test_a_fault_of_the_servers_interrupts_no_worker(kind: str, three: Servers, tmp_path: Path) -> None:
    """No node is lost, no worker restarts, and the job succeeds."""
    with closing(job(three, tmp_path)) as cluster:
        nodes = [cluster.start(name, nnodes="2") for name in "ab"]
        world = cluster.desk.wait_world(2)
        EtcdFaults(three, 1, lambda: newest(three)).inject(kind, SHORT_S)
        finish(cluster, *nodes)
        assert len(cluster.desk.workers) == len(world)


def test_no_node_is_lost_while_the_servers_have_no_quorum(three: Servers, tmp_path: Path) -> None:
    """Two of three servers are down for longer than the lease: leases do not expire without a quorum."""
    with closing(job(three, tmp_path)) as cluster:
        nodes = [cluster.start(name, nnodes="2") for name in "ab"]
        world = cluster.desk.wait_world(2)
        EtcdFaults(three, 1, lambda: newest(three)).inject("quorum lost", AWAY_S)
        finish(cluster, *nodes)
        assert len(cluster.desk.workers) == len(world)


def test_a_no_space_fault_ends_although_another_fault_compacted(three: Servers) -> None:
    """Two faults of a campaign may compact at the same time; the second finds the revision compacted already."""

    def compacted() -> int:
        revision = newest(three)
        three.ctl("compact", str(revision))
        return revision

    EtcdFaults(three, 0, compacted).inject("no space", 0.0)
    with closing(three.client()) as client:
        client.put(Put(PREFIX.encode() + b"/room", b"enough"))


def test_a_refused_record_starves_no_heartbeat(three: Servers, tmp_path: Path) -> None:
    """A worker crashes while the servers have no space, so that its node's record is refused for longer than its lease:
    the node is not lost, and the crash is charged once there is space again."""
    with closing(job(three, tmp_path, store_grace=60)) as cluster, closing(three.client()) as client:
        nodes = [cluster.start(name, nnodes="2", max_restarts=1) for name in "ab"]
        crashing = cluster.desk.wait_world(2)[0]
        with suppress(EtcdNoSpace):
            while True:
                client.put(Put(FILLER, random.randbytes(FILLER_BYTES)))
        live = f"{PREFIX}/{cluster.run_id}/1/node-live/".encode()
        assert len(client.read(Read(live, prefix=True)).items) == 2
        with closing(client.watch(live, prefix=True)) as watch:
            crashing.order("exit 3")
            assert not watch.wait(AWAY_S), "a lease ran out, though its agent is alive"
        EtcdFaults(three, 1, lambda: newest(three)).inject("no space", 0.0)  # ends with space
        again = cluster.desk.wait_world(2, after=crashing.round)
        assert {worker.node: worker.restarts for worker in again} == {"a": 0, "b": 0} | {crashing.node: 1}
        finish(cluster, *nodes)


@pytest.mark.parametrize("coordinates", [False, True])
def test_a_frozen_agent_rejoins_after_it_resumes(coordinates: bool, three: Servers, tmp_path: Path) -> None:
    """The others go on without it; if it coordinated, another node does. It stops its workers before it rejoins."""
    with closing(job(three, tmp_path)) as cluster:
        nodes = {name: cluster.start(name) for name in "abc"}
        world = cluster.desk.wait_world(3)
        led = [name for name, node in nodes.items() if "this node coordinates" in node.text()]
        name = next(name for name in nodes if (name in led) == coordinates)
        nodes[name].process.send_signal(signal.SIGSTOP)
        try:
            without = cluster.desk.wait_world(2, after=world[0].round)
            assert {worker.node for worker in without} == nodes.keys() - {name}
        finally:
            nodes[name].process.send_signal(signal.SIGCONT)
        again = cluster.desk.wait_world(3, after=without[0].round)
        assert all(worker.gone.is_set() for worker in world)
        assert {worker.restarts for worker in again} == {0}
        finish(cluster, *nodes.values())


def test_an_agent_that_was_cut_off_rejoins(tmp_path: Path) -> None:
    """Its packets are dropped, with no error to either side."""
    if why_unavailable():
        pytest.skip(why_unavailable())
    with virtual_switch() as lines:
        for name in "abc":
            lines.add(name)
        with serving("3.5", tmp_path, size=3, host=lines.address) as servers:
            cluster = job(servers, tmp_path)
            with closing(cluster):
                nodes = {name: cluster.start(name, within=lines.within(name)) for name in "abc"}
                world = cluster.desk.wait_world(3)
                lines.cut("b")
                without = cluster.desk.wait_world(2, after=world[0].round)
                assert {worker.node for worker in without} == {"a", "c"}
                lines.mend("b")
                cluster.desk.wait_world(3, after=without[0].round)
                finish(cluster, *nodes.values())
