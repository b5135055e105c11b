"""Threads that write, so that what stands still (a disk, a terminal) holds up neither workers nor each other."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from .sinks import Sink

HOLD_S = 2.0
"""How long, in all, workers may be held up by what cannot keep up with them."""
REGAIN = 0.01
"""What part of the time that passes is added to that again, so training is never slowed by more than 1 % for long."""


class Patience:
    """How long workers may still be held up. Pure: takes times, which are monotonic."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._left_s = limit_s
        self._at = float("-inf")

    def left(self, now: float) -> float:
        """Seconds, at the beginning of a wait."""
        if self._at > float("-inf"):
            self._left_s = min(self._limit_s, self._left_s + (now - self._at) * REGAIN)
        self._at = now
        return self._left_s

    def spend(self, waited_s: float, now: float) -> None:
        """After a wait."""
        self._left_s = max(0.0, self._left_s - waited_s)
        self._at = now


Item = tuple[Sink | Callable[[bool], None], bytes]


class Outlet:
    """A queue of what to write, and the thread that writes it in that order. The thread starts with the first item.

    `crowded` and `offer` are for one thread, the relay's; the others for any.
    """

    def __init__(self, name: str, limit: int, hold_s: float, stall_s: float, wake: Callable[[], None]) -> None:
        """`limit`: bytes kept; `hold_s`: see `HOLD_S`; `stall_s`: what `drain` takes for standing still; `wake` is
        called, on any thread, when there is room again, and when the thread has ended."""
        self._name = name
        self._limit = limit
        self._stall_s = stall_s
        self._wake = wake
        self._patience = Patience(hold_s)
        self._change = threading.Condition()
        self._queue: deque[Item] = deque()
        """What is being written is the first."""
        self._finished = 0
        """Items."""
        self._stalled: tuple[int, int] | None = None
        """How far it had come when `drain` gave up."""
        self._size = 0
        self._held: tuple[float, float] | None = None
        """Since when workers wait, and until when they may."""
        self._dropping = False
        """Given up on until half of what is kept is written."""
        self._ending = False
        self._ended = False
        self._thread: threading.Thread | None = None

    def offer(self, sink: Sink, data: bytes) -> None:
        """Have `data` written to `sink`, or dropped if there is no room for it."""
        with self._change:
            self._dropping = self._dropping and self._size > self._limit // 2
            dropped = self._dropping or self._ended
            if not dropped:
                self._put(sink, data)
        if dropped:
            sink.lose(data, "it takes less than workers write")

    def after(self, call: Callable[[bool], None]) -> None:
        """Have `call` called when all that was offered so far is written or lost, on the outlet's thread: with True;
        with False when the thread broke."""
        with self._change:
            ended = self._ended
            if not ended:
                self._put(call, b"")
        if ended:
            call(False)

    def crowded(self, now: float) -> float | None:
        """Until when those who write here have to wait; None if they have not. Gives up when they have waited enough:
        what comes then is dropped, until half of what is kept is written."""
        with self._change:
            if self._dropping or self._ended:
                return None
            if self._held is None:
                if self._size <= self._limit:
                    return None
                self._held = (now, now + self._patience.left(now))
            since, until = self._held
            if now < until and self._size > self._limit // 2:
                return until
            self._dropping = self._size > self._limit // 2
            self._held = None
            self._patience.spend(now - since, now)
            return None

    def drain(self) -> bool:
        """Wait until all is written, for as long as it moves; False when it has stood still. While it has not moved
        since such an end, that is said at once."""
        with self._change:
            while self._queue and not self._ended and self._came() != self._stalled:
                before = self._came()
                if not self._change.wait(self._stall_s) and self._came() == before:
                    self._stalled = before
            return not self._queue

    def _came(self) -> tuple[int, int]:
        target = self._queue[0][0] if self._queue else None
        return self._finished, target.passed if isinstance(target, Sink) else 0

    def end(self) -> None:
        """Have the thread end when all is written; what is offered after that is lost."""
        with self._change:
            self._ending = True
            self._change.notify_all()

    def join(self, timeout_s: float) -> None:
        """After `end`: wait until the thread has ended, at most so long."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    @property
    def over(self) -> bool:
        """The thread has ended, or `end` was called before there was one."""
        with self._change:
            return self._ended or (self._ending and self._thread is None)

    def _put(self, target: Sink | Callable[[bool], None], data: bytes) -> None:
        self._queue.append((target, data))
        self._size += len(data)
        if self._thread is None:
            # A daemon: a file system that hangs must not keep the agent from exiting.
            self._thread = threading.Thread(target=self._run, name=f"elastic-agent-{self._name}", daemon=True)
            self._thread.start()
        else:
            self._change.notify_all()

    # -- on the thread -------------------------------------------------------------------------------------------
    def _run(self) -> None:
        try:
            while (item := self._next()) is not None:
                target, data = item
                if isinstance(target, Sink):
                    target.write(data)
                else:
                    target(True)
                self._done(len(data))
        finally:
            # Also when this thread breaks: nobody must wait for it.
            with self._change:
                self._ended = True
                left = list(self._queue)
                self._change.notify_all()
            for target, _ in left[1:]:
                if not isinstance(target, Sink):
                    target(False)
            self._wake()

    def _next(self) -> Item | None:
        with self._change:
            while not self._queue:
                if self._ending:
                    return None
                self._change.wait()
            return self._queue[0]

    def _done(self, size: int) -> None:
        with self._change:
            self._queue.popleft()
            self._finished += 1
            before = self._size
            self._size -= size
            room = self._held is not None and self._size <= self._limit // 2 < before
            self._change.notify_all()
        if room:
            self._wake()
