"""One term of coordination: the coordinator's threads from its election to the end of its term.

    reader      waits for nodes' records
    announcer   writes announcements, reads heartbeat counters or leases

The store refuses announcements after the end of the term. The announcer exits then, and the driver's candidate thread
reads from the store that the term is over.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Mapping
from functools import partial

from ..codec import job as jobs
from ..codec import limits, member_pages
from ..codec import records as codec
from ..codec.fields import ForeignBytes
from ..coordinator.events import Announce, BeatsSeen, HandOver, NodesSeen, ReadBeats, Retire, StoreEffect
from ..records import Crowd, Member, Round, RoundPhase
from ..store import Founding, Store, StoreError, StoreFenced
from .connection import Connection
from .events import OthersEnded, Post
from .inbound import Warn, read_records
from .threads import OwnHeartbeats, ThreadGroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .succession import Succession

WAIT_S = 30.0
"""Length of one blocking wait. Notifications end it at once, and a connection that broke without an error is found by
the heartbeats, which name what there is to receive. Each end and begin costs the store two or three requests of every
node: with 10 s they were a quarter of all that 1,000 nodes at rest ask."""
READER_WAIT_S = 2.0
"""The same for the reader on an electing store, where the end of a wait asks nothing of the servers. Shorter, as a call
that is overdue is found only after it."""


class Term:
    """Begun once; carries out the effects of the coordinator's machine on the store."""

    def __init__(
        self,
        store: Store,
        epoch: int,
        job: bytes,
        post: Post,
        warn: Warn,
        own_beats: OwnHeartbeats,
        reader_wait_s: float,
        lease_s: float,
    ) -> None:
        """`job`: the job's record as stored. `reader_wait_s`: the longest wait of the reader on a hosted store, where a
        notification can get lost. `lease_s`: as the driver's."""
        self.epoch = epoch
        self.succession: Succession | None = None
        """Set where another node may host the store next."""
        self._store = store
        self._job = job
        self._post = post
        self._warn = warn
        self._own_beats = own_beats
        self._wait_s = READER_WAIT_S if store.elects else reader_wait_s
        self._threads = ThreadGroup(post, lease_s)
        self._effects: queue.SimpleQueue[StoreEffect | None] = queue.SimpleQueue()
        self.cursor = 0
        """Up to which the records have been received."""
        self._members: tuple[Member, ...] = ()
        """Those of the newest announcement; the announcer alone uses this, as the next two."""
        self._crowd: Crowd | None = None
        """Where they are, if they are on pages."""
        self._kept: deque[Crowd] = deque()
        """Whose pages this term has written and not deleted, the oldest first."""

    def begin(self, cursor: int = 0) -> None:
        """Start the threads. `cursor`: up to which the records were read."""
        self.cursor = cursor
        self._threads.spawn("reader", self._run_reader)
        self._threads.spawn("announcer", self._run_announcer)

    def carry_out(self, effect: StoreEffect) -> None:
        """Let the announcer do this, after all that it was given before."""
        self._effects.put(effect)

    def under_way(self) -> dict[str, tuple[int, float]]:
        """As `ThreadGroup.under_way`."""
        return self._threads.under_way()

    def renew(self, role: str) -> None:
        """As `ThreadGroup.renew`."""
        self._threads.renew(role)

    def end(self) -> None:
        """Let the threads exit. Idempotent."""
        self._threads.end()
        self._effects.put(None)

    # -- the threads --------------------------------------------------------------------------------------------------

    def _run_reader(self) -> None:
        connection = self._threads.connect(self._store, "reader", self._wait_s)
        while not self._threads.ending.is_set():
            found = connection.call(partial(_wait_nodes, self.cursor, self._wait_s))
            if found is None:
                continue
            self.cursor, values = found
            if records := tuple(read_records(values, self._warn)):
                self._post(NodesSeen(records))

    def _run_announcer(self) -> None:
        connection = self._threads.connect(self._store, "announcer", 0.0)
        while not self._threads.ending.is_set():
            effect = self._effects.get()
            try:
                if isinstance(effect, Announce):
                    self._write_announcement(connection, effect.round)
                elif isinstance(effect, ReadBeats):
                    self._report_beats(connection, effect.nodes)
                elif isinstance(effect, Retire):
                    connection.call(lambda session: session.clear(self.epoch))
                    self._post(OthersEnded())
                elif isinstance(effect, HandOver) and self.succession is not None:
                    self.succession.hand_over((self.epoch, effect.version), self._store, self._post)
                    return
            except StoreFenced:
                if not self._store.elects or self._goes_on(connection):
                    raise  # another program wrote that version
                return

    def _goes_on(self, connection: Connection) -> bool:
        return connection.call(lambda session: session.wait_deposed(self.epoch, 0.0)) is False

    def _write_announcement(self, connection: Connection, announcement: Round) -> None:
        value = _encoded(self._on_pages(connection, announcement))
        version, epoch = announcement.version, announcement.epoch
        if announcement.phase is RoundPhase.RUNNING:
            connection.call(_found)
        if announcement.outcome is None:
            connection.call(lambda session: session.announce(version, value, epoch))
            self._delete_old_pages(connection)
            return
        ended = jobs.with_outcome(self._job, announcement.outcome)
        if connection.call(lambda session: session.announce_end(version, value, epoch, ended, self._job)) is False:
            self._warn(
                "another program changed the job's record in the store, "
                f"so that record does not show how the job ended: {announcement.outcome.value}"
            )

    def _on_pages(self, connection: Connection, announcement: Round) -> Round:
        """The announcement as it is written. Where the members are too many for it, their pages are in the store when
        this returns."""
        if announcement.members is not self._members:
            self._members, self._crowd = announcement.members, None
            if (found := member_pages.paged(announcement.members)) is not None:
                self._crowd = found[0]
                self._write_pages(connection, *found)
        return announcement if self._crowd is None else member_pages.without_members(announcement, self._crowd)

    def _write_pages(self, connection: Connection, crowd: Crowd, pages: Mapping[str, bytes]) -> None:
        if crowd in self._kept:
            self._kept.remove(crowd)
        connection.call(lambda session: session.write_values(pages))
        self._kept.append(crowd)

    def _delete_old_pages(self, connection: Connection) -> None:
        """Only once an announcement was accepted: another coordinator may use pages of the same members by now."""
        while len(self._kept) > limits.PAGES_KEPT:
            old = member_pages.all_pages(self._kept.popleft())
            connection.call(lambda session, old=old: session.delete_values(old))  # type: ignore[misc]

    def _report_beats(self, connection: Connection, nodes: tuple[str, ...]) -> None:
        counts = connection.call(lambda session: session.read_beats(nodes))
        if counts is not None:
            read = {node: counts.get(node, -1) for node in nodes}
            self._post(BeatsSeen(read, self._own_beats.steady_s() if self._store.elects else None))


def _encoded(announcement: Round) -> bytes:
    try:
        return codec.encode_round(announcement)
    except ForeignBytes as error:
        raise StoreError(
            f"round {announcement.number} cannot be announced with {len(announcement.members)} nodes: {error}; "
            "lower --nnodes, or shorten --role"
        ) from error


def _found(session: Store) -> None:
    if isinstance(session, Founding):
        session.found()


def _wait_nodes(cursor: int, timeout_s: float, session: Store) -> tuple[int, Mapping[str, bytes]]:
    return session.wait_nodes(cursor, timeout_s)
