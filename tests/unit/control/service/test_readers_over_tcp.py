"""Streams to readers over TCP, and the threads of calls, without gRPC around them."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from elastic_agent.control.remote.server import Threads
from elastic_agent.control.remote.streams import Streams, TooMany
from elastic_agent.control.service.connection import TAKEN_S


class Context:
    """A call whose reader is there."""

    def cancel(self) -> None:
        """Of gRPC."""

    def is_active(self) -> bool:
        return True


def test_a_stream_is_seen_by_the_watch_that_it_begins() -> None:
    """A watch that looks before the stream is there would end, and nobody would drop a reader that stands still."""
    streams = Streams()
    seen: list[float | None] = []
    messages = streams.guarded(Context(), iter(["one"]), lambda: 0.0, lambda: seen.append(streams.drop_stuck(0.0)[1]))
    assert list(messages) == ["one"]
    assert seen == [TAKEN_S]
    assert streams.drop_stuck(0.0) == (0, None)


def test_there_are_at_most_so_many_streams() -> None:
    streams = Streams(1)
    first = streams.guarded(Context(), iter(["one"]), lambda: 0.0, lambda: None)
    assert next(first) == "one"
    with pytest.raises(TooMany, match="1 streams are open; end one"):
        next(streams.guarded(Context(), iter([]), lambda: 0.0, lambda: None))


def test_a_thread_that_the_host_refuses_ends_no_more_than_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error would end gRPC's own thread, and with it the service."""

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threads: Any = Threads()
    with monkeypatch.context() as broken:
        broken.setattr(threading.Thread, "start", refused)
        assert threads.submit(lambda: 1).cancelled()
    assert threads.submit(lambda: 1).result(30) == 1
