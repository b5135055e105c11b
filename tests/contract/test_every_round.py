"""The section "Every round" of docs/failover-contract.md."""

from __future__ import annotations

from support.harness import Cluster


def test_nodes_with_different_numbers_of_workers_share_one_world(cluster: Cluster) -> None:
    """Heterogeneous --nproc-per-node: ranks are dense, those of a node contiguous, and LOCAL_WORLD_SIZE its own."""
    nodes = [
        cluster.start("a", nnodes="3", nproc=1),
        cluster.start("b", nnodes="3", nproc=3),
        cluster.start("c", nnodes="3", nproc=2),
    ]
    world = cluster.desk.wait_world(6)
    assert [worker.rank for worker in world] == list(range(6))
    sizes = {worker.node: int(worker.env["LOCAL_WORLD_SIZE"]) for worker in world}
    assert sizes == {"a": 1, "b": 3, "c": 2}
    for name, size in sizes.items():
        mine = [worker for worker in world if worker.node == name]
        assert [int(worker.env["LOCAL_RANK"]) for worker in mine] == list(range(size))
        assert len({worker.rank - int(worker.env["LOCAL_RANK"]) for worker in mine}) == 1
    cluster.finish()
    assert [node.wait() for node in nodes] == [0, 0, 0]


def test_every_round_has_a_fresh_master_port(cluster: Cluster) -> None:
    """MASTER_PORT differs in every round."""
    a = cluster.start("a", nnodes="1:2", max_restarts=3)
    ports = []
    for failures in range(3):
        world = cluster.desk.wait_world(1, after=failures)
        ports.append(world[0].env["MASTER_PORT"])
        world[0].order("exit 1" if failures < 2 else "exit 0")
    assert a.wait() == 0
    assert len(set(ports)) == 3
