"""The section "Never two worlds" of docs/failover-contract.md."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from elastic_agent.agent.spec import RendezvousSpec
from support.desk import restarts_of, worker_of
from support.etcd_servers import serving
from support.harness import SHORT_LEASE, SHORT_LEASE_S, Cluster
from support.network import virtual_switch, why_unavailable
from support.procfs import slowed

CONF = {**SHORT_LEASE, "store_grace": 20.0}
PATIENCE_S = 60.0
PATIENT = {"store_grace": PATIENCE_S}
"""As long a round would be waited for that is to begin soon: three agents that start take half of it on a busy host."""


DEFAULT_LEASE_S = RendezvousSpec().lease_s


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Cluster]:
    """Agents in processes of their own, with a short lease."""
    with closing(Cluster("etcd", tmp_path, conf=CONF)) as made:
        yield made


@pytest.fixture(params=["c10d", "etcd"])
def fenced(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """As `etcd`, on each store whose workers have fences."""
    with closing(Cluster(request.param, tmp_path, conf=CONF)) as made:
        yield made


def test_workers_of_a_frozen_agent_are_gone_before_the_next_round(fenced: Cluster) -> None:
    """SIGSTOP to an agent, whose workers would run on: they are killed before those of the next round start. Nobody
    is charged, and the node comes back once it runs again."""
    fenced.start("a", nnodes="1:2").wait_text("round 1 begins")
    b = fenced.start("b", nnodes="1:2")
    world = fenced.desk.wait_world(2)
    os.kill(b.process.pid, signal.SIGSTOP)
    stopped_s = time.monotonic()
    try:
        assert worker_of(world, "b").gone.wait(SHORT_LEASE_S + slowed(3.0))
        took_s = time.monotonic() - stopped_s
        again = fenced.desk.wait_world(1, after=world[0].round)
        assert took_s < SHORT_LEASE_S + slowed(1.0)
        assert restarts_of(again) == {"a": 0}
    finally:
        os.kill(b.process.pid, signal.SIGCONT)
    back = fenced.desk.wait_world(2, after=again[0].round)
    assert restarts_of(back) == {"a": 0, "b": 0}


def test_an_agent_that_runs_again_behind_its_fence_charges_nobody(etcd: Cluster) -> None:
    """Its nursery has killed its workers; it reads that together with their exits, before it counts as lost."""
    etcd.start("a", nnodes="2")
    b = etcd.start("b", nnodes="2")
    world = etcd.desk.wait_world(2)
    os.kill(b.process.pid, signal.SIGSTOP)
    try:
        assert worker_of(world, "b").gone.wait(SHORT_LEASE_S + slowed(3.0))
    finally:
        os.kill(b.process.pid, signal.SIGCONT)
    again = etcd.desk.wait_world(2, after=world[0].round)
    assert restarts_of(again) == {"a": 0, "b": 0}
    b.wait_text("for so long that a newer round may run elsewhere, so its workers were killed")


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


@pytest.mark.skipif(bool(why_unavailable()), reason=why_unavailable() or "there are namespaces")
def test_workers_of_guests_that_are_cut_off_are_gone_before_the_hosts_next_round(tmp_path: Path) -> None:
    """One of two: the other vouches for it. Then the only one that is left: the host waits for its fence."""
    with ExitStack() as held:
        switch = held.enter_context(virtual_switch())
        for name in "abc":
            switch.add(name)
        cluster = held.enter_context(closing(Cluster("c10d", tmp_path, conf=CONF)))
        cluster.endpoint = f"{switch.addresses['a']}:29400"
        cluster.start("a", nnodes="1:3", within=switch.within("a")).wait_text("round 1 begins")
        for name in "bc":
            cluster.start(name, nnodes="1:3", within=switch.within(name))
        world = cluster.desk.wait_world(3)
        for name, left in (("c", {"a": 0, "b": 0}), ("b", {"a": 0})):
            switch.cut(name)
            lost = worker_of(world, name)
            world = cluster.desk.wait_world(len(left), after=world[0].round)
            assert lost.gone.is_set()
            assert restarts_of(world) == left
        for name in "bc":
            switch.mend(name)
        assert restarts_of(cluster.desk.wait_world(3, after=world[0].round)) == {"a": 0, "b": 0, "c": 0}


def test_while_a_host_stands_still_its_guests_let_each_other_run_on(c10d: Cluster) -> None:
    """For several leases, where nobody is to replace it; and when it goes on, so does the round."""
    conf = {**CONF, "survivor": "wait"}
    host = c10d.start("a", nnodes="3", conf=conf)
    for name in "bc":
        c10d.start(name, nnodes="3", conf=conf)
    world = c10d.desk.wait_world(3)
    os.kill(host.process.pid, signal.SIGSTOP)
    try:
        stopped = [worker_of(world, name).gone for name in "bc"]
        assert not any(gone.wait(2 * SHORT_LEASE_S) for gone in stopped)
    finally:
        os.kill(host.process.pid, signal.SIGCONT)
    c10d.start("d", nnodes="3", conf=conf).wait_text("waiting for a place")
    assert not any(worker.gone.is_set() for worker in world)


def test_a_host_that_stands_still_for_less_than_a_lease_disturbs_nobody(c10d: Cluster) -> None:
    """Its only guest has nobody else to ask."""
    host = c10d.start("a", nnodes="2")
    c10d.start("b", nnodes="2")
    world = c10d.desk.wait_world(2)
    os.kill(host.process.pid, signal.SIGSTOP)
    try:
        assert not worker_of(world, "b").gone.wait(0.8 * DEFAULT_LEASE_S)
    finally:
        os.kill(host.process.pid, signal.SIGCONT)
    c10d.start("c", nnodes="2").wait_text("waiting for a place")
    assert not any(worker.gone.is_set() for worker in world)


def test_the_same_command_again_on_one_machine_begins_soon(etcd: Cluster) -> None:
    """All agents are killed, and nobody is left whom the others had asked: those that are started in their place see
    that no process of them is left, so they wait for the leases, and no longer."""
    names = ("a", "b", "c")
    for name in names:
        etcd.start(name, nnodes="3", conf=PATIENT)
    world = etcd.desk.wait_world(3)
    killed_s = time.monotonic()
    for name in names:
        etcd.nodes[name].vanish()
    for name in names:
        etcd.start(f"{name}-again", nnodes="3", conf=PATIENT)
    again = etcd.desk.wait_world(3, after=world[0].round, bound_s=PATIENCE_S)
    took_s = time.monotonic() - killed_s
    assert all(worker.gone.is_set() for worker in world)
    assert took_s < PATIENCE_S
    assert restarts_of(again) == {f"{name}-again": 0 for name in names}


def test_a_spare_on_the_machine_of_a_killed_agent_begins_soon(etcd: Cluster) -> None:
    """It had no place in the round, so it was no witness; it sees that no process of the agent is left."""
    a = etcd.start("a", nnodes="1:1", conf=PATIENT)
    world = etcd.desk.wait_world(1)
    spare = etcd.start("spare", nnodes="1:1", conf=PATIENT)
    spare.wait_text("waiting for a place")
    killed_s = time.monotonic()
    a.vanish()
    etcd.desk.wait_world(1, after=world[0].round, bound_s=PATIENCE_S)
    took_s = time.monotonic() - killed_s
    assert took_s < PATIENCE_S
    spare.wait_text(f"no process is left on this host of {a.known_as}")
