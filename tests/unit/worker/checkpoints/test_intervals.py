"""When a checkpoint is due, and when ranks exchange requests, where the training pauses."""

from __future__ import annotations

import time

from elastic_agent.worker.schedule import Every, Exchanges, Timetable


def test_a_pause_makes_no_checkpoint_due_as_nothing_more_could_be_lost() -> None:
    table = Timetable(Every(seconds=None, failures_s=600.0), lambda text: None)
    due_s = table.due_s
    table.paused(1000.0)
    assert table.due_s == due_s + 1000.0


def test_a_checkpoint_every_so_many_seconds_is_due_also_after_a_pause() -> None:
    """That interval is the script's own, by the clock."""
    table = Timetable(Every(seconds=5.0), lambda text: None)
    table.paused(1000.0)
    assert table.due_s < time.monotonic() + 6.0


def test_a_pause_brings_no_exchange_nearer() -> None:
    """Boundaries that take 1 ms are exchanged at every 500th, however long the training stood still between two."""
    exchanges, boundary, now_s = Exchanges(), 1, 100.0
    for _ in range(12):
        exchanges.agreed(boundary, exchanges.proposal(boundary, now_s))
        now_s += 1e-3 * (exchanges.next_boundary - boundary) + 7.0
        exchanges.paused(7.0)
        boundary = exchanges.next_boundary
    assert 499 <= exchanges.proposal(boundary, now_s) <= 501
