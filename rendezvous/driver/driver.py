"""Between the machines and a store: threads that make blocking calls and post what came of them as events.

Nothing here decides. Each thread has a connection of its own, because a call that waits locks its connection, and the
writer's calls have a deadline of ours, because a server that is frozen keeps no time-outs. A call whose
answer never came is *unknown*, not failed: the thread makes a new connection and says the same thing again.

    writer      joins the job, then our own record, and a heartbeat every `beat_s`
    watcher     waits for the coordinator's next word
    candidate   (on a store that elects) stands for coordinator, and while it leads watches whether it still does

The coordinator's own threads are in `term.py`: on the host for as long as it serves, elsewhere while it leads.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from ..codec import job as jobs
from ..codec import records as codec
from ..coordinator.events import Elected
from ..records import JobSpec, NodeRecord, NodeState, Round
from ..store import FIRST_EPOCH, Store, StoreError
from . import join
from .connection import CallGuard, Connection
from .inbound import look_around, read_round
from .listener import Listener
from .term import WAIT_S, Term
from .threads import OwnHeartbeats, ThreadGroup

OpenStore = Callable[[threading.Event, Callable[[Store], None]], Store]
"""Given what ends the wait and what joins the job: the store, with the job joined."""


class Driver:
    """One agent's threads on one store. `open_store` connects, calls what joins the job with the store, and may take as
    long as it is configured to, or until the event that it is given is set."""

    def __init__(
        self,
        node: str,
        name: str,
        job: JobSpec,
        open_store: OpenStore,
        listener: Listener,
        beat_s: float = 1.0,
        lease_s: float = 5.0,
    ) -> None:
        """`node`: identity of this agent process, `name`: the same for people; `job`: what it was asked for. `lease_s`:
        how long nodes may be silent."""
        self._node = node
        self._name = name
        self._job = job
        self._record = b""
        self._open_store = open_store
        self._listener = listener
        self._beat_s = beat_s
        self._lease_s = lease_s
        self._records: queue.SimpleQueue[NodeRecord | None] = queue.SimpleQueue()
        self._threads = ThreadGroup(listener.store_failed)
        self._guard = CallGuard(listener.store_went_away, listener.store_came_back)
        self._store: Store | None = None
        self._seen = 0
        """Version of the newest word that was heard here."""
        self._stands = True
        """Whether this node would coordinate; not any more once it has said its last word."""
        self._term: Term | None = None

    def open(self) -> None:
        """Begin; the listener hears `store_opened` or `store_failed`."""
        self._threads.spawn("writer", self._write)

    def publish(self, record: NodeRecord) -> None:
        """Write our record; the listener hears `record_written`."""
        if record.state is NodeState.ENDED:
            self._stands = False
        self._records.put(record)

    def announce(self, word: Round) -> None:
        """As the coordinator, publish a round. Of a term that is over, nothing."""
        term = self._term
        if term is not None and term.epoch == word.epoch:
            term.announce(word)

    def read_beats(self, nodes: Sequence[str]) -> None:
        """As the coordinator, read heartbeat counters; the listener hears `beats_seen`."""
        if self._term is not None:
            self._term.read_beats(nodes)

    def retire(self) -> None:
        """As the coordinator of a closed job, once all nodes have ended: clear up; the listener hears `retired`."""
        if self._term is not None:
            self._term.retire()

    def resign(self) -> None:
        """If this node coordinates and another could, let it, rather than have it wait for our lease to run out. Takes
        as long as one call of the store may."""
        store, term = self._store, self._term
        if store is None or term is None or not store.elects:
            return
        with suppress(StoreError):  # our lease ends it then
            session = store.session()
            try:
                session.resign(term.epoch)
            finally:
                session.close()

    def close(self) -> None:
        """End the threads, and on the host the serving. A call under way is cut short."""
        self._threads.ending.set()
        self._records.put(None)
        if self._term is not None:
            self._term.end()
        self._guard.close()
        self._threads.end()
        if self._store is not None:
            self._store.close()
            self._store.close_host()

    # -- the threads --------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        self._store = store = self._open_store(self._threads.ending, self._join)
        if self._threads.ending.is_set():
            # close() came first and found nothing to close; left serving, it would gather a job without a coordinator.
            store.close()
            store.close_host()
            return
        connection = self._threads.connect(store, self._guard)
        own_beats = OwnHeartbeats(self._lease_s / 2)
        self._listener.store_opened(store.hosted)
        self._begin_others(store, own_beats)
        count = 0
        next_beat = time.monotonic()
        while not self._threads.ending.is_set():
            try:
                record = self._records.get(timeout=max(0.0, next_beat - time.monotonic()))
            except queue.Empty:
                count += 1
                self._beat(connection, count)
                own_beats.answered()
                next_beat = max(next_beat + self._beat_s, time.monotonic())
                continue
            if record is not None:
                self._put(connection, record)

    def _join(self, store: Store) -> None:
        mine = jobs.record_of(self._job, self._node, self._name)
        self._record = join.join(store, self._job.run_id, mine)

    def _begin_others(self, store: Store, own_beats: OwnHeartbeats) -> None:
        self._guard.start()
        self._threads.spawn("watcher", lambda: self._watch(store))
        if store.hosted:
            self._begin_term(store, own_beats, 0, Elected(FIRST_EPOCH))
        elif store.elects:
            self._threads.spawn("candidate", lambda: self._stand(store, own_beats))

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
        connection = self._threads.connect(store)
        while not self._threads.ending.is_set():
            found = connection.call(partial(_wait_round, self._seen))
            if found is None:
                continue
            self._seen, value = found
            self._listener.round_seen(read_round(self._seen, value))

    # -- coordinating -------------------------------------------------------------------------------------------------

    def _stand(self, store: Store, own_beats: OwnHeartbeats) -> None:
        connection = self._threads.connect(store)
        while self._stands and not self._threads.ending.is_set():
            epoch = connection.call(partial(_lead, self._node))
            if epoch is not None:
                self._lead(store, connection, own_beats, epoch)

    def _lead(self, store: Store, connection: Connection, own_beats: OwnHeartbeats, epoch: int) -> None:
        if not self._stands:
            connection.call(lambda session: session.resign(epoch))
            return
        looked = connection.call(partial(look_around, epoch, self._record, self._seen, self._listener))
        if looked is None:
            return
        term = self._begin_term(store, own_beats, *looked)
        while connection.call(partial(_wait_deposed, epoch)) is False:
            continue
        if not self._threads.ending.is_set():
            self._term = None
            term.end()
            self._listener.deposed()

    def _begin_term(self, store: Store, own_beats: OwnHeartbeats, cursor: int, found: Elected) -> Term:
        term = Term(store, found.epoch, self._record, self._listener, own_beats, self._beat_s)
        self._term = term
        if self._threads.ending.is_set():
            term.end()  # close() may have come before there was a term to end
        self._listener.elected(found)
        term.begin(cursor)
        return term


def _wait_round(after: int, session: Store) -> tuple[int, bytes] | None:
    return session.wait_round(after, WAIT_S)


def _lead(node: str, session: Store) -> int | None:
    return session.lead(node, WAIT_S)


def _wait_deposed(epoch: int, session: Store) -> bool:
    return session.wait_deposed(epoch, WAIT_S)
