"""Between the machines and a store: threads that make blocking calls and pass the answers on as events.

Nothing here decides. Each thread has a connection of its own, because a blocking call locks its connection. The
writer's calls have a deadline kept here, because a frozen server keeps none. The effect of a call without an answer is
*unknown*: it has not failed, so the thread makes a new connection and repeats the same call.

    writer      joins the job; writes this node's record, and a heartbeat every `beat_s` while the node does its part
    watcher     waits for the coordinator's next announcement
    asker       asks the round's witnesses while the store does not answer
    candidate   (electing stores) campaigns to coordinate; while this node leads, waits for the end of its term

The coordinator's threads are in `term.py`: on a host while it serves the store, on an electing store while it leads.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

from ...proto.frozen import replace
from ..codec import job as jobs
from ..coordinator.events import Announce, Deposed, Elected, ProcessesDied, StoreEffect
from ..records import JobSpec, Member, NodeRecord, NodeState, Round
from ..shared_values import SharedValues
from ..store import FIRST_EPOCH, Store, StoreError
from . import join
from .connection import MOVED_S, RETRY_MOST_S, CallGuard, Connection
from .events import (
    LeadershipChanged,
    LoopAsked,
    NeighboursEnded,
    Post,
    RoundSeen,
    StoreCameBack,
    StoreOpened,
    StoreWentAway,
)
from .fencing import Fencing
from .health import Health, LoopWatch, Newest
from .inbound import OwnPlace, Warn, read_round, read_state, with_all_members
from .outbound import Outbound
from .term import WAIT_S, Term
from .threads import Heart, OwnHeartbeats, ThreadGroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .succession import Succession

OpenStore = Callable[[threading.Event, Callable[[Store], None]], Store]
"""Opens the store and joins the job in it. Arguments: an event that ends the wait, and the function that joins."""


class Driver:
    """One agent's threads on one store. `open_store` connects and joins the job; it may block for as long as it is
    configured to, or until its event is set."""

    _found = 0
    """As `newest`, also of an announcement that is read again because this node was away meanwhile."""
    _announced = 0
    """Version of the newest announcement that the store has named with a heartbeat."""
    own_beats: OwnHeartbeats | None = None
    """How the store answers this node's heartbeats; None before it is open."""

    def __init__(
        self,
        node: str,
        name: str,
        job: JobSpec,
        open_store: OpenStore,
        post: Post,
        beat_s: float = 1.0,
        lease_s: float = 5.0,
        *,
        find_addr: Callable[[], str],
        warn: Warn,
        fencing: Fencing | None = None,
        succession: Succession | None = None,
    ) -> None:
        """`node`: identity of this agent process; `name`: the same for people; `job`: its spec. `beat_s`: time between
        heartbeats; `lease_s`: time without a heartbeat after which a node is lost. `find_addr`: how other nodes reach
        this one; called once, by the thread that opened the store. `fencing`: where workers that are cut off
        end. `succession`: where another node may host the store next."""
        self.fencing, self.succession = fencing, succession
        self.held = succession.fd if succession is not None else -1
        self._node, self._name, self._job = node, name, job
        self._job_record = b""
        self._open_store = open_store
        self._post = post
        self._find_addr = find_addr
        self._warn = warn
        self._beat_s, self._lease_s = beat_s, lease_s
        self._outbound = Outbound(node, post)
        self._threads = ThreadGroup(post, lease_s, RETRY_MOST_S if succession is None else MOVED_S)
        self._guard = CallGuard(lambda reason: post(StoreWentAway(reason)), lambda: post(StoreCameBack()))
        self._store: Store | None = None
        self._opened = threading.Event()
        """The store is open, or never will be."""
        self.newest = 0
        """Version of the newest announcement received here."""
        self._recorded: int | None = None
        """Cursor of the newest record that the store has named with a heartbeat; None: it names none."""
        self._well = threading.Event()
        """This node does its part (`health.py`); while it does not, it sends no heartbeat and does not coordinate."""
        self._well.set()
        self._host_trouble = ""
        """Why the node that hosts the store counts as gone; empty if it does not."""
        self._resigned = 0
        """The last epoch whose term this node ended as it did not do its part."""
        self._may_lead = True
        """Whether this node may coordinate; False once it publishes that it has ended."""
        self._term: Term | None = None
        self._asked: Round | None = None
        """The last large round that somebody asked for all members of, with these."""

    def open(self) -> None:
        """Start to open the store; StoreOpened or StoreFailed follows."""
        self._threads.spawn("writer", self._run_writer)

    def publish(self, record: NodeRecord) -> None:
        """Write this node's record; RecordWritten follows."""
        if record.state is NodeState.ENDED:
            self._may_lead = False
        for part in (self.fencing, self.succession):
            record = record if part is None else part.recorded(record)
        self._outbound.put(record)

    def carry_out(self, effect: StoreEffect) -> None:
        """As the coordinator, do this on the store. Does nothing if the term is over, as an announcement's may be while
        the next has begun."""
        term = self._term
        if term is not None and not (isinstance(effect, Announce) and effect.round.epoch != term.epoch):
            term.carry_out(effect)

    def values(self) -> SharedValues | None:
        """A further session, for values that nodes share beside their records; may be called from any thread. Blocks
        until the store is open. None: the driver is closed, or its store has no such values. Raises StoreError."""
        self._opened.wait()
        store = self._store
        if store is None or self._threads.ending.is_set() or not isinstance(store, SharedValues):
            return None
        session = store.session()
        return session if isinstance(session, SharedValues) else None

    def members(self, of: Round) -> tuple[Member, ...]:
        """All members of this announcement; where this node does not hold them, they are read from the store. May be
        called from any thread but the agent's, and blocks. Raises StoreError."""
        store = self._store
        if of.crowd is None or store is None:
            return of.members
        found = self._asked
        if found is None or found.crowd != of.crowd:
            session = store.session()
            try:
                self._asked = found = replace(with_all_members(session, of), crowd=of.crowd)
            finally:
                session.close()
        return found.members

    def resign(self) -> None:
        """If this node coordinates and another could, end the term, so that no node waits for the lease to run out.
        Blocks for one call of the store; not while that does not answer, which would take seconds for nothing."""
        store, term = self._store, self._term
        if store is None or term is None or not store.elects or self._guard.broken:
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
        self._well.set()
        self._opened.set()
        self._outbound.end()
        if self._term is not None:
            self._term.end()
        self._guard.close()
        self._threads.end()
        for part in (self.fencing, self.succession):
            if part is not None:
                part.close()
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
        connection = self._threads.connect(store, "writer", 0.0, self._guard)
        connection.begin_on(store)  # which else would stay open for nothing
        self.own_beats = own_beats = OwnHeartbeats(self._lease_s / 2)
        self._opened.set()
        secret = jobs.decode_job(self._job_record).secret
        if self.fencing is not None:
            self.fencing.open(secret)
        if self.succession is not None:
            renew = partial(self._threads.renew_others, "candidate")
            serve = partial(self._take_over, store, own_beats)
            self.succession.on_died = lambda node: self._post(ProcessesDied(frozenset({node})))
            self.succession.open(store, secret, serve, self._threads.spawn, renew)
        self._post(StoreOpened(store.hosted, self._find_addr()))
        self._start_threads(store, own_beats)
        loop = LoopWatch(lambda answer: self._post(LoopAsked(answer)), self._beat_s)
        health = Health(loop, self._lease_s, self._beat_s)
        heart = Heart(self._node, self._beat_s, own_beats, partial(self._beat_answered, store, health), self.fencing)
        heart.succession = self.succession

        def resign(epoch: int) -> None:
            connection.call(lambda session: session.resign(epoch))

        def is_well() -> bool:  # also between two heartbeats: a node that goes on again asks for a place at once
            return self._well.is_set() or self._does_its_part(store, health, resign)

        while not self._threads.ending.is_set():
            try:
                record = self._outbound.take(heart.due_in_s(), is_well)
            except queue.Empty:
                # A heartbeat whose answer is lost may have arrived: it is repeated only while the node does its part.
                if self._does_its_part(store, health, resign):
                    connection.call(heart.beat, wanted=lambda: self._does_its_part(store, health, resign))
                heart.seen_to()
                continue
            if record is not None:
                self._outbound.write(connection, record, partial(self._beat_between_tries, store, health, heart))

    def _join(self, store: Store) -> None:
        self._job_record = join.join(store, self._job, self._node, self._name)

    def _start_threads(self, store: Store, own_beats: OwnHeartbeats) -> None:
        self._guard.start()
        self._threads.spawn("watcher", lambda: self._run_watcher(store))
        if (fencing := self.fencing) is not None:
            fencing.on_ended = lambda names: self._post(NeighboursEnded(names))
            self._threads.spawn("asker", lambda: fencing.watch(self._threads.ending))
        if store.hosted:
            self._begin_term(store, own_beats, 0, Elected(FIRST_EPOCH))
        elif store.elects:
            self._threads.spawn("candidate", lambda: self._run_candidate(store, own_beats))

    def _does_its_part(self, store: Store, health: Health, resign: Callable[[int], object]) -> bool:
        """Whether this node may send a heartbeat. If not, it does not coordinate either: `resign` gets the epoch."""
        term = self._term
        # While the writer itself gets no answers, the store is away for all: that says nothing of any one thread.
        awaited, calls = ({}, {}) if self._guard.broken else (self._awaited(term), self._under_way(term))
        not_receiving = health.why_not_receiving(awaited, calls)
        self._guard.noticed(not_receiving or self._host_trouble)
        self._renew(health.to_renew, term)
        if not health.loop_stands() and not not_receiving:
            self._well.set()
            return True
        was_well = self._well.is_set()
        self._well.clear()
        if term is not None and store.elects and self._resigned != term.epoch:
            resign(term.epoch)
            self._resigned = term.epoch  # only now: a resignation that raises is repeated at the next look
        elif was_well and term is None:
            self._threads.renew("candidate")  # ends a campaign under way, which this node might win
        return False

    def _under_way(self, term: Term | None) -> dict[str, tuple[int, float]]:
        """As `ThreadGroup.under_way`, of all threads but the writer."""
        calls = {**self._threads.under_way(), **(term.under_way() if term is not None else {})}
        calls.pop("writer", None)
        return calls

    def _awaited(self, term: Term | None) -> dict[str, Newest]:
        """What this node's threads wait for, by thread."""
        begun = self._outbound.begun.is_set()
        awaited = {"watcher": Newest("announcement", self._found, self._announced)} if begun else {}
        if term is not None and self._recorded is not None:
            awaited["reader"] = Newest("notification", term.cursor, self._recorded)
        return awaited

    def _renew(self, roles: Iterable[str], term: Term | None) -> None:
        for role in roles:
            self._threads.renew(role)
            if term is not None:
                term.renew(role)

    def _beat_between_tries(self, store: Store, health: Health, heart: Heart, session: Store) -> None:
        """As between two records, on the session that is about to try a refused record again."""
        if heart.due_in_s():
            return
        if self._does_its_part(store, health, session.resign):
            heart.beat(session)
        heart.seen_to()

    def _beat_answered(self, store: Store, health: Health, newest: int, session: Store) -> None:
        """What the store said to a heartbeat on this session: the newest version there is, and more."""
        self._announced = max(self._announced, newest)
        self._recorded = session.newest_record
        stands = health.host_stands(None if store.hosted else session.host_count, newest)
        self._host_trouble = f"no heartbeat of {self._host_name(store)} for {self._lease_s:g} s" if stands else ""
        self._guard.noticed(self._host_trouble)

    def _host_name(self, store: Store) -> str:
        """The node that hosts the store and coordinates. Where the store ends with it, it created the job's record."""
        what = "the node that hosts it and coordinates the job"
        name = self.succession.host_name if self.succession is not None else ""
        return what if store.outlives_jobs else f"{name or jobs.decode_job(self._job_record).name}, {what}"

    def _run_watcher(self, store: Store) -> None:
        connection = self._threads.connect(store, "watcher", WAIT_S)
        place = OwnPlace(self._node)
        fencing = self.fencing
        self._outbound.begun.wait()
        if fencing is not None:
            fencing.wait_current()  # what is read before the first heartbeat would be read again
        while not self._threads.ending.is_set():
            generation = 0 if fencing is None else fencing.generation()
            found = connection.call(lambda session: session.wait_round(self.newest, WAIT_S))
            if found is None:
                continue
            self._found = max(self._found, found[0])
            seen = connection.call(partial(place.read, read_round(*found)))
            if seen is None:
                continue
            if fencing is not None:
                if not fencing.is_current(generation, seen):
                    fencing.wait_current()  # behind a gap it may be out of date: it is read again
                    continue
                fencing.follow(seen, generation)
            self.newest = seen.version
            if self.succession is not None:
                self.succession.follow(seen)
            self._post(RoundSeen(seen))

    # -- coordinating -------------------------------------------------------------------------------------------------

    def _run_candidate(self, store: Store, own_beats: OwnHeartbeats) -> None:
        connection = self._threads.connect(store, "candidate", WAIT_S)
        while self._may_lead and not self._threads.ending.is_set():
            self._well.wait(WAIT_S)  # not as a part of the call, which would seem to get no answer in time
            epoch = connection.call(self._campaign)
            if epoch is not None:
                self._serve_term(store, connection, own_beats, epoch)

    def _campaign(self, session: Store) -> int | None:
        return session.lead(self._node, WAIT_S) if self._well.is_set() else None

    def _serve_term(self, store: Store, connection: Connection, own_beats: OwnHeartbeats, epoch: int) -> None:
        if not (self._may_lead and self._well.is_set()):
            connection.call(lambda session: session.resign(epoch))
            return
        state = connection.call(partial(read_state, epoch, self._job_record, self.newest, self._warn))
        if state is None:
            return
        term = self._begin_term(store, own_beats, *state)
        while connection.call(lambda session: session.wait_deposed(epoch, WAIT_S)) is False:
            continue
        if not self._threads.ending.is_set():
            self._term = None
            term.end()
            self._post(Deposed())
            self._post(LeadershipChanged(leads=False))

    def _take_over(self, store: Store, own_beats: OwnHeartbeats, epoch: int) -> None:
        """Host the store from here on: this node was elected."""
        self._recorded = None
        connection = self._threads.connect(store, "candidate", self._lease_s)
        if self.succession is not None:
            state = self.succession.take_over(epoch, store, connection, self._job_record, self._warn)
            if state is not None:
                self._begin_term(store, own_beats, *state)

    def _begin_term(self, store: Store, own_beats: OwnHeartbeats, cursor: int, found: Elected) -> Term:
        term = Term(
            store, found.epoch, self._job_record, self._post, self._warn, own_beats, self._beat_s, self._lease_s
        )
        self._term, term.succession = term, self.succession
        if self.fencing is not None and not store.elects:
            self.fencing.host()
        if self._threads.ending.is_set():
            term.end()  # close() may have come before there was a term
        self._post(found)
        self._post(LeadershipChanged(leads=True, hosting=store.hosted))
        term.begin(cursor)
        return term
