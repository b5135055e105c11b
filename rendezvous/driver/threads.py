"""Threads on one store that begin together and end together, each on a connection of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ..store import Store, StoreError
from .connection import CallGuard, Connection


class ThreadGroup:
    """Its threads are named `elastic-agent-<role>`; what one of them dies of is told to `failed`, unless it ends."""

    def __init__(self, failed: Callable[[StoreError], None]) -> None:
        self._failed = failed
        self.ending = threading.Event()
        self._connections: list[Connection] = []

    def spawn(self, role: str, body: Callable[[], None]) -> None:
        threading.Thread(target=self._run, args=(body,), name=f"elastic-agent-{role}", daemon=True).start()

    def connect(self, store: Store, guard: CallGuard | None = None) -> Connection:
        connection = Connection(store.session, self.ending, guard)
        self._connections.append(connection)
        return connection

    def end(self) -> None:
        """A call under way is cut short. Idempotent."""
        self.ending.set()
        for connection in self._connections:
            connection.close()

    def _run(self, body: Callable[[], None]) -> None:
        try:
            body()
        except StoreError as error:
            self._fail(error)
        except OSError as error:
            why = f"{error.strerror or error}; this node is short of something (see ulimit -a)"
            self._fail(StoreError(f"cannot reach the store: {why}"))
        except Exception as error:  # noqa: BLE001 - a thread that died in silence would leave the agent waiting for ever
            mistake = StoreError(f"{type(error).__name__}: {error}; a mistake of ours, please report it")
            mistake.__cause__ = error
            self._fail(mistake)

    def _fail(self, error: StoreError) -> None:
        if not self.ending.is_set():
            self._failed(error)


class OwnHeartbeats:
    """Told of each answer by the thread that beats; may be asked by any."""

    def __init__(self, most_s: float) -> None:
        """`most_s`: the longest time between two answers that raises no doubt."""
        self._most_s = most_s
        self._state = (time.monotonic(), time.monotonic())
        """Since when they have come in time, and when the last one came. One value, as threads share it."""

    def answered(self) -> None:
        since, last = self._state
        now = time.monotonic()
        self._state = (now if now - last > self._most_s else since, now)

    def steady_s(self) -> float:
        """Seconds since the last doubt; 0 while an answer is overdue."""
        since, last = self._state
        return 0.0 if time.monotonic() - last > self._most_s else last - since
