"""What can go wrong with etcd, told apart by what it means for the request.

    EtcdFailed     surely not applied; nobody could take it. May be sent again.
    EtcdUnknown    sent, and never answered: it may have been applied, or may still be.
    EtcdRefused    a server said no, surely not applied; again would not help until somebody acts.

The first two are `StoreUnreachable`, so a `Connection` repeats them. Texts are those of etcd's
api/v3rpc/rpctypes/error.go (3.4 to 3.6), and of gRPC's core for what never reached a server.
"""

from __future__ import annotations

from ..store import StoreError, StoreForeign, StoreUnreachable


class EtcdFailed(StoreUnreachable):
    """The request was surely not applied: no server could be reached, or none had a leader to take it to."""


class EtcdUnknown(StoreUnreachable):
    """The request was sent and its answer never came. It may have been applied, and even be applied later yet: what
    must not go backwards is to be guarded by a compare."""


class EtcdClosed(StoreUnreachable):
    """This client was closed, by us."""


class EtcdWatchLost(StoreUnreachable):
    """A watch has ended: its server is gone, hangs or has no leader. Watch again from `Watch.next_revision`."""


class EtcdRefused(StoreError):
    """A server understood the request and said no; this request was surely not applied. (An earlier attempt of the
    same call, whose answer was lost, may have been.)"""


class EtcdLoginRefused(EtcdRefused):
    """The cluster knows no such user, or the password is another, or none was given."""


class EtcdTokenRefused(EtcdLoginRefused):
    """There is no token, or that of an earlier login is not good any more. With a login, the client logs in again."""


class EtcdNoLogin(EtcdRefused):
    """The cluster has no authentication switched on, so nobody can log in, and nobody needs to."""


class EtcdPermissionDenied(EtcdRefused):
    """The user's role does not cover the key."""


class EtcdTlsRefused(EtcdRefused):
    """No server can be reached because of a certificate, or because one side speaks TLS and the other does not."""


class EtcdNoSpace(EtcdRefused):
    """The cluster has raised the no space alarm: it takes no writes; reads, deletes and lease renewals still work."""


class EtcdLeaseGone(EtcdRefused):
    """The lease has expired, or was revoked."""


class EtcdLeaseTaken(EtcdRefused):
    """A lease of this number is there already."""


class EtcdCompacted(EtcdRefused):
    """The revision asked for is no longer kept: read anew, and watch from there."""

    def __init__(self, text: str, revision: int = 0) -> None:
        """`revision`: the oldest that is kept; 0 where the server did not say."""
        super().__init__(text)
        self.revision = revision


class EtcdReset(StoreForeign):
    """Another cluster answers than before, or the same one without what it had acknowledged."""


_UNSENT = ("failed to connect to all addresses", "errors resolving", "DNS resolution failed", "name resolution failed")
_UNTAKEN = ("etcdserver: no leader", "etcdserver: too many requests", "etcdserver: not capable")
_REFUSALS: tuple[tuple[str, type[EtcdRefused], str], ...] = (
    ("permission denied", EtcdPermissionDenied, "grant the user's role this prefix: etcdctl role grant-permission"),
    ("invalid auth token", EtcdTokenRefused, "log in again"),
    ("revision of auth store is old", EtcdTokenRefused, "log in again"),
    ("authentication is not enabled", EtcdNoLogin, "no user is needed"),
    ("authentication failed", EtcdLoginRefused, "correct the user or the password"),
    ("user name is empty", EtcdTokenRefused, "the cluster asks for a user and a password: give both"),
    ("user name not found", EtcdLoginRefused, "correct the user, or create it: etcdctl user add"),
    ("database space exceeded", EtcdNoSpace, "compact and defragment the cluster, then: etcdctl alarm disarm"),
    ("requested lease not found", EtcdLeaseGone, "grant another"),
    ("lease already exists", EtcdLeaseTaken, "choose another number"),
    ("has been compacted", EtcdCompacted, "read anew, and watch from there"),
    ("request is too large", EtcdRefused, "raise the servers' --max-request-bytes, or write less"),
    ("grpc: received message larger", EtcdRefused, "raise the servers' --max-request-bytes, or write less"),
)
_DEFINITE = {
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "FAILED_PRECONDITION",
    "OUT_OF_RANGE",
    "UNAUTHENTICATED",
}


def error_of(where: str, asked: str, code: str, details: str) -> StoreError:
    """What the status of a call means. `where`: the endpoint; `asked`: the request, for people; `code`: the name of
    gRPC's status code. What is not known here counts as unknown."""
    said = " ".join(details.split())[:200]
    begin = f"etcd at {where}, {asked}:"
    if any(text in details for text in (*_UNSENT, *_UNTAKEN)):
        return EtcdFailed(f"{begin} {said}")
    for text, kind, step in _REFUSALS:
        if text in details:
            return kind(f"{begin} {said.removeprefix('etcdserver: ')}; {step}")
    if code == "UNIMPLEMENTED":
        return StoreForeign(f"{begin} it speaks no etcd v3 ({said}); correct the endpoint, or use etcd 3.4 or newer")
    if code in _DEFINITE:
        return EtcdRefused(f"{begin} {said}; see the servers' log")
    return EtcdUnknown(f"{begin} no answer ({code.lower().replace('_', ' ')}: {said})")


def is_unsent(error: StoreError) -> bool:
    """Whether the server was not even reached, so that looking at its endpoint tells more."""
    return isinstance(error, EtcdFailed) and any(text in str(error) for text in _UNSENT)
