"""The section "Never two worlds" of docs/failover-contract.md."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from support.desk import restarts_of, worker_of
from support.etcd_servers import serving
from support.harness import SHORT_LEASE, SHORT_LEASE_S, Cluster
from support.network import virtual_switch, why_unavailable

CONF = {**SHORT_LEASE, "store_grace": 20.0}


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Cluster]:
    """Agents in processes of their own, with a short lease."""
    with closing(Cluster("etcd", tmp_path, conf=CONF)) as made:
        yield made


def test_workers_of_a_frozen_agent_are_gone_before_the_next_round(etcd: Cluster) -> None:
    """SIGSTOP to an agent, whose workers would run on: they are killed before those of the next round start. Nobody
    is charged, and the node comes back once it runs again."""
    etcd.start("a", nnodes="1:2").wait_text("round 1 begins")
    b = etcd.start("b", nnodes="1:2")
    world = etcd.desk.wait_world(2)
    os.kill(b.process.pid, signal.SIGSTOP)
    stopped_s = time.monotonic()
    try:
        assert worker_of(world, "b").gone.wait(SHORT_LEASE_S + 3.0)
        took_s = time.monotonic() - stopped_s
        again = etcd.desk.wait_world(1, after=world[0].round)
        assert took_s < SHORT_LEASE_S + 1.0
        assert restarts_of(again) == {"a": 0}
    finally:
        os.kill(b.process.pid, signal.SIGCONT)
    back = etcd.desk.wait_world(2, after=again[0].round)
    assert restarts_of(back) == {"a": 0, "b": 0}


@pytest.mark.skipif(bool(why_unavailable()), reason=why_unavailable() or "there are namespaces")
def test_workers_of_a_node_that_is_cut_off_are_gone_before_the_next_round(tmp_path: Path) -> None:
    """All packets of a host are dropped: its workers end there, before those of the next round start elsewhere."""
    with ExitStack() as held:
        switch = held.enter_context(virtual_switch())
        for name in "ab":
            switch.add(name)
        servers = held.enter_context(serving("3.5", tmp_path, size=1, host=switch.address))
        cluster = held.enter_context(closing(Cluster("etcd", tmp_path, servers, conf=CONF)))
        cluster.start("a", nnodes="1:2", within=switch.within("a")).wait_text("round 1 begins")
        cluster.start("b", nnodes="1:2", within=switch.within("b"))
        world = cluster.desk.wait_world(2)
        switch.cut("b")
        lost = worker_of(world, "b")
        again = cluster.desk.wait_world(1, after=world[0].round)
        assert lost.gone.is_set()
        assert restarts_of(again) == {"a": 0}
        switch.mend("b")
        assert restarts_of(cluster.desk.wait_world(2, after=again[0].round)) == {"a": 0, "b": 0}
