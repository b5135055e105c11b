"""A connection to a store that is replaced when it breaks, and the guard that notices a call without an answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from ..store import Store, StoreUnreachable

CALL_LIMIT_S = 5.0
"""After this time without an answer to a guarded call the store counts as away. Calls take well under a millisecond."""

RETRY_FIRST_S, RETRY_MOST_S = 0.1, 1.0
"""Pause between attempts to reach the store; doubles from the first to the most."""

T = TypeVar("T")


class CallGuard:
    """Reports when the store goes away and comes back. Its thread is not woken for each call: it wakes at the first
    call's deadline, by which time most calls have been answered, and sleeps while no call is under way."""

    def __init__(self, went_away: Callable[[str], None], came_back: Callable[[], None]) -> None:
        self._went_away = went_away
        self._came_back = came_back
        self._changed = threading.Condition()
        self._deadline: float | None = None
        self._idle = False
        """The thread waits for the next `begin`."""
        self._away = False
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
            was_away, self._away = self._away, False
        if was_away:
            self._came_back()

    def broke(self, reason: str) -> None:
        """The call failed, or its deadline passed. `reason` is for messages."""
        with self._changed:
            self._deadline = None
            first, self._away = not self._away, True
        if first:
            self._went_away(reason)

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

    def __init__(self, connect: Callable[[], Store], closing: threading.Event, guard: CallGuard | None = None) -> None:
        self._connect = connect
        self._closing = closing
        self._guard = guard
        self._session: Store | None = None

    def begin_on(self, session: Store) -> None:
        """Make the first calls on this session, which no other thread uses, so that it is not open for nothing."""
        self._session = session

    def call(self, request: Callable[[Store], T]) -> T | None:
        """The answer; None once `closing` is set. Raises StoreErrors other than StoreUnreachable, which a
        repetition would not change."""
        pause_s = RETRY_FIRST_S
        while not self._closing.is_set():
            try:
                return self._call_once(request)
            except StoreUnreachable as error:
                self.close()
                self._session = None
                if self._guard is not None:
                    self._guard.broke(str(error))
            self._closing.wait(pause_s)
            pause_s = min(2 * pause_s, RETRY_MOST_S)
        return None

    def _call_once(self, request: Callable[[Store], T]) -> T:
        if self._guard is not None:
            self._guard.begin()
        if self._session is None:
            self._session = self._connect()
            if self._closing.is_set():
                self.close()
        answer = request(self._session)
        if self._guard is not None:
            self._guard.answered()
        return answer

    def close(self) -> None:
        """End a call that blocks, from another thread. `closing` must be set before."""
        session = self._session
        if session is not None:
            session.close()
