"""One term of coordination: what the coordinator's threads do between its election and its end.

    reader      waits for nodes' records
    announcer   rounds out, heartbeat counters or leases in

What a term that is over still says, the store refuses; then its announcer falls silent, and whoever began the term
learns of its end from the store.
"""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from functools import partial

from ..codec import job as jobs
from ..codec import records as codec
from ..records import Round
from ..store import Store, StoreFenced
from .connection import Connection
from .inbound import read_records
from .listener import Listener
from .threads import OwnHeartbeats, ThreadGroup

WAIT_S = 10.0
"""Length of one blocking wait. Longer only delays the end of a thread; notifications end it at once."""


class Term:
    """Begun once; its orders come from the coordinator's machine."""

    def __init__(
        self, store: Store, epoch: int, job: bytes, listener: Listener, own_beats: OwnHeartbeats, look_s: float
    ) -> None:
        """`job`: the job's record as we know it to be stored. `look_s`: how long the reader waits at most, where a
        notification can get lost."""
        self.epoch = epoch
        self._store = store
        self._job = job
        self._listener = listener
        self._own_beats = own_beats
        self._wait_s = WAIT_S if store.elects else look_s
        self._threads = ThreadGroup(listener.store_failed)
        self._orders: queue.SimpleQueue[Round | tuple[str, ...] | type[Term] | None] = queue.SimpleQueue()

    def begin(self, cursor: int = 0) -> None:
        """`cursor`: up to where the records were read."""
        self._threads.spawn("reader", lambda: self._read(cursor))
        self._threads.spawn("announcer", self._obey)

    def announce(self, word: Round) -> None:
        self._orders.put(word)

    def read_beats(self, nodes: Sequence[str]) -> None:
        self._orders.put(tuple(nodes))

    def retire(self) -> None:
        """After all that was ordered before: clear up; the listener hears `retired`."""
        self._orders.put(Term)

    def end(self) -> None:
        """Idempotent."""
        self._threads.end()
        self._orders.put(None)

    # -- the threads --------------------------------------------------------------------------------------------------

    def _read(self, cursor: int) -> None:
        connection = self._threads.connect(self._store)
        while not self._threads.ending.is_set():
            found = connection.call(partial(_wait_nodes, cursor, self._wait_s))
            if found is None:
                continue
            cursor, values = found
            for record in read_records(values, self._listener):
                self._listener.node_seen(record)

    def _obey(self) -> None:
        connection = self._threads.connect(self._store)
        while not self._threads.ending.is_set():
            order = self._orders.get()
            try:
                if isinstance(order, Round):
                    self._say(connection, order)
                elif isinstance(order, tuple):
                    self._look(connection, order)
                elif order is Term:
                    connection.call(lambda session: session.clear(self.epoch))
                    self._listener.retired()
            except StoreFenced:
                if not self._store.elects or connection.call(partial(_is_over, self.epoch)) is False:
                    raise  # somebody else writes to this store
                return

    def _say(self, connection: Connection, word: Round) -> None:
        value = codec.encode_round(word)
        if word.outcome is None:
            connection.call(partial(_announce, word.version, value, word.epoch))
            return
        ended = jobs.with_outcome(self._job, word.outcome)
        if connection.call(partial(_announce_end, word.version, value, word.epoch, ended, self._job)) is False:
            self._listener.strange_bytes(
                "somebody else changed the job's record in the store, "
                f"so it does not say how the job ended: {word.outcome.value}"
            )

    def _look(self, connection: Connection, nodes: tuple[str, ...]) -> None:
        counts = connection.call(partial(_read_beats, nodes))
        if counts is not None:
            read = {node: counts.get(node, -1) for node in nodes}
            self._listener.beats_seen(read, self._own_beats.steady_s() if self._store.elects else None)


def _wait_nodes(cursor: int, timeout_s: float, session: Store) -> tuple[int, Mapping[str, bytes]]:
    return session.wait_nodes(cursor, timeout_s)


def _announce(version: int, value: bytes, epoch: int, session: Store) -> None:
    session.announce(version, value, epoch)


def _announce_end(version: int, value: bytes, epoch: int, job: bytes, over: bytes, session: Store) -> bool:
    return session.announce_end(version, value, epoch, job, over)


def _read_beats(nodes: tuple[str, ...], session: Store) -> Mapping[str, int]:
    return session.read_beats(nodes)


def _is_over(epoch: int, session: Store) -> bool:
    return session.wait_deposed(epoch, 0.0)
