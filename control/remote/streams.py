"""Streams to readers over TCP: how many there are, and which of them takes nothing any more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from ..service.connection import TAKEN_S

STREAMS_MAX = 32
"""Streams at a time: each has a thread."""
HEALTH_MAX = 8
"""Streams of the health service at a time. They need no token, so they take no place of those that do."""
Message = TypeVar("Message")


class Context(Protocol):
    """What gRPC offers about a call."""

    def cancel(self) -> Any: ...  # noqa: ANN401 - gRPC says nothing of it
    def is_active(self) -> bool: ...


class TooMany(Exception):
    """There is no room for another stream. One line."""


class Streams:
    """Those that are open. From any thread."""

    def __init__(self, most: int = STREAMS_MAX) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._sending: dict[Context, float | None] = {}
        """Since when one message is on its way; None: none is."""

    def guarded(
        self, context: Context, messages: Iterator[Message], now: Clock, begun: Callable[[], None]
    ) -> Iterator[Message]:
        """The same messages; how long each takes is known here. `begun` is called once `drop_stuck` sees the stream.
        Raises TooMany."""
        with self._lock:
            if len(self._sending) >= self._most:
                raise TooMany(f"{self._most} streams are open; end one")
            self._sending[context] = None
        try:
            begun()
            for message in messages:
                self._sending[context] = now()
                yield message  # comes back when gRPC has handed it on
                self._sending[context] = None
        finally:
            with self._lock:
                self._sending.pop(context, None)

    def drop_stuck(self, now_s: float) -> tuple[int, float | None]:
        """End streams whose reader takes nothing for too long. Returns how many, and when to look again: None while
        there is none."""
        with self._lock:
            known = list(self._sending.items())
        stuck = [each for each, since_s in known if since_s is not None and now_s - since_s >= TAKEN_S]
        for context in stuck:
            context.cancel()
        return len(stuck), now_s + TAKEN_S if known else None


class Clock(Protocol):
    """Seconds on the monotonic clock."""

    def __call__(self) -> float: ...
