"""What the line on a terminal says of a wait: for what, since when, and how long yet."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from elastic_agent.agent.lifecycle.state import Phase
from elastic_agent.launcher.reporting.waiting_line import waiting
from elastic_agent.rendezvous.coordinator.nodes import READY

DONE = "all workers of this node are done; waiting for the other nodes"


def known(phase: Phase, *, leads: bool = True, ready: int = 1, finished: int = 0, until: float | None = None) -> Any:
    """Of a node of a job of at least three and at most four nodes, which waits since second 100."""
    members = [(None, SimpleNamespace(finished=number < finished)) for number in range(4)]
    coordinator = SimpleNamespace(
        leading=leads, barrier_until=until, since=100.0, members=members,
        seen_members=lambda: members, how_many=lambda trait: {READY: ready}[trait],
    )  # fmt: skip
    node = SimpleNamespace(phase=phase, leading=leads, because="round 2 runs without this node")
    return SimpleNamespace(node=node, coordinator=coordinator, rules=SimpleNamespace(min_nodes=3, join_timeout_s=60.0))


@pytest.mark.parametrize(
    ("of", "says"),
    [
        (known(Phase.JOINING), "waiting for 2 more nodes, 12 s so far, 48 s left"),
        (known(Phase.JOINING, ready=2), "waiting for 1 more node, 12 s so far, 48 s left"),
        (known(Phase.JOINING, ready=3), "round 2 runs without this node; 12 s so far"),
        (known(Phase.JOINING, leads=False), "round 2 runs without this node; 12 s so far"),
        (known(Phase.FINISHED, finished=3, until=153.0), "3 of 4 nodes finished, barrier 41 s left"),
        (known(Phase.FINISHED, finished=3, until=50.0), "3 of 4 nodes finished, barrier 0 s left"),
        (known(Phase.FINISHED, leads=False), f"{DONE}, 12 s so far"),
    ],
)  # fmt: skip
def test_a_wait_says_for_what_since_when_and_how_long_yet(of: Any, says: str) -> None:
    """Only the node that coordinates knows how long."""
    assert waiting(of, 100.0, 112.0) == says
