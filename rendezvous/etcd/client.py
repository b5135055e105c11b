"""A client of etcd v3 (3.4 and newer) over gRPC, with the requests that a job's store needs and no others.

    with closing(EtcdClient([Endpoint("h1", 2379), Endpoint("h2", 2379)])) as client:
        found = client.read(Read(b"job/", prefix=True))
        won = client.txn([is_absent(b"job/leader")], [Put(b"job/leader", b"me", lease.id)]).succeeded
        watch = client.watch(b"job/", prefix=True, start_revision=found.revision + 1)

All calls block, for at most `call_s`, and raise
- EtcdFailed when no server could accept the request and nothing was applied, EtcdUnknown when it may have been applied
  (both are StoreUnreachable: call again; after EtcdUnknown, read first if the request must not be applied twice);
- a kind of EtcdRefused when a server rejected it: EtcdPermissionDenied, EtcdLoginRefused, EtcdTlsRefused, EtcdNoSpace,
  EtcdLeaseGone, EtcdCompacted, EtcdAnswerTooLong;
- StoreForeign when the endpoint is not etcd v3, EtcdReset when the cluster lost revisions that it had acknowledged;
- EtcdClosed once `close` was called, from any thread.
Reads and transactions are linearizable. Why not an existing client: docs/adr/0011-own-etcd-client.md.
"""

from __future__ import annotations

import queue
import random
from collections.abc import Sequence

from ...proto import etcd_pb2 as pb
from ...proto.frozen import dataclass
from ..endpoint import Endpoint
from . import ops
from .cluster import EtcdCluster, Method, Server
from .credentials import Login, Tls
from .errors import EtcdAnswerTooLong, EtcdCompacted, EtcdLeaseExists, EtcdLeaseGone, EtcdUnknown
from .retries import CALL_S, Calls
from .streams import LongStream
from .watch import Watch, open_watch

RANGE = Method(
    "/etcdserverpb.KV/Range", pb.RangeRequest, pb.RangeResponse.FromString, read_only=True, linearizable=True
)
PUT = Method("/etcdserverpb.KV/Put", pb.PutRequest, pb.PutResponse.FromString, linearizable=True)
DELETE = Method(
    "/etcdserverpb.KV/DeleteRange", pb.DeleteRangeRequest, pb.DeleteRangeResponse.FromString, linearizable=True
)
TXN = Method("/etcdserverpb.KV/Txn", pb.TxnRequest, pb.TxnResponse.FromString, linearizable=True)
GRANT = Method("/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantRequest, pb.LeaseGrantResponse.FromString)
REVOKE = Method("/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeRequest, pb.LeaseRevokeResponse.FromString)
KEEP_ALIVE = Method(
    "/etcdserverpb.Lease/LeaseKeepAlive", pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse.FromString
)
TIME_TO_LIVE = Method(
    "/etcdserverpb.Lease/LeaseTimeToLive",
    pb.LeaseTimeToLiveRequest,
    pb.LeaseTimeToLiveResponse.FromString,
    read_only=True,
)
STATUS = Method("/etcdserverpb.Maintenance/Status", pb.StatusRequest, pb.StatusResponse.FromString, read_only=True)
ALARM = Method("/etcdserverpb.Maintenance/Alarm", pb.AlarmRequest, pb.AlarmResponse.FromString, read_only=True)


PAGE_ITEMS = 128
"""Keys in one answer of a longer read: with node records at their limit they are half of what an answer may hold."""
PAGED_READS = 5
"""Attempts to read all pages at one revision, where others compact it meanwhile."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as the cluster granted it."""

    id: int
    ttl_s: int
    """TTL in seconds, counted from each renewal. Servers enforce a minimum, 1.5 times their election time-out (2 s),
    and a new etcd leader restarts every lease: a node that vanished is noticed one to two TTLs later."""


@dataclass(frozen=True, slots=True)
class Health:
    """The status that one server reports."""

    version: str
    leader: int
    """Member id of the leader; 0: none."""
    member: int
    db_bytes: int
    errors: tuple[str, ...]
    """Alarms, and other faults."""


class EtcdClient:
    """One session with a cluster. Sessions share channels and login; closing one ends only its own calls. Threads may
    share a session."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        tls: Tls | None = None,
        login: Login | None = None,
        call_s: float = CALL_S,
        *,
        cluster: EtcdCluster | None = None,
    ) -> None:
        """Connects at the first call. `tls`: None means plain connections; `login`: None means no user;
        `cluster`: passed by `session` only. Raises ValueError without endpoints, EtcdTlsRefused if a file of `tls`
        cannot be read, StoreError if grpcio is not installed."""
        self._cluster = cluster or EtcdCluster(endpoints, tls, login)
        self.call_s = call_s
        """Bound on a call, in seconds."""
        self._calls = Calls(self._cluster, call_s)
        self._renewals: LongStream[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse] | None = None

    def session(self) -> EtcdClient:
        """Another session on the same channels, for another thread; closing one leaves the other open."""
        return EtcdClient((), call_s=self.call_s, cluster=self._cluster)

    def close(self) -> None:
        """End every call and watch of this session at once, from any thread. Idempotent."""
        self._calls.close()

    def __str__(self) -> str:
        """The endpoints."""
        return str(self._cluster)

    @property
    def in_use(self) -> Endpoint:
        """The endpoint that the next call tries first."""
        return self._cluster.current().endpoint

    def switch_endpoint(self) -> None:
        """Use the next endpoint from now on. Ends the watches of all sessions. For tests of what
        changes with the server; no store calls it."""
        self._cluster.switch_from(self._cluster.current())

    def end_calls_at(self, deadline: float) -> None:
        """End calls of this session no later than at this time (`time.monotonic`), however long they might take."""
        self._calls.until = deadline

    def pause(self, for_s: float) -> None:
        """Wait for so long (s). Raises EtcdClosed as soon as this session is closed."""
        self._calls.pause(for_s)

    # -- keys ---------------------------------------------------------------------------------------------------------

    def read(self, read: ops.Read) -> ops.Found:
        """The keys as they are, or were at `read.revision`: a list in pages, all of one revision."""
        if not read.prefix or read.keys_only or read.limit:
            return self._read_page(read, ops.range_request(read))
        for left in reversed(range(PAGED_READS)):
            try:
                return self._read_pages(read)
            except EtcdCompacted:
                # Unless the caller named the revision, others have compacted it between two pages.
                if read.revision or not left:
                    raise
        raise AssertionError("unreachable")

    def _read_pages(self, read: ops.Read) -> ops.Found:
        request = ops.range_request(read)
        request.limit = PAGE_ITEMS
        items: list[ops.Item] = []
        while True:
            try:
                found = self._read_page(read, request)
            except EtcdAnswerTooLong:
                if request.limit == 1:
                    raise
                request.limit = max(1, request.limit // 4)
                continue
            items += found.items
            request.revision = request.revision or found.revision
            if not found.more:
                return ops.Found(request.revision, tuple(items), more=False)
            request.key = items[-1].key + b"\0"

    def _read_page(self, read: ops.Read, request: pb.RangeRequest) -> ops.Found:
        return ops.found_of(self._calls.call(RANGE, request, f"read of {read.key!r}"))

    def put(self, put: ops.Put, *, repeatable: bool = True) -> int:
        """Write a key; returns the revision. `repeatable`: the put may be applied twice, with other writes between, so
        it is sent again when an answer is lost. Raises EtcdLeaseGone too."""
        answer = self._calls.call(PUT, ops.put_request(put), f"put of {put.key!r}", repeatable=repeatable)
        return int(answer.header.revision)

    def delete(self, delete: ops.Delete) -> int:
        """Delete; returns the number of keys deleted, without those that an earlier, unanswered attempt had deleted."""
        answer = self._calls.call(DELETE, ops.delete_request(delete), f"deletion of {delete.key!r}")
        return int(answer.deleted)

    def txn(
        self,
        compares: Sequence[ops.Compare],
        then: Sequence[ops.Op],
        otherwise: Sequence[ops.Op] = (),
        *,
        repeatable: bool = False,
        what: str = "",
    ) -> ops.Outcome:
        """Carry out `then` if all compares hold, else `otherwise`, atomically. `repeatable`: sent again when an answer
        is lost; only where applying it twice has the effect of once, `succeeded` included. If not `repeatable`, a lost
        answer raises EtcdUnknown at once. `what`: the request, for messages; by default its first key."""
        keys = [compare.key for compare in compares] or [op.key for op in then]
        what = what or (f"transaction on {keys[0]!r}" if keys else "empty transaction")
        request = ops.txn_request(compares, then, otherwise)
        return ops.outcome_of(self._calls.call(TXN, request, what, repeatable=repeatable))

    def watch(self, key: bytes, *, prefix: bool = False, start_revision: int = 0) -> Watch:
        """Every change from `start_revision` on, inclusive; 0: from now. Returns once a server has created the watch.
        The watch ends with EtcdWatchLost also when another call hangs and the client changes endpoints."""
        return open_watch(self._calls, key, prefix, start_revision)

    # -- leases -------------------------------------------------------------------------------------------------------

    def grant(self, ttl_s: int, number: int = 0) -> Lease:
        """Grant a lease with the id `number` (0: a random one). If it exists already, returns it, with the TTL that it
        was granted with. The client always chooses the id, so that a grant whose answer was lost is not repeated."""
        number = number or random.randrange(1, 2**63)
        request = pb.LeaseGrantRequest(TTL=ttl_s, ID=number)
        try:
            answer = self._calls.call(GRANT, request, f"grant of a lease of {ttl_s} s")
        except EtcdLeaseExists:
            granted = self._time_to_live(number).grantedTTL
        else:
            granted = answer.TTL
        return Lease(number, int(granted))

    def keep_alive(self, lease: Lease, whose: str = "") -> Lease:
        """Restart its TTL, on a stream that stays open for the next one; returns it with the TTL that it was granted
        with. `whose`: for messages, in place of its id. Raises EtcdLeaseGone if it has ended. Works under the no space
        alarm. One thread at a time."""
        what = f"renewal of {whose} lease" if whose else f"renewal of lease {lease.id:x}"
        request = pb.LeaseKeepAliveRequest(ID=lease.id)

        def attempt(server: Server, timeout_s: float) -> int:
            if self._renewals is None or self._renewals.ended or self._renewals.server is not server:
                self._renewals = LongStream(self._calls, server, KEEP_ALIVE, "renewals")
            self._renewals.send(request)
            try:
                answer = self._renewals.receive(timeout_s)
            except queue.Empty:
                self._renewals.close()  # a late answer would be taken for that of the next request
                raise EtcdUnknown(f"etcd at {server}, {what}: no answer for {timeout_s:.2g} s") from None
            self._cluster.check_header(server, answer.header, 0, linearizable=False)
            return int(answer.TTL)

        ttl_s = self._calls.retry(attempt, what, read_only=False)
        self._check_lease(lease.id, ttl_s, what)
        return Lease(lease.id, ttl_s)

    def left_s(self, lease: Lease) -> int:
        """Seconds until it expires without another renewal. Raises EtcdLeaseGone if it has ended."""
        return int(self._time_to_live(lease.id).TTL)

    def revoke(self, lease: Lease) -> None:
        """End it and delete its keys, at once. No error if it has ended already. For tests of what ends with a lease;
        no store calls it."""
        try:
            self._calls.call(REVOKE, pb.LeaseRevokeRequest(ID=lease.id), f"revocation of lease {lease.id:x}")
        except EtcdLeaseGone:
            return

    def _time_to_live(self, number: int) -> pb.LeaseTimeToLiveResponse:
        what = f"lookup of lease {number:x}"
        answer: pb.LeaseTimeToLiveResponse
        answer = self._calls.call(TIME_TO_LIVE, pb.LeaseTimeToLiveRequest(ID=number), what)
        self._check_lease(number, answer.TTL, what)
        return answer

    def _check_lease(self, number: int, ttl_s: int, what: str) -> None:
        if ttl_s <= 0:
            raise EtcdLeaseGone(f"etcd at {self._cluster}, {what}: lease {number:x} has expired or was revoked")

    # -- the cluster --------------------------------------------------------------------------------------------------

    def health(self) -> Health:
        """The status of the server in use."""
        answer = self._calls.call(STATUS, pb.StatusRequest(), "status")
        return Health(
            answer.version, answer.leader, answer.header.member_id, answer.dbSize, tuple(map(str, answer.errors))
        )

    def alarms(self) -> tuple[str, ...]:
        """The raised alarms, such as `NOSPACE` or `CORRUPT`, one for each member that has it. With authentication
        enabled only root may list them."""
        answer = self._calls.call(ALARM, pb.AlarmRequest(), "alarms")
        return tuple(pb.AlarmType.Name(one.alarm) for one in answer.alarms)
