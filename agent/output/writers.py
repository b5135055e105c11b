"""Threads that write, so that a sink that blocks (a disk, a terminal) delays neither workers nor other sinks."""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic

from .sinks import Sink

HOLD_S = 2.0
"""How long, in all, workers may be held up by a sink that is slower than they are."""
REGAIN = 0.01
"""The share of elapsed time that is added to it again, so in the long run training is slowed by at most 1 %."""


class HoldBudget:
    """How long workers may still be held up. Pure: takes times, which are monotonic."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._left_s = limit_s
        self._at = float("-inf")

    def left_s(self, now: float) -> float:
        """Seconds that a hold that begins `now` may last."""
        if self._at > float("-inf"):
            self._left_s = min(self._limit_s, self._left_s + (now - self._at) * REGAIN)
        self._at = now
        return self._left_s

    def spend(self, held_s: float, now: float) -> None:
        """Subtract a hold of `held_s` seconds that ended `now`."""
        self._left_s = max(0.0, self._left_s - held_s)
        self._at = now


Item = tuple[Sink | Callable[[bool], None], bytes]


class QueuedWriter:
    """A queue of bytes to write, and the thread that writes them in that order. `start` starts it, and, where nobody
    called that, the first item does.

    `hold_until` and `offer` are for one thread, the relay's; the other methods for any.
    """

    def __init__(self, name: str, limit: int, hold_s: float, stall_s: float, wake: Callable[[], None]) -> None:
        """`limit`: bytes kept. `hold_s`: see `HOLD_S`. `stall_s`: after so long without progress `drain` gives up.
        `wake` is called, on any thread, when there is room again, and when the thread has ended."""
        self._name = name
        self._limit = limit
        self._stall_s = stall_s
        self._wake = wake
        self._budget = HoldBudget(hold_s)
        self._change = threading.Condition()
        self._queue: deque[Item] = deque()
        """The first item is being written."""
        self._finished = 0
        """Items written."""
        self._stalled: tuple[int, int] | None = None
        """The progress at which `drain` gave up."""
        self._size = 0
        """Bytes in the queue."""
        self._held: tuple[float, float] | None = None
        """Since when workers are held up, and until when they may be."""
        self._dropping = False
        """Output is dropped until half of what is kept is written."""
        self._ending = False
        self._ended = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, if it does not run. Raises OSError if this host refuses it."""
        with self._change:
            if self._thread is None and not self._ended and not self._ending:
                # A daemon: a file system that hangs must not keep the agent from exiting.
                self._thread = started_thread(self._run, f"elastic-agent-{self._name}")

    def offer(self, sink: Sink, data: bytes) -> None:
        """Queue `data` to be written to `sink`, or drop it if there is no room."""
        with self._change:
            self._dropping = self._dropping and self._size > self._limit // 2
            dropped = self._dropping or not self._may_write()
            if not dropped:
                self._put(sink, data)
        if dropped:
            sink.drop(data, "it is slower than the workers")

    def after(self, call: Callable[[bool], None]) -> None:
        """Have `call(True)` called on the writer's thread once all that was offered so far is written or dropped;
        `call(False)` if the thread has ended or fails first."""
        with self._change:
            runs = self._may_write()
            if runs:
                self._put(call, b"")
        if not runs:
            call(False)

    def hold_until(self, now: float) -> float | None:
        """Until when the streams that are written here must not be read; None if they may be. Once the hold budget is
        spent, output is dropped until half of what is kept is written."""
        with self._change:
            if self._dropping or self._ended:
                return None
            if self._held is None:
                if self._size <= self._limit:
                    return None
                self._held = (now, now + self._budget.left_s(now))
            since, until = self._held
            if now < until and self._size > self._limit // 2:
                return until
            self._dropping = self._size > self._limit // 2
            self._held = None
            self._budget.spend(now - since, now)
            return None

    def drain(self, most_s: float = float("inf")) -> bool:
        """Wait until all is written, for as long as there is progress, at most `most_s`. False if there was none for
        `stall_s`; until there is progress again, another call returns False at once."""
        until = monotonic() + most_s
        with self._change:
            while self._queue and not self._ended and self._progress() != self._stalled:
                left_s = until - monotonic()
                if left_s <= 0:
                    break
                before = self._progress()
                stalled = not self._change.wait(min(self._stall_s, left_s)) and self._progress() == before
                if stalled and left_s >= self._stall_s:
                    self._stalled = before
            return not self._queue

    def _progress(self) -> tuple[int, int]:
        target = self._queue[0][0] if self._queue else None
        return self._finished, target.passed if isinstance(target, Sink) else 0

    def end(self) -> None:
        """Have the thread end when all is written; what is offered after that is dropped."""
        with self._change:
            self._ending = True
            self._change.notify_all()

    def join(self, timeout_s: float) -> None:
        """After `end`: wait at most `timeout_s` until the thread has ended."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    @property
    def ended(self) -> bool:
        """The thread has ended, or `end` was called before there was one."""
        with self._change:
            return self._ended or (self._ending and self._thread is None)

    def _put(self, target: Sink | Callable[[bool], None], data: bytes) -> None:
        self._queue.append((target, data))
        self._size += len(data)
        self._change.notify_all()

    def _may_write(self) -> bool:
        """Whether there is a thread that will write, or can be one now."""
        if self._thread is None:
            try:
                self.start()
            except OSError:
                return False
        return self._thread is not None and not self._ended

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
            # Also when this thread fails: no other thread may wait for it then.
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


def started_thread(body: Callable[[], None], name: str) -> threading.Thread:
    """A running daemon thread. Raises OSError if this host refuses it."""
    thread = threading.Thread(target=body, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # all that Python says of pthread_create(3)'s EAGAIN is "can't start new thread"
        raise OSError(errno.EAGAIN, "this host refuses another thread") from error
    return thread
