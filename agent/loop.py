"""One queue, one thread, one place that waits. Everything that happens to an agent comes out of `take`."""

from __future__ import annotations

import heapq
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

BELL_BYTES = 1 << 16
"""What a pipe holds."""


class Loop:
    """Events in the order they came, and wake-ups when their time has come.

    `post` may be called from any thread and from a signal handler. All else belongs to the thread that takes.
    """

    def __init__(self) -> None:
        self._events: deque[object] = deque()
        self._deadlines: list[tuple[float, int, object]] = []
        self._count = 0
        self._bell, self.waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        """`waker`: a byte written to it wakes the taker, so that signal handlers which have come due run."""
        self._poll = select.poll()
        self._poll.register(self._bell, select.POLLIN)
        self._sources: dict[int, Callable[[], Iterable[object]]] = {}
        # Between a post and the close: a number given back may be anybody's descriptor the next moment. Re-entrant, for
        # a signal handler may post in the midst of either.
        self._lock = threading.RLock()
        self._closed = False

    def now(self) -> float:
        """Seconds on this host's monotonic clock."""
        return time.monotonic()

    def post(self, event: object) -> None:
        """Add an event; wakes the taker. Once closed, events are lost."""
        self._events.append(event)
        with self._lock:
            if not self._closed:
                ring(self.waker)

    def wake_at(self, when: float, event: object) -> None:
        """Have `event` come out of `take` at `when`. The same event asked for twice at one time comes once."""
        if any(when == known and event == wanted for known, _, wanted in self._deadlines):
            return
        self._count += 1
        heapq.heappush(self._deadlines, (when, self._count, event))

    def watch(self, fd: int, observe: Callable[[], Iterable[object]]) -> None:
        """Take events from `observe` whenever `fd` is readable."""
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
                self._wait()  # even for a deadline that has passed: what came before it may lie unread
            if self._events:
                return self._events.popleft()
            if self._deadlines and self._deadlines[0][0] <= self.now():
                return heapq.heappop(self._deadlines)[2]

    def _wait(self) -> None:
        limit_ms = None if not self._deadlines else max(0.0, self._deadlines[0][0] - self.now()) * 1000
        for fd, _ in self._poll.poll(limit_ms):
            if fd == self._bell:
                os.read(self._bell, BELL_BYTES)
            elif fd in self._sources:
                self._events.extend(self._sources[fd]())

    def close(self) -> None:
        """Give the descriptors back. Idempotent."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._bell)
                os.close(self.waker)


def ring(waker: int) -> None:
    try:
        os.write(waker, b"\0")
    except BlockingIOError:
        pass  # full: it rings already
