"""A client of etcd v3 (3.4 and newer) over gRPC, for what a job's store needs and no more.

    with closing(EtcdClient([Endpoint("h1", 2379), Endpoint("h2", 2379)])) as client:
        found = client.read(Read(b"job/", prefix=True))
        won = client.txn([is_absent(b"job/leader")], [Put(b"job/leader", b"me", lease.id)]).succeeded
        watch = client.watch(b"job/", prefix=True, start_revision=found.revision + 1)

All calls block, for `call_s` at most, and raise
- EtcdFailed when nothing was applied and nobody could be asked, EtcdUnknown when it may have been (both are
  StoreUnreachable: ask again; after EtcdUnknown read first where twice is not as good as once);
- a kind of EtcdRefused when a server said no: EtcdPermissionDenied, EtcdLoginRefused, EtcdTlsRefused, EtcdNoSpace,
  EtcdLeaseGone, EtcdCompacted;
- StoreForeign when somebody else answers, EtcdReset when the cluster has lost what it had acknowledged;
- EtcdClosed once `close` was called, by whichever thread.
Reads, and whatever compares revisions, are linearizable. Why a client of our own: docs/adr/0011-own-etcd-client.md.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from ...proto import etcd_pb2 as pb
from ..endpoint import Endpoint
from . import ops
from .cluster import EtcdCluster, Login, Method, Tls
from .errors import EtcdLeaseGone, EtcdLeaseTaken
from .retries import CALL_S, Calls
from .watch import Watch, open_watch

RANGE = Method("/etcdserverpb.KV/Range", pb.RangeRequest, pb.RangeResponse.FromString, reads=True, settles=True)
PUT = Method("/etcdserverpb.KV/Put", pb.PutRequest, pb.PutResponse.FromString, settles=True)
DELETE = Method("/etcdserverpb.KV/DeleteRange", pb.DeleteRangeRequest, pb.DeleteRangeResponse.FromString, settles=True)
TXN = Method("/etcdserverpb.KV/Txn", pb.TxnRequest, pb.TxnResponse.FromString, settles=True)
GRANT = Method("/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantRequest, pb.LeaseGrantResponse.FromString)
REVOKE = Method("/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeRequest, pb.LeaseRevokeResponse.FromString)
KEEP_ALIVE = Method(
    "/etcdserverpb.Lease/LeaseKeepAlive", pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse.FromString, streams=True
)
TIME_TO_LIVE = Method(
    "/etcdserverpb.Lease/LeaseTimeToLive", pb.LeaseTimeToLiveRequest, pb.LeaseTimeToLiveResponse.FromString, reads=True
)
STATUS = Method("/etcdserverpb.Maintenance/Status", pb.StatusRequest, pb.StatusResponse.FromString, reads=True)
ALARM = Method("/etcdserverpb.Maintenance/Alarm", pb.AlarmRequest, pb.AlarmResponse.FromString, reads=True)


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as the cluster grants it."""

    id: int
    ttl_s: int
    """How long it lasts from each renewal on. Servers have a least one, half again their election time-out (2 s), and
    a change of leaders begins each lease anew: a departure is noticed between one and two of these after it."""


@dataclass(frozen=True, slots=True)
class Health:
    """What one server says of itself."""

    version: str
    leader: int
    """Member id of the leader; 0: there is none."""
    member: int
    db_bytes: int
    errors: tuple[str, ...]
    """Alarms, and what else is wrong with it."""


class EtcdClient:
    """One session with a cluster. Sessions share channels and login, and end their own calls. Threads may share one."""

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
        `cluster`: only `session` gives it. Raises ValueError for no endpoints, EtcdTlsRefused for files of `tls` that
        cannot be read, StoreError if grpcio is not installed."""
        self._cluster = cluster or EtcdCluster(endpoints, tls, login)
        self.call_s = call_s
        """How long a call may take."""
        self._calls = Calls(self._cluster, call_s)

    def session(self) -> EtcdClient:
        """Another on the same channels, for another thread; closing either leaves the other alone."""
        return EtcdClient((), call_s=self.call_s, cluster=self._cluster)

    def close(self) -> None:
        """End every call and watch of this session at once, from any thread. Idempotent."""
        self._calls.close()

    def __str__(self) -> str:
        """The endpoints."""
        return str(self._cluster)

    @property
    def in_use(self) -> Endpoint:
        """The endpoint that the next call begins with."""
        return self._cluster.current().endpoint

    def leave(self) -> None:
        """Begin with the next endpoint from now on; watches end, of all sessions. For a server known to be ill."""
        self._cluster.leave(self._cluster.current())

    # -- keys ---------------------------------------------------------------------------------------------------------

    def read(self, read: ops.Read) -> ops.Found:
        """What is there now, or was at `read.revision`."""
        return ops.found_of(self._calls.ask(RANGE, ops.range_request(read), f"read of {read.key!r}"))

    def put(self, put: ops.Put, *, repeatable: bool = True) -> int:
        """Write a key; returns the revision. `repeatable`: may be written twice with other writes between, so that it
        is sent again when an answer is lost. Raises EtcdLeaseGone too."""
        answer = self._calls.ask(PUT, ops.put_request(put), f"put of {put.key!r}", repeatable=repeatable)
        return int(answer.header.revision)

    def delete(self, delete: ops.Delete) -> int:
        """Delete; returns how many keys this did (fewer, if an earlier attempt did it whose answer was lost)."""
        answer = self._calls.ask(DELETE, ops.delete_request(delete), f"deletion of {delete.key!r}")
        return int(answer.deleted)

    def txn(
        self,
        compares: Sequence[ops.Compare],
        then: Sequence[ops.Op],
        otherwise: Sequence[ops.Op] = (),
        *,
        repeatable: bool = False,
    ) -> ops.Outcome:
        """Carry out `then` if all compares hold, else `otherwise`, as one. `repeatable`: sent again when an answer is
        lost; only where twice is as good as once, also for what `succeeded` tells. Else raises EtcdUnknown at once."""
        keys = [compare.key for compare in compares] or [op.key for op in then]
        asked = f"transaction on {keys[0]!r}" if keys else "empty transaction"
        request = ops.txn_request(compares, then, otherwise)
        return ops.outcome_of(self._calls.ask(TXN, request, asked, repeatable=repeatable))

    def watch(self, key: bytes, *, prefix: bool = False, start_revision: int = 0) -> Watch:
        """Every change from `start_revision` on, that one included; 0: from now. Returns when a server watches.
        A change of endpoints because of another call that hung ends it too, with EtcdWatchLost."""
        return open_watch(self._calls, key, prefix, start_revision)

    # -- leases -------------------------------------------------------------------------------------------------------

    def grant(self, ttl_s: int, number: int = 0) -> Lease:
        """A new lease, or the one that has this `number` already, as long as it was granted then; 0: any number.
        It is always ours to choose, so that one whose answer was lost is not granted twice."""
        number = number or random.randrange(1, 2**63)
        request = pb.LeaseGrantRequest(TTL=ttl_s, ID=number)
        try:
            answer = self._calls.ask(GRANT, request, f"grant of a lease of {ttl_s} s")
        except EtcdLeaseTaken:
            granted = self._time_to_live(number).grantedTTL
        else:
            granted = answer.TTL
        return Lease(number, int(granted))

    def renew(self, lease: Lease) -> None:
        """Begin its time anew. Raises EtcdLeaseGone if it is over. Works under the no space alarm."""
        asked = f"renewal of lease {lease.id:x}"
        answer = self._calls.ask(KEEP_ALIVE, pb.LeaseKeepAliveRequest(ID=lease.id), asked)
        self._check_there(lease.id, answer.TTL, asked)

    def left_s(self, lease: Lease) -> int:
        """How long it lasts without another renewal. Raises EtcdLeaseGone if it is over."""
        return int(self._time_to_live(lease.id).TTL)

    def revoke(self, lease: Lease) -> None:
        """End it, and delete its keys, at once. Done, too, if it is over already."""
        try:
            self._calls.ask(REVOKE, pb.LeaseRevokeRequest(ID=lease.id), f"revocation of lease {lease.id:x}")
        except EtcdLeaseGone:
            return

    def _time_to_live(self, number: int) -> pb.LeaseTimeToLiveResponse:
        asked = f"look at lease {number:x}"
        answer: pb.LeaseTimeToLiveResponse
        answer = self._calls.ask(TIME_TO_LIVE, pb.LeaseTimeToLiveRequest(ID=number), asked)
        self._check_there(number, answer.TTL, asked)
        return answer

    def _check_there(self, number: int, ttl_s: int, asked: str) -> None:
        if ttl_s <= 0:
            raise EtcdLeaseGone(f"etcd at {self._cluster}, {asked}: lease {number:x} has expired or was revoked")

    # -- the cluster --------------------------------------------------------------------------------------------------

    def health(self) -> Health:
        """What the server in use says of itself."""
        answer = self._calls.ask(STATUS, pb.StatusRequest(), "status")
        return Health(
            answer.version, answer.leader, answer.header.member_id, answer.dbSize, tuple(map(str, answer.errors))
        )

    def alarms(self) -> tuple[str, ...]:
        """Alarms that are raised, as `NOSPACE` or `CORRUPT`; one for each member that has it. Under authentication
        only root may ask."""
        answer = self._calls.ask(ALARM, pb.AlarmRequest(), "alarms")
        return tuple(pb.AlarmType.Name(one.alarm) for one in answer.alarms)
