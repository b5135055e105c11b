"""Any run id works, and the nodes of a static job: refused, killed and started again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.desk import WORKER, Desk
from support.harness import ProcessNode
from support.network import free_port
from support.rigs.command_line import assert_one_line, at, elastic_agent


@pytest.mark.parametrize(
    "run_id", ["a/b", "../../up", "two words", "100%", "日本語", "line\nbreak", "'\"$(x)`", "x" * 200, "."]
)
def test_any_run_id_works_on_one_node(run_id: str, script: str, tmp_path: Path) -> None:
    """Run ids may have any characters; the job's log directory is always below --log-dir."""
    logs = tmp_path / "logs"
    done = elastic_agent("--rdzv-id", run_id, "--log-dir", str(logs), "--redirects", "1", script, cwd=tmp_path)
    assert done.code == 0, done.err
    (written,) = tmp_path.glob("**/stdout.log")
    assert written.is_relative_to(logs)


def test_two_nodes_meet_under_an_odd_run_id_on_ipv6(script: str, tmp_path: Path) -> None:
    """Slash, space, percent, quotes, line break and non-ASCII in the run id, and an IPv6 endpoint, as typed."""
    flags = [*at(free_port(), "[::1]", read_timeout=30), "--rdzv-id", "ä/b c%\n'"]
    nodes = [ProcessNode(name, [*flags, script], dict(os.environ), tmp_path) for name in "ab"]
    try:
        assert [node.wait() for node in nodes] == [0, 0]
    finally:
        for node in nodes:
            node.end()


class Static:
    """Agents of a static job of two nodes."""

    def __init__(self, folder: Path) -> None:
        self.desk = Desk(folder)
        self.nodes: list[ProcessNode] = []
        self._folder = folder
        self.port = free_port()

    def start(self, rank: int, *flags: str) -> ProcessNode:
        name = f"n{len(self.nodes)}"
        env = {**os.environ, "TEST_NODE": name, "TEST_DESK": self.desk.path, "OMP_NUM_THREADS": "1", "LOGLEVEL": "INFO"}
        args = ["--nnodes", "2", "--node-rank", str(rank), "--master-addr", "127.0.0.1", "--max-restarts", "1"]
        args += ["--master-port", str(self.port), "--rdzv-conf", "read_timeout=30", *flags, WORKER]
        node = ProcessNode(name, args, env, self._folder)
        self.nodes.append(node)
        return node

    def close(self) -> None:
        for node in self.nodes:
            node.end()
        self.desk.close()


@pytest.fixture
def static(tmp_path: Path) -> Iterator[Static]:
    made = Static(tmp_path)
    yield made
    made.close()


def test_a_static_job_of_two_nodes_runs_and_restarts(static: Static) -> None:
    """Group ranks are the nodes' --node-rank, in the first round and in the next."""
    static.start(1)
    static.start(0)
    world = static.desk.wait_world(2)
    assert [worker.node for worker in world] == ["n1", "n0"]
    world[1].order("exit 4")
    again = static.desk.wait_world(2, after=world[0].round)
    assert [worker.node for worker in again] == ["n1", "n0"]
    for worker in again:
        worker.order("exit 0")
    assert [node.wait() for node in static.nodes] == [0, 0]


def test_a_second_node_0_of_another_job_is_refused(static: Static, script: str, tmp_path: Path) -> None:
    """Two nodes of two jobs have rank 0 and one port: the line for the second has both commands."""
    static.start(0)
    port = static.port
    static.nodes[0].wait_text("of at least 2 nodes joined")
    flags = ["--nnodes", "2", "--node-rank", "0", "--master-port", str(port), "--rdzv-conf", "read_timeout=5"]
    done = elastic_agent(*flags, script, cwd=tmp_path)
    assert_one_line(done, 78, "is taken by a job that differs in its command", "train.py")
    static.nodes[0].terminate()
    assert static.nodes[0].wait() == 128 + signal.SIGTERM


def test_a_node_rank_given_twice_ends_the_job_for_all(static: Static) -> None:
    """Two nodes have the same rank, which is not 0: all nodes exit, and the line has the rank and both nodes."""
    for rank in (0, 1, 1):
        static.start(rank, "--nnodes", "3")
    assert [node.wait() for node in static.nodes] == [2, 2, 2]
    for node in static.nodes:
        last = node.text().splitlines()[-1]
        assert "node-rank" in last
        assert "1" in last
        assert "Traceback" not in node.text()


def test_a_static_node_that_is_killed_while_others_join_may_start_again(static: Static) -> None:
    """Node 1 gets kill -9 and starts again within its lease: its old claim to the rank ends with that, and the job
    begins when the last node is there."""
    first = static.start(0, "--nnodes", "3")
    static.start(1, "--nnodes", "3")
    first.wait_text("2 of at least 3 nodes joined")
    static.nodes[1].vanish()
    static.start(1, "--nnodes", "3")
    first.wait_text("both have --node-rank 1")
    static.start(2, "--nnodes", "3")
    world = static.desk.wait_world(3)
    assert [worker.node for worker in world] == ["n0", "n2", "n3"]
    for worker in world:
        worker.order("exit 0")
    assert [static.nodes[index].wait() for index in (0, 2, 3)] == [0, 0, 0]
