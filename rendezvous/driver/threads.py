"""Threads on one store that end together, each with a connection of its own, and the timing of heartbeats."""

from __future__ import annotations

import errno
import threading
import time
from bisect import bisect_left
from collections.abc import Callable

from ..store import Store, StoreError
from .connection import RETRY_MOST_S, CallGuard, Connection, patience_s
from .events import Post, StoreFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .fencing import Fencing
    from .succession import Succession

SCARCE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOBUFS})
"""Errors of a call that fails as this process, or its host, has reached a limit."""


class ThreadGroup:
    """Threads named `elastic-agent-<role>`. An exception that ends one is posted, as StoreFailed, unless the group is
    ending."""

    def __init__(self, post: Post, lease_s: float, retry_most_s: float = RETRY_MOST_S) -> None:
        """`retry_most_s`: the longest pause between two attempts to reach the store."""
        self._retry_most_s = retry_most_s
        self._post = post
        self._lease_s = lease_s
        self.ending = threading.Event()
        self._connections: dict[str, tuple[Connection, float]] = {}
        """By the role of its thread: the connection, and how long its calls may take."""

    def spawn(self, role: str, body: Callable[[], None]) -> None:
        threading.Thread(target=self._run, args=(body,), name=f"elastic-agent-{role}", daemon=True).start()

    def connect(self, store: Store, role: str, wait_s: float, guard: CallGuard | None = None) -> Connection:
        """The connection of the thread with this role. `wait_s`: the longest wait of its calls."""
        connection = Connection(store.session, self.ending, guard, self._retry_most_s)
        self._connections[role] = connection, patience_s(wait_s, self._lease_s)
        return connection

    def under_way(self) -> dict[str, tuple[int, float]]:
        """For each thread with a call under way: the number of the call, and how long it may take, in seconds."""
        each = tuple(self._connections.items())
        return {role: (number, most_s) for role, (connection, most_s) in each if (number := connection.under_way)}

    def renew(self, role: str) -> None:
        """Let the thread with this role repeat its call on a new session."""
        if role in self._connections:
            self._connections[role][0].close()

    def renew_others(self, role: str) -> None:
        """As `renew`, for all threads but this one."""
        for other, (connection, _) in tuple(self._connections.items()):
            if other != role:
                connection.close()

    def end(self) -> None:
        """Let the threads exit; a call under way is aborted. Idempotent."""
        self.ending.set()
        for connection, _ in tuple(self._connections.values()):
            connection.close()

    def _run(self, body: Callable[[], None]) -> None:
        try:
            body()
        except StoreError as error:
            self._fail(error)
        except OSError as error:
            scarce = "; this node has run out of a resource (see ulimit -a)" if error.errno in SCARCE else ""
            why = f"{error.strerror or error}{scarce}"
            self._fail(StoreError(f"cannot reach the store: {why}"))
        except Exception as error:  # noqa: BLE001 - unreported, the agent would wait for this thread for ever
            if isinstance(error, RuntimeError) and "start new thread" in str(error):  # pthread_create(3), EAGAIN
                limits = "ulimit -u, or the cgroup's pids.max"
                self._fail(StoreError(f"cannot reach the store: this host refuses another thread; raise {limits}"))
                return
            bug = StoreError(f"{type(error).__name__}: {error}; this is a bug in elastic-agent, please report it")
            bug.__cause__ = error
            self._fail(bug)

    def _fail(self, error: StoreError) -> None:
        if not self.ending.is_set():
            self._post(StoreFailed(error))


LATENCY_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5)
"""Seconds: upper bounds of the counts of answers to heartbeats."""


class OwnHeartbeats:
    """How the store answers this node's heartbeats: since when in time, and how quickly. The writer reports answers;
    any thread may read."""

    def __init__(self, most_s: float) -> None:
        """`most_s`: the longest time between two answers that counts as in time."""
        self._most_s = most_s
        self.latency_s: float | None = None
        """How long the store took to answer the last one; None: it has answered none."""
        self.latencies = [0] * (len(LATENCY_BUCKETS) + 1)
        """How many answers took up to each of LATENCY_BUCKETS, and longer."""
        self.latencies_s = 0.0
        """How long all of them took together."""
        self._state = (time.monotonic(), time.monotonic())
        """Time since which answers have come in time, and time of the last one. One tuple, as threads share it."""

    def answered(self, sent_at: float) -> None:
        """A heartbeat that was sent then was answered now."""
        since, last = self._state
        now = time.monotonic()
        self._state = (now if now - last > self._most_s else since, now)
        self.latency_s = took_s = max(0.0, now - sent_at)
        self.latencies[bisect_left(LATENCY_BUCKETS, took_s)] += 1
        self.latencies_s += took_s

    def age_s(self) -> float:
        """Seconds since the last one was answered, which renewed this node's lease."""
        return max(0.0, time.monotonic() - self._state[1])

    def steady_s(self) -> float:
        """Seconds for which answers have come in time, up to the last one; 0 while one is overdue."""
        since, last = self._state
        return 0.0 if time.monotonic() - last > self._most_s else last - since


class Heart:
    """Sends this node's heartbeats. Used by one thread."""

    def __init__(
        self,
        node: str,
        beat_s: float,
        own_beats: OwnHeartbeats,
        answered: Callable[[int, Store], None],
        fencing: Fencing | None = None,
    ) -> None:
        """`answered` gets what the store says to a heartbeat: as `Store.beat`, and the session, which knows more.
        `fencing` gets when it was sent."""
        self._fencing = fencing
        self.succession: Succession | None = None
        """Gets when each was sent, and what it was answered."""
        self._answered = answered
        self._node = node
        self._beat_s = beat_s
        self._own_beats = own_beats
        self._count = 0
        self._next = time.monotonic()

    def due_in_s(self) -> float:
        """Seconds until the next heartbeat is due."""
        return max(0.0, self._next - time.monotonic())

    def beat(self, session: Store) -> None:
        """Send a heartbeat. Raises StoreError."""
        sent_at = self._fencing.page.now() if self._fencing is not None else 0.0
        began, booted = time.monotonic(), self.succession.now() if self.succession is not None else 0.0
        newest = session.beat(self._node, self._count + 1)
        self._count += 1
        if self._fencing is not None:
            self._fencing.heartbeat_acknowledged(sent_at)
        if self.succession is not None:
            self.succession.acknowledged(session, booted, newest)
        self._own_beats.answered(began)
        self._answered(newest, session)

    def seen_to(self) -> None:
        """The heartbeat that was due was sent, or was not to be sent."""
        self._next = max(self._next + self._beat_s, time.monotonic())
