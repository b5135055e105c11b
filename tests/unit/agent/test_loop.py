"""The agent's one queue of events: the order in which it hands them out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing

import pytest

from elastic_agent.agent.loop import Loop


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_events_that_precede_a_deadline_are_handed_out_before_it(pipe: tuple[int, int]) -> None:
    """An agent that was suspended has unread events and deadlines that have passed: the events must come first."""
    out, into = pipe
    with closing(Loop()) as loop:
        loop.watch(out, lambda: [os.read(out, 8)])
        loop.wake_at(loop.now() - 5.0, "the grace is over")
        os.write(into, b"gone")
        assert [loop.take(), loop.take()] == [b"gone", "the grace is over"]


def test_a_deadline_set_twice_is_handed_out_once() -> None:
    """A state machine sets its next wake-up at every event."""
    with closing(Loop()) as loop:
        first = loop.now() - 2.0
        loop.wake_at(first, "first")
        loop.wake_at(first, "first")
        loop.wake_at(first + 1.0, "second")
        assert [loop.take(), loop.take()] == ["first", "second"]
