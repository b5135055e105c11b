"""Which records wait while their node does not do its part (`rendezvous/driver/outbound.py`)."""

from __future__ import annotations

import queue

import pytest

from elastic_agent.proto.frozen import replace
from elastic_agent.rendezvous.driver.outbound import Outbound
from elastic_agent.rendezvous.failures import Sign, WorkerFailure
from elastic_agent.rendezvous.records import NodeRecord, NodeState

FAILURE = WorkerFailure("host:1", "host", rank=0, local_rank=0, pid=7, exit_code=3)
ASKS = NodeRecord("a", "host:1", NodeState.WAITING, seq=3, round=2, all_exits_reported=True)
FENCED = NodeRecord("a", "host:1", NodeState.BROKEN, seq=2, round=2, failure=replace(FAILURE, sign=Sign.CUT_OFF))
FAILED = replace(FENCED, failure=FAILURE)
LEAVES = replace(ASKS, state=NodeState.LEAVING, seq=4)


@pytest.fixture
def outbound() -> Outbound:
    return Outbound("a", lambda event: None)


@pytest.mark.parametrize("record", [ASKS, FENCED], ids=["asks for a place", "was fenced"])
def test_a_node_that_does_not_do_its_part_asks_for_no_place_until_it_does(
    outbound: Outbound, record: NodeRecord
) -> None:
    outbound.put(record)
    assert outbound.take(1.0, lambda: False) is None
    with pytest.raises(queue.Empty):
        outbound.take(0.0, lambda: False)
    assert outbound.take(1.0, lambda: True) is record
    with pytest.raises(queue.Empty):
        outbound.take(0.0, lambda: True)


def test_what_it_says_last_takes_the_place_of_what_waits(outbound: Outbound) -> None:
    outbound.put(ASKS)
    assert outbound.take(1.0, lambda: False) is None
    outbound.put(LEAVES)
    assert outbound.take(1.0, lambda: False) is LEAVES
    with pytest.raises(queue.Empty):
        outbound.take(0.0, lambda: True)


@pytest.mark.parametrize("record", [FAILED, LEAVES], ids=["a worker failed", "leaves"])
def test_what_may_end_the_round_of_others_is_written_at_once(outbound: Outbound, record: NodeRecord) -> None:
    outbound.put(record)
    assert outbound.take(1.0, lambda: False) is record
