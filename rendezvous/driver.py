"""Between the machines and a store: threads that make blocking calls and post what came of them as events.

Nothing here decides. Each thread has a connection of its own, because a call that waits locks its connection, and the
writer's calls have a deadline of ours, because a server that is frozen keeps no time-outs. A call whose
answer never came is *unknown*, not failed: the thread makes a new connection and says the same thing again.

    writer      joins the job, then our own record, and a heartbeat every `beat_s`
    watcher     waits for the coordinator's next word
    reader      (coordinator) waits for nodes' records
    announcer   (coordinator) rounds out, heartbeat counters in
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from . import codec, jobs
from .connection import CallGuard, Connection
from .fields import ForeignBytes
from .listener import Listener
from .records import JobSpec, NodeRecord, Round
from .store import Store, StoreError, StoreForeign

WAIT_S = 10.0
"""Length of one blocking wait. Longer only delays the end of a thread; notifications end it at once."""

OpenStore = Callable[[threading.Event, Callable[[Store], None]], Store]
"""Given what ends the wait and what joins the job: the store, with the job joined."""


class Driver:
    """One agent's threads on one store. `open_store` connects, calls what joins the job with the store, and may take as
    long as it is configured to, or until the event that it is given is set."""

    def __init__(
        self, node: str, name: str, job: JobSpec, open_store: OpenStore, listener: Listener, beat_s: float = 1.0
    ) -> None:
        """`node`: identity of this agent process, `name`: the same for people; `job`: what it was asked for."""
        self._node = node
        self._name = name
        self._job = job
        self._record = b""
        self._open_store = open_store
        self._listener = listener
        self._beat_s = beat_s
        self._records: queue.SimpleQueue[NodeRecord | None] = queue.SimpleQueue()
        self._orders: queue.SimpleQueue[Round | tuple[str, ...] | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._guard = CallGuard(listener.store_went_away, listener.store_came_back)
        self._connections: list[Connection] = []
        self._store: Store | None = None

    def open(self) -> None:
        """Begin; the listener hears `store_opened` or `store_failed`."""
        self._spawn("writer", self._write)

    def publish(self, record: NodeRecord) -> None:
        """Write our record; the listener hears `record_written`."""
        self._records.put(record)

    def announce(self, word: Round) -> None:
        """As the coordinator, publish a round."""
        self._orders.put(word)

    def read_beats(self, nodes: Sequence[str]) -> None:
        """As the coordinator, read heartbeat counters; the listener hears `beats_seen`."""
        self._orders.put(tuple(nodes))

    def close(self) -> None:
        """End the threads, and on the host the serving. A call under way is cut short."""
        self._closing.set()
        self._records.put(None)
        self._orders.put(None)
        self._guard.close()
        for connection in self._connections:
            connection.close()
        if self._store is not None:
            self._store.close()
            self._store.close_host()

    def _spawn(self, role: str, body: Callable[[], None]) -> None:
        threading.Thread(target=self._run, args=(body,), name=f"elastic-agent-{role}", daemon=True).start()

    def _run(self, body: Callable[[], None]) -> None:
        try:
            body()
        except StoreError as error:
            if not self._closing.is_set():
                self._listener.store_failed(error)
        except OSError as error:
            why = f"{error.strerror or error}; this node is short of something (see ulimit -a)"
            self._listener.store_failed(StoreError(f"cannot reach the store: {why}"))
        except Exception as error:  # noqa: BLE001 - a thread that died in silence would leave the agent waiting for ever
            self._listener.store_failed(
                StoreError(f"{type(error).__name__}: {error}; a mistake of ours, please report it")
            )

    # -- the threads --------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        self._store = store = self._open_store(self._closing, self._join)
        if self._closing.is_set():
            # close() came first and found nothing to close; left serving, it would gather a job without a coordinator.
            store.close()
            store.close_host()
            return
        connection = self._connect(store, self._guard)
        self._listener.store_opened(store.hosted)
        self._begin_others(store)
        count = 0
        next_beat = time.monotonic()
        while not self._closing.is_set():
            try:
                record = self._records.get(timeout=max(0.0, next_beat - time.monotonic()))
            except queue.Empty:
                count += 1
                self._beat(connection, count)
                next_beat = max(next_beat + self._beat_s, time.monotonic())
                continue
            if record is not None:
                self._put(connection, record)

    def _join(self, store: Store) -> None:
        mine = jobs.record_of(self._job, self._node, self._name)
        self._record = jobs.join(store, self._job.run_id, mine)

    def _connect(self, store: Store, guard: CallGuard | None = None) -> Connection:
        connection = Connection(store.session, self._closing, guard)
        self._connections.append(connection)
        return connection

    def _begin_others(self, store: Store) -> None:
        self._guard.start()
        self._spawn("watcher", lambda: self._watch(store))
        if store.hosted:
            self._spawn("reader", lambda: self._read(store))
            self._spawn("announcer", lambda: self._give_orders(store))

    def _beat(self, connection: Connection, count: int) -> None:
        connection.call(lambda session: session.beat(self._node, count))

    def _put(self, connection: Connection, record: NodeRecord) -> None:
        value = codec.encode_node(record)

        def put(session: Store) -> bool:
            session.publish_node(self._node, value)
            return True

        if connection.call(put):
            self._listener.record_written(record.seq)

    def _watch(self, store: Store) -> None:
        connection = self._connect(store)
        after = 0
        while not self._closing.is_set():
            found = connection.call(partial(_wait_round, after))
            if found is None:
                continue
            after, value = found
            try:
                self._listener.round_seen(codec.decode_round(value))
            except ForeignBytes as error:
                # The coordinator never says it again, so who ignored it would wait for ever.
                raise StoreForeign(
                    f"the store's key round/{after} holds no announcement of ours: {error}; "
                    "somebody else writes to this store: start the job anew on another port"
                ) from error

    def _read(self, store: Store) -> None:
        connection = self._connect(store)
        cursor = 0
        while not self._closing.is_set():
            found = connection.call(partial(_wait_nodes, cursor, self._beat_s))
            if found is None:
                continue
            cursor, records = found
            for node, value in records.items():
                self._take_in(node, value)

    def _take_in(self, node: str, value: bytes) -> None:
        try:
            record = codec.decode_node(value)
        except ForeignBytes as error:
            self._listener.strange_bytes(
                f"the record of node {node[:80]!r} in the store is not ours and is ignored: {error}"
            )
            return
        if record.node == node:
            self._listener.node_seen(record)
        else:
            self._listener.strange_bytes(
                f"the record under node {node[:80]!r} speaks of {record.node[:80]!r} and is ignored"
            )

    def _give_orders(self, store: Store) -> None:
        connection = self._connect(store)
        while not self._closing.is_set():
            order = self._orders.get()
            if isinstance(order, Round):
                self._say(connection, order)
            elif order is not None:
                counts = connection.call(partial(_read_beats, order))
                if counts is not None:
                    self._listener.beats_seen(dict(counts))

    def _say(self, connection: Connection, word: Round) -> None:
        value = codec.encode_round(word)
        if word.outcome is None:
            connection.call(partial(_announce, word.version, value, word.epoch))
            return
        ended = jobs.with_outcome(self._record, word.outcome)
        if connection.call(partial(_announce_end, word.version, value, word.epoch, ended, self._record)) is False:
            self._listener.strange_bytes(
                f"somebody else changed the store's record of job {self._job.run_id!r}, "
                f"so it does not say how the job ended: {word.outcome.value}"
            )


def _wait_round(after: int, session: Store) -> tuple[int, bytes] | None:
    return session.wait_round(after, WAIT_S)


def _wait_nodes(cursor: int, timeout_s: float, session: Store) -> tuple[int, Mapping[str, bytes]]:
    return session.wait_nodes(cursor, timeout_s)


def _announce(version: int, value: bytes, epoch: int, session: Store) -> None:
    session.announce(version, value, epoch)


def _announce_end(version: int, value: bytes, epoch: int, job: bytes, over: bytes, session: Store) -> bool:
    return session.announce_end(version, value, epoch, job, over)


def _read_beats(nodes: tuple[str, ...], session: Store) -> Mapping[str, int]:
    return session.read_beats(nodes)
