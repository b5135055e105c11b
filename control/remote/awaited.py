"""Calls over TCP whose message has not come yet: how many there are, and which of them have waited too long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from ..service.connection import TAKEN_S
from .streams import Clock, Context

AWAITED_MAX = 32
"""Calls at a time. A message comes with its call, so that many wait only where somebody holds them back: with 8, of 16
callers at once one was ended on a host whose processors were busy."""
Message = TypeVar("Message")


class NoMessage(Exception):
    """The call has ended, or was ended here, before its message came. One line."""


class Awaited:
    """Those that wait. From any thread."""

    def __init__(self, most: int = AWAITED_MAX) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._since: dict[Context, float] = {}
        """When each began to wait; the oldest first."""

    def message(self, context: Context, requests: Iterator[Message], now: Clock, begun: Callable[[], None]) -> Message:
        """The message of this call. Where too many wait, the one that has waited longest is ended: a caller that holds
        its message back takes no place of those that send theirs. `begun` is called once `drop_late` sees the call.
        Raises NoMessage."""
        with self._lock:
            late = next(iter(self._since)) if len(self._since) >= self._most else None
            if late is not None:
                del self._since[late]
            self._since[context] = now()
        if late is not None:
            late.cancel()
        try:
            begun()
            for message in requests:
                return message
        finally:
            with self._lock:
                self._since.pop(context, None)
        raise NoMessage("the call has no message; send one")

    def drop_late(self, now_s: float) -> tuple[int, float | None]:
        """End calls whose message does not come. Returns how many, and when to look again: None while there is none."""
        with self._lock:
            known = list(self._since.items())
        late = [each for each, since_s in known if now_s - since_s >= TAKEN_S]
        for context in late:
            context.cancel()
        return len(late), now_s + TAKEN_S if known else None
