"""A job's store in etcd v3 (3.4 and newer). No node hosts it: each node has a lease, and the nodes elect a coordinator.

Changes come by watches, liveness is a lease, fencing a compare of the revision that created the leader key. A lease
expires only while the cluster works: no node is lost because all servers stand still, and a new etcd leader restarts
every lease. The keys are in `keys.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from ...proto.frozen import dataclass
from ..endpoint import Endpoint
from ..store import Join, StoreFenced, StoreRefused, StoreUnreachable
from .client import EtcdClient
from .credentials import Login, Tls
from .election import Election
from .errors import EtcdNoSpace, EtcdRefused
from .keepalive import CONFIRM_FRACTION, Keepalive
from .keys import PREFIX, EtcdKeys
from .leases import Leases
from .ops import Compare, Delete, Found, Op, Outcome, Put, Read, holds, is_absent, is_unchanged
from .watch_cache import NewestAnnouncement, NodeRecords, Values, WatchCache, newest_record, parse_version

KEEP_VERSIONS = 64
"""Announced versions kept. Readers read the newest only; the others make repeated announcements idempotent."""
VALUES_AT_ONCE = 64
"""Of a transaction; etcd allows 128 by default."""
RECORD_TTL_S = 24 * 3600.0
"""Default TTL of the job's lease: how long an ended job's record stays, or all keys of a job whose agents were
killed."""
RETRY_FIRST_S, RETRY_MOST_S = 0.2, 2.0
"""Pause between attempts to reach the cluster at the start: the first, and the longest."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where a job's keys are, and how long they last. Times in seconds."""

    run_id: str
    prefix: str = PREFIX
    lease_s: float = 5.0
    """A node whose last heartbeat is older is lost. Its lease in etcd is half as long, rounded up, and at least 2 s on
    servers with default settings; the other half covers the confirmation that it is gone."""
    record_ttl_s: float = RECORD_TTL_S


class _Shared:
    """What all sessions of one agent share."""

    def __init__(self, location: Location) -> None:
        self.keys = EtcdKeys(location.prefix, location.run_id)
        self.leases = Leases(location.lease_s * (1 - 2 * CONFIRM_FRACTION), location.record_ttl_s, self.keys.job_lease)
        self.written: dict[bytes, int] = {}
        """Record's key to the revision at which this agent wrote it: a delayed write must not undo a later one."""
        self.joined = False
        self.keepalive = Keepalive(self.leases, location.lease_s)
        self.newest_record: int | None = None
        """The revision of the newest record, as of the last reading of the heartbeats."""
        self.leaders: dict[bytes, Found] = {}
        """What was found at the leader key as this node joined, until it campaigns."""


class EtcdStore:
    """One connection; implements `Store`. Use `open_etcd` and `session`."""

    def __init__(self, client: EtcdClient, shared: _Shared, incarnation: int = 1) -> None:
        self._client = client
        self._shared = shared
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
        return EtcdStore(self._client.session(), self._shared, self._incarnation)

    def close(self) -> None:
        self._client.close()

    def close_host(self) -> None:
        """No-op: agents do not run the etcd servers."""

    # -- the job's record --------------------------------------------------------------------------------------------

    def write_job(self, value: bytes, over: bytes = b"") -> bytes:
        key = self._keys.job

        def write() -> Outcome:
            put = Put(key, value, self._shared.leases.job(self._client))
            return self._txn([holds(key, over) if over else is_absent(key)], [put], [Read(key)])

        with self._refusals_as_outage():
            # Read first: servers write a transaction with puts to their disks also if its compares fail.
            if not over and (stored := self._read_job()):
                return stored
            done = self._shared.leases.with_leases("", write)
        return value if done.succeeded else _value(done, 0)

    def _read_job(self) -> bytes:
        """The job's record, empty if there is none, and with it the key of who leads, for the campaign."""
        keys, what = self._keys, "reading of the job's record"
        job, leader = self._client.txn([], [Read(keys.job), Read(keys.leader)], repeatable=True, what=what).found
        self._shared.leaders[keys.leader] = leader
        for item in job.items:
            self._shared.leases.found_job(self._client, is_led=bool(leader.items) and item.lease == keys.job_lease)
        return job.items[0].value if job.items else b""

    def use_incarnation(self, number: int) -> None:
        self._incarnation = number
        self._keys = self._shared.keys.for_incarnation(number)
        self._announcement = NewestAnnouncement(self._keys, lambda: self._shared.keepalive.announced)
        self._round_watch = WatchCache(self._client, self._announcement)
        self._node_records = NodeRecords(self._keys)
        self._node_watch = WatchCache(self._client, self._node_records)
        self._election = Election(self._client, self._shared.leases, self._keys)

    # -- what a node does ---------------------------------------------------------------------------------------------

    def publish_node(self, node: str, value: bytes) -> None:
        key = self._keys.record(node)
        leases, written, keepalive = self._shared.leases, self._shared.written, self._shared.keepalive

        def publish() -> Outcome:
            put, lease = Put(key, value, leases.job(self._client)), leases.node(self._client, node)
            compares = [is_unchanged(key, written.get(key, 0))]
            then: list[Op] = [put, Read(self._keys.newest_round)]
            if keepalive.has_key(node, lease):  # a change less for the servers to write, and for the coordinator
                compares.append(Compare(self._keys.live(node), "lease", "=", lease))
            else:
                then.append(Put(self._keys.live(node), b"", lease))
            done = self._txn(compares, then, [Read(key)])
            if done.succeeded:
                keepalive.published(node, lease, self._newest_version(done, 0))
            else:
                keepalive.forget_key(node)
            return done

        with self._refusals_as_outage():
            while not (done := leases.with_leases(node, publish)).succeeded:
                # An earlier attempt, of this record or of one before it, was applied though its answer was lost; or
                # another program has deleted the node's key.
                items = done.found[0].items
                written[key] = items[0].mod_revision if items else 0
                if items and items[0].value == value:
                    return
            written[key] = done.revision

    def beat(self, node: str, count: int) -> int:
        shared = self._shared
        with self._refusals_as_outage():
            return shared.leases.with_leases(node, lambda: shared.keepalive.renew(self._client, self._keys, node))

    @property
    def host_count(self) -> int | None:
        return None

    @property
    def newest_record(self) -> int | None:
        return self._shared.newest_record

    def wait_round(self, after: int, timeout_s: float) -> tuple[int, bytes] | None:
        newest = self._announcement
        self._shared.keepalive.update_newest(newest.version)
        with self._refusals_as_outage():
            found = self._round_watch.wait(
                lambda: (newest.version, newest.value) if newest.version > after else None, timeout_s
            )
        self._shared.keepalive.update_newest(newest.version)
        return found

    # -- election ---------------------------------------------------------------------------------------------------

    def lead(self, node: str, timeout_s: float) -> int | None:
        with self._refusals_as_outage():
            seen = self._shared.leaders.pop(self._keys.leader, None)
            return self._election.campaign(node, time.monotonic() + timeout_s, seen)

    def wait_deposed(self, epoch: int, timeout_s: float) -> bool:
        with self._refusals_as_outage():
            return self._election.wait_term_over(epoch, time.monotonic() + timeout_s)

    def resign(self, epoch: int) -> None:
        with self._refusals_as_outage():
            self._txn([self._election.is_term(epoch)], [Delete(self._keys.leader)])

    # -- what the coordinator does ------------------------------------------------------------------------------------

    def wait_nodes(self, cursor: int, timeout_s: float) -> tuple[int, Mapping[str, bytes]]:
        with self._refusals_as_outage():
            return self._node_watch.wait(lambda: self._node_records.since(cursor), timeout_s) or (cursor, {})

    def read_beats(self, nodes: Sequence[str]) -> Mapping[str, int]:
        with self._refusals_as_outage():
            found = self._client.read(Read(self._keys.nodes_prefix, prefix=True, keys_only=True))
        leased = {item.key for item in found.items}
        self._shared.newest_record = newest_record(self._keys, found.items)
        return self._shared.keepalive.alive(nodes, {node for node in nodes if self._keys.live(node) in leased})

    def announce(self, version: int, value: bytes, epoch: int) -> None:
        with self._refusals_as_outage():
            self._announce(version, value, epoch)

    def announce_end(self, version: int, value: bytes, epoch: int, job: bytes, over: bytes) -> bool:
        with self._refusals_as_outage():
            for before in (over, job):
                lease = self._shared.leases.job(self._client)
                record = Put(self._keys.job, job, lease)
                if self._announce(version, value, epoch, (holds(self._keys.job, before),), (record,)):
                    self._shared.leases.restart_job(self._client)
                    return True
            self._announce(version, value, epoch)
            return False

    def clear(self, epoch: int) -> None:
        with self._refusals_as_outage():
            self._txn([self._election.is_term(epoch)], [Delete(self._keys.folder, prefix=True)])

    # -- what nodes share beside that ---------------------------------------------------------------------------------

    def write_value(self, name: str, value: bytes, *, over: bool = False) -> bool:
        key = self._keys.value(name)

        def write() -> Outcome:
            put = Put(key, value, self._shared.leases.job(self._client))
            return self._txn([] if over else [is_absent(key)], [put], [Read(key)])

        with self._refusals_as_outage():
            done = self._shared.leases.with_leases("", write)
        return done.succeeded or _value(done, 0) == value

    def wait_values(self, names: Sequence[str], timeout_s: float) -> Mapping[str, bytes]:
        keys = {self._keys.value(name): name for name in names}
        view = Values(keys)
        cache = WatchCache(self._client, view)
        with self._refusals_as_outage():
            try:
                cache.wait(view.all, timeout_s)
            finally:
                cache.close()
        return {keys[key]: value for key, value in view.found.items()}

    def write_values(self, values: Mapping[str, bytes]) -> None:
        with self._refusals_as_outage():
            for part in _parts(list(values)):
                self._shared.leases.with_leases("", partial(self._put_values, {name: values[name] for name in part}))

    def _put_values(self, values: Mapping[str, bytes]) -> Outcome:
        lease = self._shared.leases.job(self._client)
        return self._txn([], [Put(self._keys.value(name), value, lease) for name, value in values.items()])

    def read_values(self, names: Sequence[str]) -> Mapping[str, bytes]:
        found: dict[str, bytes] = {}
        with self._refusals_as_outage():
            for part in _parts(names):
                read = self._txn([], [Read(self._keys.value(name)) for name in part]).found
                found |= {name: each.items[0].value for name, each in zip(part, read, strict=True) if each.items}
        return found

    def delete_values(self, names: Sequence[str]) -> None:
        with self._refusals_as_outage():
            for part in _parts(names):
                self._txn([], [Delete(self._keys.value(name)) for name in part])

    def _announce(
        self, version: int, value: bytes, epoch: int, also: tuple[Compare, ...] = (), puts: tuple[Put, ...] = ()
    ) -> bool:
        """Announce, and write `puts` in the same transaction, if `also` holds too; False if nothing was written and
        only `also` does not hold. Raises StoreFenced."""
        keys = self._keys
        number = b"%d" % version
        follows = holds(keys.newest_round, b"%d" % (version - 1)) if version > 1 else is_absent(keys.newest_round)

        def announce() -> Outcome:
            lease = self._shared.leases.job(self._client)
            announcement = (Put(keys.round(version), value, lease), Put(keys.newest_round, number, lease))
            old = (Delete(keys.round(version - KEEP_VERSIONS)),) if version > KEEP_VERSIONS else ()
            reads = [Read(keys.round(version)), Read(keys.newest_round), Read(keys.leader), Read(keys.job)]
            return self._txn([self._election.is_term(epoch), follows, *also], [*announcement, *old, *puts], reads)

        done = self._shared.leases.with_leases("", announce)
        if done.succeeded:
            return True
        announced, newest = _value(done, 0), self._newest_version(done, 1)
        if announced == value and done.found[0].items:
            return not also or _value(done, 3) == puts[0].value
        leaders = done.found[2].items
        if newest >= version:
            raise StoreFenced(
                f"version {version} is taken: another coordinator announced up to {newest}; stop announcing"
            )
        if not leaders or leaders[0].create_revision != epoch:
            now = f"another node coordinates (epoch {leaders[0].create_revision})" if leaders else "no node coordinates"
            raise StoreFenced(f"epoch {epoch} is over: {now}; stop announcing")
        if newest != version - 1:
            raise self._changed_by_others(version, newest)
        return False

    def _changed_by_others(self, version: int, newest: int) -> StoreFenced:
        key = self._keys.newest_round.decode("utf-8", "replace")
        what = f"holds {newest}, which another program wrote" if newest else "is gone, which somebody has deleted"
        return StoreFenced(
            f"the next announcement of this job is {version}, but key {key} of etcd {what}; restart the job, and let "
            "nothing else write below its prefix"
        )

    def _newest_version(self, done: Outcome, which: int) -> int:
        items = done.found[which].items
        return parse_version(self._keys, items[0].value) if items else 0

    def _txn(self, compares: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op] = ()) -> Outcome:
        # All are repeatable: if one was applied and its answer lost, its compares fail the second time, and the reads
        # in `otherwise` show that it was applied.
        return self._client.txn(compares, then, otherwise, repeatable=True)

    @contextmanager
    def _refusals_as_outage(self) -> Iterator[None]:
        """Once this node has joined, raise StoreRefused for EtcdRefused. An operator can undo a refusal (grant the
        role again, make space), so it counts as an outage, which may last for `store_grace`."""
        try:
            yield
        except EtcdRefused as error:
            if not self._shared.joined:
                raise
            raise StoreRefused(str(error)) from error


def _value(done: Outcome, which: int) -> bytes:
    """The value that read number `which` of the transaction found; empty: the key does not exist."""
    items = done.found[which].items
    return items[0].value if items else b""


def _parts(names: Sequence[str]) -> Iterator[Sequence[str]]:
    return (names[start : start + VALUES_AT_ONCE] for start in range(0, len(names), VALUES_AT_ONCE))


def open_etcd(
    endpoints: Sequence[Endpoint],
    location: Location,
    *,
    tls: Tls | None = None,
    login: Login | None = None,
    connect_timeout_s: float = 60.0,
    on_wait: Callable[[str], None] | None = None,
    cancelled: threading.Event | None = None,
    join: Join | None = None,
) -> EtcdStore:
    """The job's store in the cluster at `endpoints`.

    connect_timeout_s: how long to try to reach it, calls under way included. on_wait: called once, with one line, if
    the first attempt fails. cancelled: when set, the wait ends with StoreUnreachable. join: called with the store; its
    exceptions pass through, except StoreUnreachable and EtcdNoSpace, after which it is called again.

    Raises StoreUnreachable if no server answered in time; a kind of EtcdRefused if the cluster refuses this node;
    StoreForeign if an endpoint is not etcd v3; StoreError if grpcio is not installed; ValueError without endpoints.
    """
    stop, pause_s = cancelled or threading.Event(), RETRY_FIRST_S
    deadline = time.monotonic() + connect_timeout_s
    shared = _Shared(location)
    client = EtcdClient(endpoints, tls, login)
    client.end_calls_at(deadline)
    store = EtcdStore(client, shared)
    try:
        while True:
            try:
                if join is not None:
                    join(store)
                else:
                    shared.leases.job(client)
                shared.joined = True
                client.end_calls_at(float("inf"))
                return store
            except (StoreUnreachable, EtcdNoSpace) as why:  # an operator makes space, or starts the servers
                reason = str(why)
            left_s = max(0.0, deadline - time.monotonic())
            if on_wait is not None and left_s:
                on_wait(f"waiting for etcd: {reason}; giving up in {left_s:.0f} s")
                on_wait = None
            if stop.wait(min(pause_s, left_s)):
                raise StoreUnreachable(f"this node was asked to stop while it waited for etcd; last error: {reason}")
            if time.monotonic() >= deadline:
                raise StoreUnreachable(f"gave up on etcd after {connect_timeout_s:g} s: {reason}")
            pause_s = min(pause_s * 1.5, RETRY_MOST_S)
    except BaseException:
        store.close()
        raise
