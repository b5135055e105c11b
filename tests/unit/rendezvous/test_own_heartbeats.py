"""What a node knows of how the store answers its heartbeats."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from elastic_agent.rendezvous.driver import threads
from elastic_agent.rendezvous.driver.threads import LATENCY_BUCKETS, OwnHeartbeats


def test_heartbeats_are_counted_by_how_long_the_store_took_and_the_lease_ages_until_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that took longer than all bounds is counted too."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(threads, "time", SimpleNamespace(monotonic=lambda: clock.now))
    beats = OwnHeartbeats(2.5)
    told = [beats.latency_s]
    for took_s in (0.0, 2**-7, 60.0):
        clock.now += 64.0
        beats.answered(clock.now - took_s)
        told.append(beats.latency_s)
        assert beats.age_s() == 0.0
    assert told == [None, 0.0, 2**-7, 60.0]
    counted = dict(zip((*LATENCY_BUCKETS, "longer"), beats.latencies, strict=True))
    assert {bound: number for bound, number in counted.items() if number} == {0.0005: 1, 0.01: 1, "longer": 1}
    assert beats.latencies_s == 60.0 + 2**-7
    clock.now += 3.5
    assert beats.age_s() == 3.5
