"""Threads on one store that begin together and end together, each on a connection of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..store import Store, StoreError
from .connection import CallGuard, Connection


class Crew:
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
