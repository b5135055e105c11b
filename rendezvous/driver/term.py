"""One term of coordination: the coordinator's threads from its election to the end of its term.

    reader      waits for nodes' records
    announcer   writes announcements, reads heartbeat counters or leases

The store refuses announcements after the end of the term. The announcer exits then, and the driver's candidate thread
reads from the store that the term is over.
"""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from functools import partial

from ..codec import job as jobs
from ..codec import records as codec
from ..codec.fields import ForeignBytes
from ..records import Round
from ..store import Store, StoreError, StoreFenced
from .connection import Connection
from .inbound import read_records
from .listener import Listener
from .threads import OwnHeartbeats, ThreadGroup

WAIT_S = 10.0
"""Length of one blocking wait. Longer only delays the end of a thread; notifications end it at once."""


class Term:
    """Begun once; carries out the effects of the coordinator's machine on the store."""

    def __init__(
        self, store: Store, epoch: int, job: bytes, listener: Listener, own_beats: OwnHeartbeats, reader_wait_s: float
    ) -> None:
        """`job`: the job's record as stored. `reader_wait_s`: the longest wait of the reader on a hosted store, where a
        notification can get lost."""
        self.epoch = epoch
        self._store = store
        self._job = job
        self._listener = listener
        self._own_beats = own_beats
        self._wait_s = WAIT_S if store.elects else reader_wait_s
        self._threads = ThreadGroup(listener.store_failed)
        self._requests: queue.SimpleQueue[Round | tuple[str, ...] | type[Term] | None] = queue.SimpleQueue()

    def begin(self, cursor: int = 0) -> None:
        """Start the threads. `cursor`: up to which the records were read."""
        self._threads.spawn("reader", lambda: self._run_reader(cursor))
        self._threads.spawn("announcer", self._run_announcer)

    def announce(self, announcement: Round) -> None:
        """Write this announcement, after all earlier requests."""
        self._requests.put(announcement)

    def read_beats(self, nodes: Sequence[str]) -> None:
        """Read the heartbeats of these nodes and pass them to the listener's `beats_seen`."""
        self._requests.put(tuple(nodes))

    def retire(self) -> None:
        """After all earlier requests, clear the store and call the listener's `retired`."""
        self._requests.put(Term)

    def under_way(self) -> dict[str, tuple[int, float]]:
        """As `ThreadGroup.under_way`."""
        return self._threads.under_way()

    def end(self) -> None:
        """Let the threads exit. Idempotent."""
        self._threads.end()
        self._requests.put(None)

    # -- the threads --------------------------------------------------------------------------------------------------

    def _run_reader(self, cursor: int) -> None:
        connection = self._threads.connect(self._store, "reader", self._wait_s)
        while not self._threads.ending.is_set():
            found = connection.call(partial(_wait_nodes, cursor, self._wait_s))
            if found is None:
                continue
            cursor, values = found
            for record in read_records(values, self._listener):
                self._listener.node_seen(record)

    def _run_announcer(self) -> None:
        connection = self._threads.connect(self._store, "announcer", 0.0)
        while not self._threads.ending.is_set():
            request = self._requests.get()
            try:
                if isinstance(request, Round):
                    self._write_announcement(connection, request)
                elif isinstance(request, tuple):
                    self._report_beats(connection, request)
                elif request is Term:
                    connection.call(lambda session: session.clear(self.epoch))
                    self._listener.retired()
            except StoreFenced:
                if not self._store.elects or connection.call(partial(_is_deposed, self.epoch)) is False:
                    raise  # the term goes on, so another program wrote that version
                return

    def _write_announcement(self, connection: Connection, announcement: Round) -> None:
        value = _encoded(announcement)
        version, epoch = announcement.version, announcement.epoch
        if announcement.outcome is None:
            connection.call(partial(_announce, version, value, epoch))
            return
        ended = jobs.with_outcome(self._job, announcement.outcome)
        if connection.call(partial(_announce_end, version, value, epoch, ended, self._job)) is False:
            self._listener.foreign_bytes_seen(
                "another program changed the job's record in the store, "
                f"so that record does not show how the job ended: {announcement.outcome.value}"
            )

    def _report_beats(self, connection: Connection, nodes: tuple[str, ...]) -> None:
        counts = connection.call(partial(_read_beats, nodes))
        if counts is not None:
            read = {node: counts.get(node, -1) for node in nodes}
            self._listener.beats_seen(read, self._own_beats.steady_s() if self._store.elects else None)


def _encoded(announcement: Round) -> bytes:
    try:
        return codec.encode_round(announcement)
    except ForeignBytes as error:
        raise StoreError(
            f"round {announcement.number} cannot be announced with {len(announcement.members)} nodes: {error}; "
            "lower --nnodes, or shorten --role"
        ) from error


def _wait_nodes(cursor: int, timeout_s: float, session: Store) -> tuple[int, Mapping[str, bytes]]:
    return session.wait_nodes(cursor, timeout_s)


def _announce(version: int, value: bytes, epoch: int, session: Store) -> None:
    session.announce(version, value, epoch)


def _announce_end(version: int, value: bytes, epoch: int, job: bytes, over: bytes, session: Store) -> bool:
    return session.announce_end(version, value, epoch, job, over)


def _read_beats(nodes: tuple[str, ...], session: Store) -> Mapping[str, int]:
    return session.read_beats(nodes)


def _is_deposed(epoch: int, session: Store) -> bool:
    return session.wait_deposed(epoch, 0.0)
