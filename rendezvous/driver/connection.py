"""A connection to a store that is replaced when it breaks, and the guard that notices a call without an answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from ..store import Store, StoreRefused, StoreUnreachable

CALL_LIMIT_S = 5.0
"""After this time without an answer to a guarded call the store counts as away. Calls take well under a millisecond."""

ANSWER_S = 8.0
"""How long a call that hardly waits may take before its thread counts as cut off; a lease, if that is longer. With the
time between two looks that is found within 10 s. A busy host answers in well under a second."""

RETRY_FIRST_S, RETRY_MOST_S = 0.1, 1.0
"""Pause between attempts to reach the store; doubles from the first to the most."""
MOVED_S = 0.2
"""The longest pause where another node may host the store by now."""

T = TypeVar("T")


def patience_s(wait_s: float, lease_s: float) -> float:
    """How long a call may take that waits for up to `wait_s`, in seconds. Half of it is for the connection that there
    is, which may have broken without an error; then the call is made again on another, and may wait again."""
    return max(ANSWER_S, lease_s, 2 * wait_s + ANSWER_S / 2)


class CallGuard:
    """Reports when the store goes away and comes back. It is away while a call is not answered, and while `noticed` has
    said that this node cannot use it although its calls are answered.

    Its thread is not woken for each call: it wakes at the first call's deadline, by which time most calls have been
    answered, and sleeps while no call is under way."""

    def __init__(self, went_away: Callable[[str], None], came_back: Callable[[], None]) -> None:
        self._went_away = went_away
        self._came_back = came_back
        self._changed = threading.Condition()
        self._deadline: float | None = None
        self._idle = False
        """The thread waits for the next `begin`."""
        self.broken = False
        """The last call was not answered in time. Any thread may read it."""
        self._unusable = False
        """As `noticed` said last."""
        self._closed = False

    def start(self) -> None:
        threading.Thread(target=self._watch, name="elastic-agent-guard", daemon=True).start()

    def begin(self) -> None:
        """A call starts; it must be answered within `CALL_LIMIT_S`."""
        with self._changed:
            self._deadline = time.monotonic() + CALL_LIMIT_S
            if self._idle:
                self._changed.notify()

    def answered(self) -> None:
        """The call was answered."""
        with self._changed:
            self._deadline = None
            came_back = self.broken and not self._unusable
            self.broken = False
        if came_back:
            self._came_back()

    def broke(self, reason: str) -> None:
        """The call failed, or its deadline passed. `reason` is for messages."""
        with self._changed:
            self._deadline = None
            first = not (self.broken or self._unusable)
            self.broken = True
        if first:
            self._went_away(reason)

    def noticed(self, trouble: str) -> None:
        """Why this node cannot use the store although its calls are answered; empty: it can. Only a change counts."""
        with self._changed:
            changed = self._unusable is not bool(trouble) and not self.broken
            self._unusable = bool(trouble)
        if changed and trouble:
            self._went_away(trouble)
        elif changed:
            self._came_back()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _watch(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                now = time.monotonic()
                if self._deadline is None or self._deadline > now:
                    self._idle = self._deadline is None
                    self._changed.wait(None if self._deadline is None else self._deadline - now)
                    continue
            self.broke(f"no answer for {CALL_LIMIT_S:g} s")


class Connection:
    """Makes calls on a session, and repeats each on a new session until it is answered. Used by one thread."""

    def __init__(
        self,
        connect: Callable[[], Store],
        closing: threading.Event,
        guard: CallGuard | None = None,
        retry_most_s: float = RETRY_MOST_S,
    ) -> None:
        self._retry_most_s = retry_most_s
        self._connect = connect
        self._closing = closing
        self._guard = guard
        self._session: Store | None = None
        self._calls = 0
        self.under_way = 0
        """Number of the call that is not answered yet; 0: none. Any thread may read it."""

    def begin_on(self, session: Store) -> None:
        """Make the first calls on this session, which no other thread uses, so that it is not open for nothing."""
        self._session = session

    def call(
        self,
        request: Callable[[Store], T],
        meanwhile: Callable[[Store], None] | None = None,
        wanted: Callable[[], bool] = lambda: True,
    ) -> T | None:
        """The answer; None once `closing` is set. Raises StoreErrors other than StoreUnreachable, which a
        repetition would not change. `meanwhile`: called before each repetition, with the new session; for what must not
        wait for the answer. `wanted`: asked before each repetition; False ends the call, whose answer is None."""
        self._count()
        try:
            return self._repeat(request, meanwhile, wanted)
        finally:
            self.under_way = 0

    def _repeat(
        self, request: Callable[[Store], T], meanwhile: Callable[[Store], None] | None, wanted: Callable[[], bool]
    ) -> T | None:
        pause_s = RETRY_FIRST_S
        while not self._closing.is_set():
            try:
                if meanwhile is not None and pause_s > RETRY_FIRST_S:
                    meanwhile(self._connected())
                return self._call_once(request)
            except StoreUnreachable as error:
                if isinstance(error, StoreRefused):
                    self._count()  # it was answered: what follows counts as another call
                self.close()
                self._session = None
                if self._guard is not None:
                    self._guard.broke(str(error))
            if not wanted():
                return None
            self._closing.wait(pause_s)
            pause_s = min(2 * pause_s, self._retry_most_s)
        return None

    def _count(self) -> None:
        self._calls += 1
        self.under_way = self._calls

    def _call_once(self, request: Callable[[Store], T]) -> T:
        if self._guard is not None:
            self._guard.begin()
        answer = request(self._connected())
        if self._guard is not None:
            self._guard.answered()
        return answer

    def _connected(self) -> Store:
        if self._session is None:
            self._session = self._connect()
            if self._closing.is_set():
                self.close()
        return self._session

    def close(self) -> None:
        """End a call that blocks, from another thread. Unless `closing` is set, it is repeated on a new session."""
        session = self._session
        if session is not None:
            session.close()
