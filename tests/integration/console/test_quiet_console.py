"""What a console shows without LOGLEVEL: a lost node, a wait and a re-formed round are never silent."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.harness import Cluster, ProcessNode

QUIET = {"LOGLEVEL": "WARNING"}
LEASE = {"keep_alive_interval": "0.2", "keep_alive_max_attempt": "10"}
"""Two seconds, so that a lost node shows sooner."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster("c10d", tmp_path, nnodes="1:2", env=QUIET, conf={**LEASE, "last_call_timeout": "1"})
    try:
        yield cluster
    finally:
        cluster.close()


def lines(node: ProcessNode) -> list[str]:
    """What the console showed, without program, node and time."""
    return [re.sub(r"^\[[^]]*\] ", "", line) for line in node.text().splitlines()]


def test_a_survivor_names_the_lost_node_since_when_and_what_follows(cluster: Cluster) -> None:
    """At once when the lease runs out, and once more with the round that begins without it."""
    first = cluster.start("first")
    second = cluster.start("second")
    both = cluster.desk.wait_world(2)[0].round  # 2 where the second node came late
    second.vanish()
    cluster.desk.wait_world(1, after=both)
    lost = rf"{re.escape(second.known_as)} was lost: no heartbeat for \d\.\d s \(lease 2 s\)"
    first.wait_text(f"round {both + 1} begins with 1 node")
    assert re.search(rf"round {both} is over: {lost}", first.text())
    assert re.search(rf"round {both + 1} begins with 1 node, group rank 0: .*; {lost}", first.text())


def test_a_survivor_whose_worker_fails_first_names_the_node_that_it_waits_for(cluster: Cluster) -> None:
    """The echo is not followed by silence: a second later the console names the node, and when it is lost."""
    longer = {"keep_alive_max_attempt": "25"}  # a busy host takes some seconds until the echo is known
    first = cluster.start("first", conf=longer)
    second = cluster.start("second", conf=longer)
    world = cluster.desk.wait_world(2)
    both = world[0].round
    second.vanish()
    next(worker for worker in world if worker.node == "first").order("exit 1")
    cluster.desk.wait_world(1, after=both)
    awaited = rf"waiting for {re.escape(second.known_as)}( \(no heartbeat for \d\.\d s; lost after 5 s\))? to stop"
    begins = f"round {both + 1} begins with 1 node"
    first.wait_text(begins)
    shown = first.text()
    assert re.search(awaited, shown), shown
    assert shown.index("worker failed: rank ") < shown.index("waiting for") < shown.index(begins)


def test_a_node_that_waits_for_others_says_how_many_and_how_long_yet(cluster: Cluster) -> None:
    """No line in the first second, then one with the nodes that joined and the time that is left."""
    alone = cluster.start("alone", nnodes="2:2", conf={"join_timeout": "60"})
    alone.wait_text("1 of at least 2 nodes joined")
    assert re.search(
        rf"round 1: 1 of at least 2 nodes joined \({re.escape(alone.known_as)}\); waiting up to 5\d s for more",
        alone.text(),
    )
    cluster.start("other", nnodes="2:2", conf={"join_timeout": "60"})
    cluster.desk.wait_world(2)


def test_a_spare_says_that_it_waits_and_for_how_long(cluster: Cluster) -> None:
    """Without this a third node of two would look as if it hung."""
    cluster.start("first")
    cluster.start("second")
    cluster.desk.wait_world(2)
    spare = cluster.start("spare")
    spare.wait_text("round 1 runs without this node; waiting as a spare for up to 600 s")


def test_a_node_in_the_finalisation_barrier_names_the_node_that_still_works(cluster: Cluster, tmp_path: Path) -> None:
    """Both consoles show it: that of the finished node and that of the node that still works. The barrier and its end
    are events, too."""
    path = tmp_path / "events.jsonl"
    first = cluster.start("first", env={**QUIET, "ELASTIC_AGENT_EVENTS": str(path)})
    second = cluster.start("second")
    world = cluster.desk.wait_world(2)
    next(worker for worker in world if worker.node == "first").order("exit 0")
    awaited = f"round 1: waiting for {second.known_as} to finish; the finalisation barrier ends in 29"
    first.wait_text(awaited)
    second.wait_text(awaited)
    next(worker for worker in world if worker.node == "second").order("exit 0")
    assert (first.wait(), second.wait()) == (0, 0)
    events = [json.loads(line) for line in path.read_text().splitlines()]
    barrier = next(at for at, event in enumerate(events) if event.get("phase") == "finished")
    assert any(second.known_as in event["because"] for event in events[barrier:] if event["what"] == "announced")
    assert [event["what"] for event in events].index("concluded") > barrier


def test_a_job_without_trouble_shows_its_last_line_only(cluster: Cluster) -> None:
    """Nothing but how it ended."""
    only = cluster.start("only", nnodes="1:1")
    cluster.desk.wait_world(1)[0].order("exit 0")
    assert only.wait() == 0
    assert len(lines(only)) == 1
    assert lines(only)[0].startswith("elastic-agent: exit 0: ")


def test_a_node_that_lost_its_store_gives_its_reason_once(cluster: Cluster) -> None:
    """Its host stands still for ever, so nobody follows it. Before its workers are stopped the console says only that
    they are; why is in the last line."""
    conf = {"store_grace": "2"}
    host = cluster.start("host", nnodes="2:2", conf=conf)
    other = cluster.start("other", nnodes="2:2", conf=conf)
    cluster.desk.wait_world(2)
    host.terminate(signal.SIGSTOP)
    assert other.wait() == 80
    host.vanish()
    assert "did not answer for 2 s (store_grace)" in other.last_line()
    assert other.text().count("did not answer for 2 s (store_grace)") == 1
    host.wait()
