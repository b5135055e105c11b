"""Questions about the values of failures."""

from __future__ import annotations

from elastic_agent.rendezvous.failures import MAX_REPORTED_EXITS, Sign, worth_reporting
from support.builders import worker_exit


def test_a_record_with_many_exits_keeps_the_failures() -> None:
    """The record is bounded: workers that were only stopped are left out before those that failed."""
    exits = [
        worker_exit(0, Sign.LEFT),
        *[worker_exit(1, Sign.STOPPED) for _ in range(9)],
        worker_exit(2, Sign.PEER),
        worker_exit(3, Sign.OWN),
    ]
    kept = worth_reporting(exits)
    assert len(kept) == MAX_REPORTED_EXITS
    assert kept[-2:] == (exits[-2], exits[-1])
    assert kept[0].sign is Sign.STOPPED
