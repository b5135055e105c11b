"""The errors of the etcd client, by what each says about the request.

    EtcdFailed     certainly not applied: no server could accept it. May be sent again.
    EtcdUnknown    sent and never answered: it may have been applied, or may be applied later.
    EtcdRefused    a server rejected it, certainly not applied; the same request fails until an operator acts.

The first two are `StoreUnreachable`, so a `Connection` repeats them. The texts recognised here are those of etcd's
api/v3rpc/rpctypes/error.go (3.4 to 3.6), and of gRPC's core for requests that never reached a server.
"""

from __future__ import annotations

from ..store import StoreError, StoreForeign, StoreUnreachable


class EtcdFailed(StoreUnreachable):
    """The request was certainly not applied: no server could be reached, or none had a leader to pass it to."""


class EtcdUnknown(StoreUnreachable):
    """The request was sent and its answer never came. It may have been applied, and may even be applied later: guard
    what must not go backwards with a compare."""


class EtcdClosed(StoreUnreachable):
    """This process closed the client or the watch."""


class EtcdWatchLost(StoreUnreachable):
    """A watch has ended: its server is gone, hangs or has no leader. Watch again from `Watch.next_revision`."""


class EtcdRefused(StoreError):
    """A server rejected the request, so it was certainly not applied. (An earlier attempt of the same call, whose
    answer was lost, may have been.)"""


class EtcdLoginRefused(EtcdRefused):
    """The cluster has no such user, or the password is wrong, or none was given."""


class EtcdTokenRefused(EtcdLoginRefused):
    """The request had no token, or one that is no longer valid. With a login, the client logs in again."""


class EtcdAuthDisabled(EtcdRefused):
    """The cluster has authentication disabled: logging in is impossible and not needed."""


class EtcdPermissionDenied(EtcdRefused):
    """The user's role does not cover the key."""


class EtcdTlsRefused(EtcdRefused):
    """No server can be reached because of a certificate, or because only one side uses TLS."""


class EtcdNoSpace(EtcdRefused):
    """The cluster has raised the no space alarm: it rejects writes; reads, deletes and lease renewals still work."""


class EtcdLeaseGone(EtcdRefused):
    """The lease has expired, or was revoked."""


class EtcdLeaseExists(EtcdRefused):
    """A lease with this id exists already."""


class EtcdAnswerTooLong(EtcdRefused):
    """The answer is longer than this client accepts: read fewer keys at a time."""


class EtcdCompacted(EtcdRefused):
    """The requested revision has been compacted: read anew, and watch from there."""

    def __init__(self, text: str, revision: int = 0) -> None:
        """`revision`: the oldest that is kept; 0 where the server did not report it."""
        super().__init__(text)
        self.revision = revision


class EtcdReset(StoreForeign):
    """A different cluster answers than before, or the same one without revisions that it had acknowledged."""


_UNREACHED = (
    "failed to connect to all addresses",
    "errors resolving",
    "DNS resolution failed",
    "name resolution failed",
)
_NOT_ACCEPTED = ("etcdserver: no leader", "etcdserver: too many requests", "etcdserver: not capable")
_REFUSALS: tuple[tuple[str, type[EtcdRefused], str], ...] = (
    ("permission denied", EtcdPermissionDenied, "grant the user's role this prefix: etcdctl role grant-permission"),
    ("invalid auth token", EtcdTokenRefused, "log in again"),
    ("revision of auth store is old", EtcdTokenRefused, "log in again"),
    ("authentication is not enabled", EtcdAuthDisabled, "no user is needed"),
    ("authentication failed", EtcdLoginRefused, "correct the user or the password"),
    ("user name is empty", EtcdTokenRefused, "the cluster requires a user and a password: give both"),
    ("user name not found", EtcdLoginRefused, "correct the user, or create it: etcdctl user add"),
    ("database space exceeded", EtcdNoSpace, "compact and defragment the cluster, then: etcdctl alarm disarm"),
    ("requested lease not found", EtcdLeaseGone, "grant another"),
    ("lease already exists", EtcdLeaseExists, "choose another id"),
    ("has been compacted", EtcdCompacted, "read anew, and watch from there"),
    ("request is too large", EtcdRefused, "raise the servers' --max-request-bytes, or write less"),
    ("Received message larger than max", EtcdAnswerTooLong, "read fewer keys at a time"),
    ("grpc: received message larger", EtcdRefused, "raise the servers' --max-request-bytes, or write less"),
)
_REFUSED_CODES = {
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "FAILED_PRECONDITION",
    "OUT_OF_RANGE",
    "UNAUTHENTICATED",
}


def error_of(where: str, what: str, code: str, details: str) -> StoreError:
    """The error that the status of a gRPC call means. `where`: the endpoint; `what`: the request, for the message;
    `code`: the name of the status code. A status that is not listed here is an EtcdUnknown."""
    reason = " ".join(details.split())[:200]
    begin = f"etcd at {where}, {what}:"
    if any(text in details for text in (*_UNREACHED, *_NOT_ACCEPTED)):
        return EtcdFailed(f"{begin} {reason}")
    for text, kind, step in _REFUSALS:
        if text in details:
            return kind(f"{begin} {reason.removeprefix('etcdserver: ')}; {step}")
    if code == "UNIMPLEMENTED":
        return StoreForeign(
            f"{begin} the server does not support etcd v3 ({reason}); correct the endpoint, or use etcd 3.4 or newer"
        )
    if code in _REFUSED_CODES:
        return EtcdRefused(f"{begin} {reason}; see the servers' log")
    return EtcdUnknown(f"{begin} no answer ({code.lower().replace('_', ' ')}: {reason})")


def is_unreached(error: StoreError) -> bool:
    """Whether the server was not even reached, so that a connection of our own to its endpoint can find the reason."""
    return isinstance(error, EtcdFailed) and any(text in str(error) for text in _UNREACHED)
