"""The section "A node that stands still" of docs/failover-contract.md."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from elastic_agent import AgentEvent
from support.desk import restarts_of, worker_of
from support.faults import threads
from support.faults.relay import Relay
from support.harness import SHORT_LEASE, SHORT_LEASE_S, Cluster
from support.procfs import slowed

SLACK_S = 3.0
"""Beyond a lease until a node sends no heartbeat and another until it is lost: a beat or two."""


@pytest.fixture
def _stops_threads() -> None:
    if why := threads.why_unavailable():
        pytest.skip(why)


@pytest.fixture(params=["c10d", "etcd"])
def processes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """Agents in processes of their own, with a short lease."""
    with closing(Cluster(request.param, tmp_path, conf=SHORT_LEASE)) as made:
        yield made


@pytest.fixture(params=["memory", "electing memory"])
def embedded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """Agents in threads of this process, with a short lease."""
    with closing(Cluster(request.param, tmp_path, conf=SHORT_LEASE)) as made:
        yield made


@pytest.mark.usefixtures("_stops_threads")
def test_a_node_whose_main_thread_stands_still_is_lost(processes: Cluster) -> None:
    """Its other threads live and its workers go on. A worker fails elsewhere: the others wait for it two leases long,
    name it, and go on without it, uncharged. When its main thread goes on, it comes back."""
    a = processes.start("a", nnodes="1:2")
    a.wait_text("round 1 begins")
    b = processes.start("b", nnodes="1:2")
    world = processes.desk.wait_world(2)
    with threads.main_thread_stopped(b.process.pid):
        began = time.monotonic()
        worker_of(world, "a").order("exit 3")
        again = processes.desk.wait_world(1, after=world[0].round)
        assert time.monotonic() - began < 2 * SHORT_LEASE_S + slowed(SLACK_S)
        assert restarts_of(again) == {"a": 0}
        a.wait_text(f"waiting for {b.known_as} ")
        a.wait_text(f"{b.known_as} was lost")
    back = processes.desk.wait_world(2, after=again[0].round)
    assert {worker.node for worker in back} == {"a", "b"}
    processes.finish()
    assert (a.wait(), b.wait()) == (0, 0)


def test_a_node_whose_event_handler_blocks_is_lost(embedded: Cluster) -> None:
    """A handler of the program that embeds the agent runs in its loop: one that does not return makes it stand still,
    here before it starts the workers of a round that it has a place in."""
    goes_on = threading.Event()

    def block(event: AgentEvent) -> None:
        if event.phase.value == "working":
            goes_on.wait(60.0)

    a = embedded.start("a", nnodes="1:2")
    world = embedded.desk.wait_world(1)
    b = embedded.start("b", nnodes="1:2", on_event=block)
    again = embedded.desk.wait_world(1, after=world[0].round + 1)
    assert again[0].node == "a"
    goes_on.set()
    embedded.desk.wait_world(2, after=again[0].round)
    embedded.finish()
    assert (a.wait(), b.wait()) == (0, 0)


def test_a_node_that_receives_no_announcements_is_lost_and_gives_the_store_up(c10d: Cluster) -> None:
    """Its watcher's connection is reset and new ones stay silent, while its writer's lives. It says which announcement
    it lacks, stops its workers by its fence, and asks for no place that it would not learn of; the others go on without
    it, and it exits after store_grace."""
    conf = {**SHORT_LEASE, "store_grace": 6}
    a = c10d.start("a", nnodes="1:2", conf=conf)
    a.wait_text("round 1 begins")
    with closing(Relay(int(c10d.endpoint.rpartition(":")[2]))) as relay:
        b = c10d.start("b", nnodes="1:2", conf=conf, endpoint=relay.endpoint)
        world = c10d.desk.wait_world(2)
        relay.silence(rb"/round/\d")
        began = time.monotonic()
        worker_of(world, "a").order("exit 3")
        again = c10d.desk.wait_world(1, after=world[0].round)
        assert time.monotonic() - began < 2 * SHORT_LEASE_S + slowed(SLACK_S)
        assert restarts_of(again) == {"a": 0}
        assert again[0].round == world[0].round + 1, "a round began with a node that does not receive it"
        b.wait_text("was not received for 2 s")
        assert b.wait() == 80
        assert "was not received" in b.last_line()
        c10d.desk.wait_gone([worker_of(world, "b")])
    c10d.finish()
    assert a.wait() == 0


@pytest.mark.usefixtures("_stops_threads")
def test_a_coordinator_whose_main_thread_stands_still_is_replaced(tmp_path: Path) -> None:
    """It resigns, and another node takes over: a node that is killed then is found lost, and one that comes is taken
    in. The one that stood still comes back when it goes on."""
    with closing(Cluster("etcd", tmp_path, conf=SHORT_LEASE, nnodes="1:4")) as cluster:
        a = cluster.start("a")
        a.wait_text("this node coordinates the job")
        b, c = cluster.start("b"), cluster.start("c")
        world = cluster.desk.wait_world(3)
        with threads.main_thread_stopped(a.process.pid):
            c.vanish()
            again = cluster.desk.wait_world(1, after=world[0].round)
            assert again[0].node == "b"
            b.wait_text("this node coordinates the job")
            d = cluster.start("d")
            again = cluster.desk.wait_world(2, after=again[0].round)
            assert {worker.node for worker in again} == {"b", "d"}
        back = cluster.desk.wait_world(3, after=again[0].round)
        assert {worker.node for worker in back} == {"a", "b", "d"}
        assert set(restarts_of(back).values()) == {0}
        cluster.finish()
        assert [node.wait() for node in (a, b, d)] == [0, 0, 0]


@pytest.mark.usefixtures("_stops_threads")
def test_nodes_whose_host_stands_still_go_on_for_store_grace_and_name_it(c10d: Cluster) -> None:
    """The main thread of the node that hosts the store stands still, while the store answers. For a moment: nobody is
    disturbed. For longer: the others stop their workers after store_grace and exit 80, naming that node."""
    conf = {**SHORT_LEASE, "store_grace": 6}
    host, b = c10d.start("a", nnodes="2", conf=conf), c10d.start("b", nnodes="2", conf=conf)
    world = c10d.desk.wait_world(2)
    with threads.main_thread_stopped(host.process.pid):
        b.wait_text(f"no heartbeat of {host.known_as}")
    b.wait_text("the store answers again")
    c10d.assert_undisturbed(world)
    with threads.main_thread_stopped(host.process.pid):
        assert b.wait() == 80
        assert host.known_as in b.last_line()
        host.vanish()
        host.wait()
