"""The section "A node arrives" of docs/failover-contract.md."""

from __future__ import annotations

from support.harness import Cluster


def test_an_arriving_node_is_taken_in_when_there_is_room(cluster: Cluster) -> None:
    """All agents stop their workers, and the next round has the new node too."""
    a = cluster.start("a", nnodes="1:2")
    alone = cluster.desk.wait_world(1)
    b = cluster.start("b", nnodes="1:2")
    both = cluster.desk.wait_world(2, after=alone[0].round)
    assert alone[0].gone.is_set()
    assert [worker.node for worker in both] == ["a", "b"]
    cluster.finish()
    assert (a.wait(), b.wait()) == (0, 0)


def test_a_burst_of_arrivals_ends_the_round_once(cluster: Cluster) -> None:
    """Three nodes that arrive together cost one new round, not three."""
    nodes = [cluster.start("a", nnodes="1:4")]
    alone = cluster.desk.wait_world(1)
    nodes += [cluster.start(name, nnodes="1:4") for name in "bcd"]
    world = cluster.desk.wait_world(4, after=alone[0].round)
    assert world[0].round == alone[0].round + 1
    cluster.finish()
    assert [node.wait() for node in nodes] == [0, 0, 0, 0]


def test_a_node_that_finds_the_round_full_waits_and_disturbs_nothing(cluster: Cluster) -> None:
    """With max_nodes in the round no worker is stopped; the new node waits as a spare and exits 0 at the end."""
    a = cluster.start("a", nnodes="1")
    world = cluster.desk.wait_world(1)
    spare = cluster.start("s", nnodes="1")
    spare.wait_text("waiting as a spare")
    cluster.desk.ask(world[0], "ping")
    cluster.finish()
    assert (a.wait(), spare.wait()) == (0, 0)
    assert len(cluster.desk.workers) == 1


def test_a_spare_enters_when_a_place_frees(cluster: Cluster) -> None:
    """The spare of a full round takes the place of a node that leaves."""
    a, b = cluster.start("a", nnodes="2"), cluster.start("b", nnodes="2")
    world = cluster.desk.wait_world(2)
    c = cluster.start("c", nnodes="2")
    c.wait_text("spare")
    b.terminate()
    again = cluster.desk.wait_world(2, after=world[0].round)
    assert {worker.node for worker in again} == {"a", "c"}
    assert {worker.restarts for worker in again} == {0}
    cluster.finish()
    assert (a.wait(), b.wait(), c.wait()) == (0, 143, 0)


def test_a_spare_gives_up_after_the_join_timeout(cluster: Cluster) -> None:
    """A node without a place exits 76 after the join timeout, and the job goes on."""
    a = cluster.start("a", nnodes="1")
    cluster.desk.wait_world(1)
    spare = cluster.start("s", nnodes="1", conf={"join_timeout": 1})
    assert spare.wait() == 76
    assert "no place came free" in spare.text()
    cluster.finish()
    assert a.wait() == 0
