"""Between the machines and a store: threads that make blocking calls and pass the answers on as events.

Nothing here decides. Each thread has a connection of its own, because a blocking call locks its connection. The
writer's calls have a deadline kept here, because a frozen server keeps none. The effect of a call without an answer is
*unknown*: it has not failed, so the thread makes a new connection and repeats the same call.

    writer      joins the job; writes this node's record, and a heartbeat every `beat_s`
    watcher     waits for the coordinator's next announcement
    candidate   (electing stores) campaigns to coordinate; while this node leads, waits for the end of its term

The coordinator's threads are in `term.py`: on a host while it serves the store, on an electing store while it leads.
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
from .inbound import read_round, read_state
from .listener import Listener
from .term import WAIT_S, Term
from .threads import OwnHeartbeats, ThreadGroup

OpenStore = Callable[[threading.Event, Callable[[Store], None]], Store]
"""Opens the store and joins the job in it. Arguments: an event that ends the wait, and the function that joins."""


class Driver:
    """One agent's threads on one store. `open_store` connects and joins the job; it may block for as long as it is
    configured to, or until its event is set."""

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
        """`node`: identity of this agent process; `name`: the same for people; `job`: its spec. `beat_s`: time between
        heartbeats; `lease_s`: time without a heartbeat after which a node is lost."""
        self._node = node
        self._name = name
        self._job = job
        self._job_record = b""
        self._open_store = open_store
        self._listener = listener
        self._beat_s = beat_s
        self._lease_s = lease_s
        self._unwritten: queue.SimpleQueue[NodeRecord | None] = queue.SimpleQueue()
        self._threads = ThreadGroup(listener.store_failed)
        self._guard = CallGuard(listener.store_went_away, listener.store_came_back)
        self._store: Store | None = None
        self._newest = 0
        """Version of the newest announcement received here."""
        self._may_lead = True
        """Whether this node may coordinate; False once it publishes that it has ended."""
        self._term: Term | None = None

    def open(self) -> None:
        """Start to open the store; the listener's `store_opened` or `store_failed` follows."""
        self._threads.spawn("writer", self._run_writer)

    def publish(self, record: NodeRecord) -> None:
        """Write this node's record; the listener's `record_written` follows."""
        if record.state is NodeState.ENDED:
            self._may_lead = False
        self._unwritten.put(record)

    def announce(self, announcement: Round) -> None:
        """As the coordinator, write an announcement. No effect if its term is over."""
        term = self._term
        if term is not None and term.epoch == announcement.epoch:
            term.announce(announcement)

    def read_beats(self, nodes: Sequence[str]) -> None:
        """As the coordinator, read heartbeats; the listener's `beats_seen` follows."""
        if self._term is not None:
            self._term.read_beats(nodes)

    def retire(self) -> None:
        """As the coordinator of a closed job whose nodes have all ended, clear the store; the listener's `retired`
        follows."""
        if self._term is not None:
            self._term.retire()

    def resign(self) -> None:
        """If this node coordinates and another could, end the term, so that no node waits for the lease to run out.
        Blocks for one call of the store."""
        store, term = self._store, self._term
        if store is None or term is None or not store.elects:
            return
        with suppress(StoreError):  # the term ends with the lease instead
            session = store.session()
            try:
                session.resign(term.epoch)
            finally:
                session.close()

    def close(self) -> None:
        """End the threads, and on the host stop serving. A call under way is aborted."""
        self._threads.ending.set()
        self._unwritten.put(None)
        if self._term is not None:
            self._term.end()
        self._guard.close()
        self._threads.end()
        if self._store is not None:
            self._store.close()
            self._store.close_host()

    # -- the threads --------------------------------------------------------------------------------------------------

    def _run_writer(self) -> None:
        self._store = store = self._open_store(self._threads.ending, self._join)
        if self._threads.ending.is_set():
            # close() came first and found no store; left serving, it would let nodes join a job without a coordinator.
            store.close()
            store.close_host()
            return
        connection = self._threads.connect(store, self._guard)
        if not store.elects:
            connection.begin_on(store)  # else the host would hold a connection of each node that nobody uses
        own_beats = OwnHeartbeats(self._lease_s / 2)
        self._listener.store_opened(store.hosted)
        self._start_threads(store, own_beats)
        count = 0
        next_beat = time.monotonic()
        while not self._threads.ending.is_set():
            try:
                record = self._unwritten.get(timeout=max(0.0, next_beat - time.monotonic()))
            except queue.Empty:
                count += 1
                self._beat(connection, count)
                own_beats.answered()
                next_beat = max(next_beat + self._beat_s, time.monotonic())
                continue
            if record is not None:
                self._write_record(connection, record)

    def _join(self, store: Store) -> None:
        mine = jobs.new_record(self._job, self._node, self._name)
        self._job_record = join.join(store, self._job.run_id, mine)

    def _start_threads(self, store: Store, own_beats: OwnHeartbeats) -> None:
        self._guard.start()
        self._threads.spawn("watcher", lambda: self._run_watcher(store))
        if store.hosted:
            self._begin_term(store, own_beats, 0, Elected(FIRST_EPOCH))
        elif store.elects:
            self._threads.spawn("candidate", lambda: self._run_candidate(store, own_beats))

    def _beat(self, connection: Connection, count: int) -> None:
        connection.call(lambda session: session.beat(self._node, count))

    def _write_record(self, connection: Connection, record: NodeRecord) -> None:
        value = codec.encode_node(record)

        def publish(session: Store) -> bool:
            session.publish_node(self._node, value)
            return True

        if connection.call(publish):
            self._listener.record_written(record.seq)

    def _run_watcher(self, store: Store) -> None:
        connection = self._threads.connect(store)
        while not self._threads.ending.is_set():
            found = connection.call(partial(_wait_round, self._newest))
            if found is None:
                continue
            self._newest, value = found
            self._listener.round_seen(read_round(self._newest, value))

    # -- coordinating -------------------------------------------------------------------------------------------------

    def _run_candidate(self, store: Store, own_beats: OwnHeartbeats) -> None:
        connection = self._threads.connect(store)
        while self._may_lead and not self._threads.ending.is_set():
            epoch = connection.call(partial(_campaign, self._node))
            if epoch is not None:
                self._serve_term(store, connection, own_beats, epoch)

    def _serve_term(self, store: Store, connection: Connection, own_beats: OwnHeartbeats, epoch: int) -> None:
        if not self._may_lead:
            connection.call(lambda session: session.resign(epoch))
            return
        state = connection.call(partial(read_state, epoch, self._job_record, self._newest, self._listener))
        if state is None:
            return
        term = self._begin_term(store, own_beats, *state)
        while connection.call(partial(_wait_deposed, epoch)) is False:
            continue
        if not self._threads.ending.is_set():
            self._term = None
            term.end()
            self._listener.deposed()

    def _begin_term(self, store: Store, own_beats: OwnHeartbeats, cursor: int, found: Elected) -> Term:
        term = Term(store, found.epoch, self._job_record, self._listener, own_beats, self._beat_s)
        self._term = term
        if self._threads.ending.is_set():
            term.end()  # close() may have come before there was a term
        self._listener.elected(found)
        term.begin(cursor)
        return term


def _wait_round(after: int, session: Store) -> tuple[int, bytes] | None:
    return session.wait_round(after, WAIT_S)


def _campaign(node: str, session: Store) -> int | None:
    return session.lead(node, WAIT_S)


def _wait_deposed(epoch: int, session: Store) -> bool:
    return session.wait_deposed(epoch, WAIT_S)
