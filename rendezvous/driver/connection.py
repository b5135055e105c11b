"""A connection to a store that is replaced when it breaks, and the guard that notices a call that never comes back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from ..store import Store, StoreUnreachable

CALL_LIMIT_S = 5.0
"""A guarded call that has not come back by then means that the store is away. Calls take well under a millisecond."""

RETRY_FIRST_S, RETRY_MOST_S = 0.1, 1.0
"""Pause between attempts to reach a store that refuses, doubled from the first to the most."""

T = TypeVar("T")


class CallGuard:
    """Tells when the store goes away and comes back. Its thread sleeps unless a call is under way, and is not woken for
    each: it looks up where the first would have ended, and by then most are over."""

    def __init__(self, went_away: Callable[[str], None], came_back: Callable[[], None]) -> None:
        self._went_away = went_away
        self._came_back = came_back
        self._changed = threading.Condition()
        self._deadline: float | None = None
        self._sleeps = False
        """Until it is told of a call."""
        self._away = False
        self._closed = False

    def start(self) -> None:
        threading.Thread(target=self._watch, name="elastic-agent-guard", daemon=True).start()

    def begin(self) -> None:
        """A call is about to be made."""
        with self._changed:
            self._deadline = time.monotonic() + CALL_LIMIT_S
            if self._sleeps:
                self._changed.notify()

    def answered(self) -> None:
        """The call came back."""
        with self._changed:
            self._deadline = None
            was_away, self._away = self._away, False
        if was_away:
            self._came_back()

    def broke(self, reason: str) -> None:
        """The call broke, or its time ran out."""
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
                    self._sleeps = self._deadline is None
                    self._changed.wait(None if self._deadline is None else self._deadline - now)
                    continue
            self.broke(f"no answer for {CALL_LIMIT_S:g} s")


class Connection:
    """Calls on one session, repeated on a new one until they are answered. Used by one thread."""

    def __init__(self, connect: Callable[[], Store], closing: threading.Event, guard: CallGuard | None = None) -> None:
        self._connect = connect
        self._closing = closing
        self._guard = guard
        self._session: Store | None = None

    def call(self, ask: Callable[[Store], T]) -> T | None:
        """The answer; None once the driver closes. Raises StoreForeign or StoreFenced: repeating would not help."""
        pause_s = RETRY_FIRST_S
        while not self._closing.is_set():
            try:
                return self._ask(ask)
            except StoreUnreachable as error:
                self.close()
                self._session = None
                if self._guard is not None:
                    self._guard.broke(str(error))
            self._closing.wait(pause_s)
            pause_s = min(2 * pause_s, RETRY_MOST_S)
        return None

    def _ask(self, ask: Callable[[Store], T]) -> T:
        if self._guard is not None:
            self._guard.begin()
        if self._session is None:
            self._session = self._connect()
            if self._closing.is_set():
                self.close()
        answer = ask(self._session)
        if self._guard is not None:
            self._guard.answered()
        return answer

    def close(self) -> None:
        """End a call that waits, from another thread. `closing` must be set before."""
        session = self._session
        if session is not None:
            session.close()
