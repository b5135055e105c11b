"""The agent's event queue: one queue, one thread, one place that waits. `take` returns all events."""

from __future__ import annotations

import heapq
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

PIPE_BYTES = 1 << 16
"""Capacity of a pipe."""


class Loop:
    """Events in the order of their posting, and wake-ups at their deadlines.

    `post` may be called from any thread and from a signal handler; all else only by the thread that calls `take`.
    """

    def __init__(self) -> None:
        self._events: deque[object] = deque()
        self._deadlines: list[tuple[float, int, object]] = []
        self._count = 0
        self._wake_fd, self.waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        """`waker`: a byte written to it ends the wait in `take`, so that pending signal handlers run."""
        self._poll = select.poll()
        self._poll.register(self._wake_fd, select.POLLIN)
        self._sources: dict[int, Callable[[], Iterable[object]]] = {}
        # Held by `post` and `close`: a closed descriptor's number may be in use again the next moment. Re-entrant, as a
        # signal handler may post in the middle of either.
        self._lock = threading.RLock()
        self._closed = False

    def now(self) -> float:
        """Seconds on this host's monotonic clock."""
        return time.monotonic()

    def post(self, event: object) -> None:
        """Add an event and end the wait in `take`. Events posted after `close` are dropped."""
        self._events.append(event)
        with self._lock:
            if not self._closed:
                wake(self.waker)

    def wake_at(self, when: float, event: object) -> None:
        """Let `take` return `event` at `when`. The same event asked for twice at one time is returned once."""
        if any(when == known and event == wanted for known, _, wanted in self._deadlines):
            return
        self._count += 1
        heapq.heappush(self._deadlines, (when, self._count, event))

    def watch(self, fd: int, observe: Callable[[], Iterable[object]]) -> None:
        """Add the events of `observe` whenever `fd` is readable."""
        self._sources[fd] = observe
        self._poll.register(fd, select.POLLIN)

    def forget(self, fd: int) -> None:
        """No longer watch `fd`."""
        if self._sources.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def take(self) -> object:
        """The next event; blocks until there is one."""
        while True:
            if not self._events:
                self._wait()  # even for a deadline that has passed: events from before it may be unread
            if self._events:
                return self._events.popleft()
            if self._deadlines and self._deadlines[0][0] <= self.now():
                return heapq.heappop(self._deadlines)[2]

    def _wait(self) -> None:
        limit_ms = None if not self._deadlines else max(0.0, self._deadlines[0][0] - self.now()) * 1000
        for fd, _ in self._poll.poll(limit_ms):
            if fd == self._wake_fd:
                os.read(self._wake_fd, PIPE_BYTES)
            elif fd in self._sources:
                self._events.extend(self._sources[fd]())

    def close(self) -> None:
        """Close the descriptors. Idempotent."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._wake_fd)
                os.close(self.waker)


def wake(waker: int) -> None:
    try:
        os.write(waker, b"\0")
    except BlockingIOError:
        pass  # the pipe is full: a wake-up is pending
