"""A process that is none of the job's holds a worker's output open: the node waits for it beside its loop."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

from support.desk import restarts_of, worker_of
from support.harness import SHORT_LEASE, Cluster


def test_output_that_is_held_open_costs_no_node(tmp_path: Path) -> None:
    """The end of the output is waited for longer than the node may stand still, and its heartbeats vouch for its
    loop: it is not lost, and its restart counts as its own."""
    with closing(Cluster("c10d", tmp_path, nnodes="2", conf=SHORT_LEASE)) as cluster:
        a, b = cluster.start("a"), cluster.start("b")
        world = cluster.desk.wait_world(2)
        failing = worker_of(world, "b")
        held = os.open(f"/proc/{failing.pid}/fd/1", os.O_WRONLY)
        failing.order("exit 3")
        again = cluster.desk.wait_world(2, after=world[0].round)
        os.close(held)
        assert restarts_of(again) == {"a": 0, "b": 1}
        assert "was lost" not in a.text()
        assert "does not answer" not in b.text()
        cluster.finish()
        assert (a.wait(), b.wait()) == (0, 0)
