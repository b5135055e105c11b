"""What follows the workers' exit waits for their last lines, beside the agent's loop."""

from __future__ import annotations

import queue
import threading
from typing import Any, cast

import pytest

from elastic_agent.agent.output import writers
from elastic_agent.agent.output.last_lines import DRAIN_S, LastLines

BOUND_S = 10.0


class Logs:
    """A round whose output is passed on once the test says so."""

    def __init__(self) -> None:
        self.written = threading.Event()
        self.asked: list[tuple[float, float]] = []

    def passed_on(self, within_s: float) -> bool:
        return self.written.is_set()

    def finish(self, timeout_s: float, most_s: float) -> bool:
        self.asked.append((timeout_s, most_s))
        return self.written.wait(BOUND_S)


@pytest.fixture
def posted() -> queue.SimpleQueue[object]:
    return queue.SimpleQueue()


def test_what_follows_lines_that_are_passed_on_is_not_held_back(posted: queue.SimpleQueue[object]) -> None:
    """As nearly always; nor where no worker was started."""
    last, logs = LastLines(posted.put), Logs()
    logs.written.set()
    assert not last.hold("gone", cast("Any", logs))
    assert not last.hold("gone", None)
    assert posted.empty()


def test_what_was_held_back_is_posted_in_its_order(posted: queue.SimpleQueue[object]) -> None:
    """Once the lines are passed on, or given up, for which there is a limit in all."""
    last, logs = LastLines(posted.put), Logs()
    assert last.hold("workers gone", cast("Any", logs))
    assert last.hold("nursery lost", None)
    assert posted.empty()
    logs.written.set()
    assert [posted.get(timeout=BOUND_S) for _ in range(2)] == ["workers gone", "nursery lost"]
    last.close()
    assert logs.asked == [(DRAIN_S, DRAIN_S)]
    assert not last.hold("the next", cast("Any", logs))


def test_a_host_without_threads_holds_nothing_back(
    posted: queue.SimpleQueue[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of lines matters less than the end of the round."""

    def refuse(body: object, name: str) -> threading.Thread:
        raise OSError("refused")

    monkeypatch.setattr(writers, "started_thread", refuse)
    last = LastLines(posted.put)
    assert not last.hold("gone", cast("Any", Logs()))
    assert not last.hold("lost", None)
