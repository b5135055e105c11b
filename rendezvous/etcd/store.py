"""A job's store in etcd v3 (3.4 and newer), which nobody of us serves: nodes have leases, and elect who coordinates.

Change is a watch, liveness a lease, fencing a compare on the revision that created the leader's key. A lease runs out
only while the cluster works: servers that stand still evict nobody, and a change of leaders begins every lease anew.
The keys: `keys.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ..endpoint import Endpoint
from ..store import Join, StoreFenced, StoreUnreachable
from .client import EtcdClient
from .cluster import Login, Tls
from .election import Election
from .errors import EtcdNoSpace, EtcdRefused
from .keepalive import CONFIRMED, Life
from .keys import PREFIX, EtcdKeys
from .leases import Leases
from .ops import Compare, Delete, Op, Outcome, Put, Read, holds, is_absent, is_unchanged
from .watch_cache import Announced, Follower, Nodes, newest_of

KEEP_VERSIONS = 64
"""Announced versions kept. A reader only ever asks for the newest; the rest serve idempotent repeats."""
RECORD_TTL_S = 24 * 3600.0
"""How long the record of an ended job stays, and all of one whose agents were killed."""
RETRY_FIRST_S, RETRY_MOST_S = 0.2, 2.0
"""Pause between attempts to reach the cluster at the beginning."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job lies, and how long things last there. Times in seconds."""

    run_id: str
    prefix: str = PREFIX
    lease_s: float = 5.0
    """After which a silent node is lost. Its lease in etcd is shorter by half, rounded up, and at least 2 s as servers
    have it; the rest goes into making sure."""
    record_ttl_s: float = RECORD_TTL_S


class _Agent:
    """What all sessions of one agent share."""

    def __init__(self, place: Place) -> None:
        self.keys = EtcdKeys(place.prefix, place.run_id)
        self.leases = Leases(place.lease_s * (1 - 2 * CONFIRMED), place.record_ttl_s, self.keys.job_lease)
        self.written: dict[bytes, int] = {}
        """Record's key to the revision in which we wrote it: a delayed write of ours must not undo a later one."""
        self.joined = False
        self.life = Life(self.leases, place.lease_s)


class EtcdStore:
    """One connection; implements `Store`. Made by `open_etcd`, and by `session`."""

    def __init__(self, client: EtcdClient, agent: _Agent, incarnation: int = 1) -> None:
        self._client = client
        self._agent = agent
        self.use_incarnation(incarnation)

    @property
    def hosted(self) -> bool:
        return False

    @property
    def elects(self) -> bool:
        return True

    @property
    def outlives_jobs(self) -> bool:
        return True

    def session(self) -> EtcdStore:
        return EtcdStore(self._client.session(), self._agent, self._incarnation)

    def close(self) -> None:
        self._client.close()

    def close_host(self) -> None:
        """The cluster is nobody's of us to stop."""

    # -- whose run id it is -------------------------------------------------------------------------------------------

    def write_job(self, value: bytes, over: bytes = b"") -> bytes:
        key = self._keys.job

        def write() -> Outcome:
            put = Put(key, value, self._agent.leases.job(self._client))
            return self._txn([holds(key, over) if over else is_absent(key)], [put], [Read(key)])

        with self._patient():
            done = self._agent.leases.held("", write)
        return value if done.succeeded else _value(done, 0)

    def use_incarnation(self, number: int) -> None:
        self._incarnation = number
        self._keys = self._agent.keys.of(number)
        self._announced = Announced(self._keys)
        self._rounds = Follower(self._client, self._announced)
        self._nodes = Nodes(self._keys)
        self._records = Follower(self._client, self._nodes)
        self._election = Election(self._client, self._agent.leases, self._keys)

    # -- what a node does ---------------------------------------------------------------------------------------------

    def publish_node(self, node: str, value: bytes) -> None:
        key = self._keys.record(node)
        leases, written = self._agent.leases, self._agent.written

        def publish() -> Outcome:
            put = Put(key, value, leases.job(self._client))
            live = Put(self._keys.live(node), b"", leases.node(self._client, node))
            return self._txn([is_unchanged(key, written.get(key, 0))], [put, live], [Read(key)])

        with self._patient():
            while not (done := leases.held(node, publish)).succeeded:
                # An attempt whose answer was lost came first, of this record or of an earlier one.
                items = done.found[0].items
                written[key] = items[0].mod_revision if items else 0
                if items and items[0].value == value:
                    return
            written[key] = done.revision

    def beat(self, node: str, count: int) -> int:
        agent = self._agent
        with self._patient():
            return agent.leases.held(node, lambda: agent.life.sign(self._client, self._keys, node))

    def wait_round(self, after: int, timeout_s: float) -> tuple[int, bytes] | None:
        seen = self._announced
        self._agent.life.heard(seen.version)
        with self._patient():
            found = self._rounds.wait(lambda: (seen.version, seen.value) if seen.version > after else None, timeout_s)
        self._agent.life.heard(seen.version)
        return found

    # -- who coordinates ----------------------------------------------------------------------------------------------

    def lead(self, node: str, timeout_s: float) -> int | None:
        with self._patient():
            return self._election.win(node, time.monotonic() + timeout_s)

    def wait_deposed(self, epoch: int, timeout_s: float) -> bool:
        with self._patient():
            return self._election.wait_over(epoch, time.monotonic() + timeout_s)

    def resign(self, epoch: int) -> None:
        with self._patient():
            self._txn([self._election.leads(epoch)], [Delete(self._keys.leader)])

    # -- what the coordinator does ------------------------------------------------------------------------------------

    def wait_nodes(self, cursor: int, timeout_s: float) -> tuple[int, Mapping[str, bytes]]:
        with self._patient():
            return self._records.wait(lambda: self._nodes.since(cursor), timeout_s) or (cursor, {})

    def read_beats(self, nodes: Sequence[str]) -> Mapping[str, int]:
        with self._patient():
            found = self._client.read(Read(self._keys.lives, prefix=True, keys_only=True))
        living = {item.key for item in found.items}
        return self._agent.life.alive(nodes, {node for node in nodes if self._keys.live(node) in living})

    def announce(self, version: int, value: bytes, epoch: int) -> None:
        with self._patient():
            self._announce(version, value, epoch)

    def announce_end(self, version: int, value: bytes, epoch: int, job: bytes, over: bytes) -> bool:
        with self._patient():
            for before in (over, job):
                lease = self._agent.leases.job(self._client)
                record = Put(self._keys.job, job, lease)
                if self._announce(version, value, epoch, (holds(self._keys.job, before),), (record,)):
                    self._agent.leases.restart_job(self._client)
                    return True
            self._announce(version, value, epoch)
            return False

    def clear(self, epoch: int) -> None:
        with self._patient():
            self._txn([self._election.leads(epoch)], [Delete(self._keys.under, prefix=True)])

    def _announce(
        self, version: int, value: bytes, epoch: int, also: tuple[Compare, ...] = (), puts: tuple[Put, ...] = ()
    ) -> bool:
        """Announce if `also` holds too, and then write `puts` with it; False if only `also` does not.
        Raises StoreFenced."""
        keys = self._keys
        number = b"%d" % version
        fits = holds(keys.newest, b"%d" % (version - 1)) if version > 1 else is_absent(keys.newest)

        def announce() -> Outcome:
            lease = self._agent.leases.job(self._client)
            said = (Put(keys.round(version), value, lease), Put(keys.newest, number, lease))
            old = (Delete(keys.round(version - KEEP_VERSIONS)),) if version > KEEP_VERSIONS else ()
            look = [Read(keys.round(version)), Read(keys.newest), Read(keys.leader), Read(keys.job)]
            return self._txn([self._election.leads(epoch), fits, *also], [*said, *old, *puts], look)

        done = self._agent.leases.held("", announce)
        if done.succeeded:
            return True
        there, newest = _value(done, 0), self._newest(done, 1)
        if there == value and done.found[0].items:
            return not also or _value(done, 3) == puts[0].value
        leaders = done.found[2].items
        if newest >= version:
            raise StoreFenced(
                f"version {version} is taken: another coordinator announced up to {newest}; stop announcing"
            )
        if not leaders or leaders[0].create_revision != epoch:
            who = f"epoch {leaders[0].create_revision}" if leaders else "or none"
            raise StoreFenced(f"epoch {epoch} is over: another node coordinates ({who})")
        if newest != version - 1:
            raise StoreFenced(f"version {version} does not follow {newest}, the newest in etcd; stop announcing")
        return False

    def _newest(self, done: Outcome, which: int) -> int:
        items = done.found[which].items
        return newest_of(self._keys, items[0].value) if items else 0

    def _txn(self, compares: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op] = ()) -> Outcome:
        # Repeatable, all of them: where one was applied whose answer was lost, its compares fail the second time, and
        # what is read instead tells so.
        return self._client.txn(compares, then, otherwise, repeatable=True)

    @contextmanager
    def _patient(self) -> Iterator[None]:
        """Once this node has joined, a cluster that refuses it may change its mind (a role is taken away and given
        back, space runs out and is made): that is a store which is away, and `store_grace` is how long it may be."""
        try:
            yield
        except EtcdRefused as error:
            if not self._agent.joined:
                raise
            raise StoreUnreachable(str(error)) from error


def _value(done: Outcome, which: int) -> bytes:
    """What the key held, of the reads in the transaction the one with this number; empty: it was not there."""
    items = done.found[which].items
    return items[0].value if items else b""


def open_etcd(
    endpoints: Sequence[Endpoint],
    place: Place,
    *,
    tls: Tls | None = None,
    login: Login | None = None,
    connect_timeout_s: float = 60.0,
    on_wait: Callable[[str], None] | None = None,
    cancelled: threading.Event | None = None,
    join: Join | None = None,
) -> EtcdStore:
    """The job's store in the cluster at `endpoints`.

    connect_timeout_s: how long to try to reach it. on_wait: called once, with one line, if it comes to that. cancelled:
    set it, and the wait ends with StoreUnreachable. join: called with the store; what it raises ends the opening, but
    for StoreUnreachable, after which it is tried anew.

    Raises StoreUnreachable if nobody answered in time; a kind of EtcdRefused if the cluster refuses this node;
    StoreForeign if it is no etcd v3; StoreError if grpcio is not installed; ValueError for no endpoints.
    """
    stop, pause_s = cancelled or threading.Event(), RETRY_FIRST_S
    deadline = time.monotonic() + connect_timeout_s
    agent = _Agent(place)
    store = EtcdStore(EtcdClient(endpoints, tls, login), agent)
    try:
        while True:
            try:
                agent.leases.job(store._client)
                if join is not None:
                    join(store)
                agent.joined = True
                return store
            except (StoreUnreachable, EtcdNoSpace) as why:  # room is made by others, as servers are started by others
                reason = str(why)
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise StoreUnreachable(f"gave up on etcd after {connect_timeout_s:g} s: {reason}")
            if on_wait is not None:
                on_wait(f"waiting for etcd: {reason}; giving up in {left_s:.0f} s")
                on_wait = None
            if stop.wait(min(pause_s, left_s)):
                raise StoreUnreachable(f"stopped waiting for etcd on request; last: {reason}")
            pause_s = min(pause_s * 1.5, RETRY_MOST_S)
    except BaseException:
        store.close()
        raise
