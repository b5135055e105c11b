"""The section "A node leaves" of docs/failover-contract.md."""

from __future__ import annotations

import time

from support.harness import SHORT_LEASE, SHORT_LEASE_S, Cluster
from support.procfs import slowed


def test_survivors_go_on_when_a_node_announces_its_departure(cluster: Cluster) -> None:
    """A node leaves by SIGTERM: the survivor runs again at once, without waiting for a lease."""
    a, b = cluster.start("a", nnodes="1:2"), cluster.start("b", nnodes="1:2")
    world = cluster.desk.wait_world(2)
    b.terminate()
    again = cluster.desk.wait_world(1, after=world[0].round, bound_s=slowed(10.0))
    assert again[0].node == "a"
    assert b.wait() == 143
    cluster.finish()
    assert a.wait() == 0


def test_survivors_go_on_when_a_node_vanishes(cluster: Cluster) -> None:
    """A node is lost when its lease has run out; the survivor runs again within lease + 2 s."""
    a, b = cluster.start("a", nnodes="1:2", conf=SHORT_LEASE), cluster.start("b", nnodes="1:2", conf=SHORT_LEASE)
    world = cluster.desk.wait_world(2)
    began = time.monotonic()
    b.vanish()
    cluster.desk.wait_world(1, after=world[0].round)
    assert time.monotonic() - began < SHORT_LEASE_S + slowed(2.0)
    cluster.finish()
    assert a.wait() == 0


def test_a_replacement_takes_the_place_of_a_dead_node(cluster: Cluster) -> None:
    """A job of fixed size that lost a node gathers until a replacement joins, then goes on."""
    a, b = cluster.start("a", nnodes="2", conf=SHORT_LEASE), cluster.start("b", nnodes="2", conf=SHORT_LEASE)
    world = cluster.desk.wait_world(2)
    b.vanish()
    cluster.desk.wait_gone(world)
    c = cluster.start("c", nnodes="2", conf=SHORT_LEASE)
    again = cluster.desk.wait_world(2, after=world[0].round)
    assert {worker.node for worker in again} == {"a", "c"}
    cluster.finish()
    assert (a.wait(), c.wait()) == (0, 0)


def test_too_few_survivors_gather_until_the_join_timeout_and_say_who_is_missing(cluster: Cluster) -> None:
    """With fewer than min_nodes the survivor waits for the join timeout, then exits 76 and names who is missing."""
    conf = {**SHORT_LEASE, "join_timeout": 5, "read_timeout": 60}
    a, b = cluster.start("a", nnodes="2", conf=conf), cluster.start("b", nnodes="2", conf=conf)
    cluster.desk.wait_world(2)
    b.terminate()
    assert a.wait() == 76
    last = a.last_line()
    assert "1 of at least 2 nodes" in last
    assert "missing" in last
    assert b.wait() == 143
