"""What a host refuses is found out before a library needs it."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator

import pytest

from elastic_agent.rendezvous.host_limits import need_room


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """This process may open some twenty more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 20, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_refused_descriptor_raises_and_leaves_none_open(few_descriptors: None) -> None:
    """More than may be opened in all, whatever the numbers below the highest are free."""
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="Too many open files"):
        need_room(10_000, 0)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_refused_thread_raises_and_leaves_none_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Python raises it for threads of its own, which is how it is recognised."""
    start = threading.Thread.start
    begun: list[threading.Thread] = []

    def refuse_the_third(thread: threading.Thread) -> None:
        if len(begun) == 2:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        start(thread)

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(threading.Thread, "start", refuse_the_third)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        need_room(3, 5)
    assert not any(thread.is_alive() for thread in begun)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_room_that_there_is_stays_free() -> None:
    """Nothing is kept of what was tried."""
    descriptors, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    need_room(12, 8)
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == (descriptors, threads)
