"""Calls to etcd that keep their deadlines: short attempts, the next endpoint after each failed one, and a login when
the cluster requires one.

A hung server costs one attempt (0.7 s), a dead one milliseconds. Each attempt carries `hasleader`, so a server that is
cut off rejects it at once; without it, the server would hold a write for 5 to 7 s. A cluster under load is slow, not
dead, and each attempt that is given up is work for nothing: when all endpoints hang, attempts get longer, those of
later calls too, until answers come sooner again; and where there is one endpoint, an attempt takes as long as its call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import TypeVar

from ...proto import etcd_pb2 as pb
from ..store import StoreError, StoreUnreachable
from .cluster import Answer, Call, EtcdCluster, Metadata, Method, Request, Server, run
from .credentials import Login
from .errors import (
    EtcdAuthDisabled,
    EtcdClosed,
    EtcdFailed,
    EtcdTlsRefused,
    EtcdTokenRefused,
    EtcdUnknown,
    EtcdWatchLost,
    error_of,
    is_unreached,
)

CALL_S = 4.0
"""Bound on a call with all its attempts; below `connection.CALL_LIMIT_S`."""
PAUSE_FIRST_S, PAUSE_MOST_S = 0.05, 0.5
"""Pause between passes over all endpoints: the first, and the longest; doubled each time."""
LOGIN_ATTEMPTS = 3
"""A login may take as long as so many attempts: servers hash passwords slowly, on purpose, and go on hashing for a
login that the client has given up."""
LOGINS = 3
"""Logins within one call, after which a refused token is an error."""

AUTHENTICATE = Method(
    "/etcdserverpb.Auth/Authenticate", pb.AuthenticateRequest, pb.AuthenticateResponse.FromString, read_only=True
)

T = TypeVar("T")


class Calls:
    """The calls of one session. Threads may share it; any may call `close`, which ends all calls in progress."""

    def __init__(self, cluster: EtcdCluster, call_s: float = CALL_S) -> None:
        self.cluster = cluster
        self.until = float("inf")
        """Time (`time.monotonic`) at which every call ends, however long it might take."""
        self._call_s = call_s
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._in_progress: set[Call] = set()
        cluster.open_session()

    def close(self) -> None:
        """End every call in progress, with EtcdClosed. Idempotent."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            calls = tuple(self._in_progress)
        for call in calls:
            call.cancel()
        self.cluster.close_session()

    def call(self, method: Method[Request, Answer], request: Request, what: str, *, repeatable: bool = True) -> Answer:
        """Send a request and return its answer. `what`: the request, for messages; `repeatable`: applying it twice has
        the effect of once.

        Raises EtcdFailed, EtcdUnknown (at once if not `repeatable`), EtcdRefused, StoreForeign or EtcdClosed.
        """

        def attempt(server: Server, timeout_s: float) -> Answer:
            known = self.cluster.revision
            answer = self.exchange(server, method, request, what, timeout_s)
            self.cluster.check_header(server, answer.header, known, method.linearizable)
            return answer

        return self.retry(attempt, what, repeatable=repeatable, read_only=method.read_only)

    def retry(
        self, attempt: Callable[[Server, float], T], what: str, *, repeatable: bool = True, read_only: bool = True
    ) -> T:
        """Return `attempt(server, time-out in s)`, called with one server after another until it succeeds.

        `read_only`: the attempt changes nothing, so an unanswered one counts as failed. Raises as `call`."""
        began = time.monotonic()
        deadline = min(began + self._call_s, self.until)
        attempts, patience = _Attempts(len(self.cluster.servers)), self.cluster.patience
        unanswered = ""
        logins = 0
        if self.cluster.tls is not None:
            self._check_tls(what)  # before gRPC, which writes certificate errors to standard error
        while (left_s := deadline - time.monotonic()) > 0:
            server = self.cluster.current()
            token = None
            try:
                self._log_in(server, min(LOGIN_ATTEMPTS * patience.attempt_s, left_s), left_s)
                token = self.cluster.token.value
                began_at = time.monotonic()
                answer = attempt(server, min(patience.attempt_s, left_s))
                patience.answered(time.monotonic() - began_at)
                return answer
            except EtcdTokenRefused:
                logins += 1
                if logins > LOGINS or self.cluster.token.login is None:
                    raise
                self.cluster.token.drop(token)
                continue
            except (EtcdFailed, EtcdUnknown, EtcdWatchLost) as error:
                if isinstance(error, EtcdUnknown) and not read_only:
                    unanswered = str(error)
                    if not repeatable:
                        raise
                self.cluster.attempt_failed(server)
                pause_s = attempts.failed(error)
                if pause_s and not is_unreached(error):
                    patience.all_hung()
                if attempts.newly_unreached:
                    self._check_tls(what)
            self.pause(min(pause_s, max(0.0, deadline - time.monotonic())))
        raise self._gave_up(what, attempts, unanswered, max(0.0, deadline - began))

    def exchange(
        self, server: Server, method: Method[Request, Answer], request: Request, what: str, timeout_s: float
    ) -> Answer:
        """One attempt: one request, one answer."""
        import grpc

        answered = run(server.ask(method, request, timeout_s, self.metadata()))
        try:
            self.register(answered)
            return answered.result()
        except (grpc.RpcError, grpc.aio.UsageError, CancelledError) as why:
            raise self.error(server, what, why) from None
        finally:
            self.finish(answered)

    def pause(self, for_s: float) -> None:
        """Wait. Raises EtcdClosed as soon as this session is closed."""
        self._closed.wait(for_s)
        self._check_open()

    def metadata(self) -> Metadata:
        """Sent with each request: that the server must have a leader, and the login's token."""
        token = self.cluster.token.value
        return (("hasleader", "true"), *((("token", token),) if token else ()))

    def register(self, call: Call) -> None:
        """Have `close` cancel this call from now on."""
        with self._lock:
            self._in_progress.add(call)
        if self._closed.is_set():
            call.cancel()

    def finish(self, call: Call | None) -> None:
        """Cancel this call, which has no effect on one that has ended, and forget it."""
        if call is not None:
            call.cancel()
            with self._lock:
                self._in_progress.discard(call)

    def error(self, server: Server, what: str, why: BaseException) -> StoreError:
        """The StoreError that an exception of gRPC, or a cancelled call, means."""
        if self._closed.is_set():
            return EtcdClosed(f"etcd at {server}, {what}: this process closed the client")
        import grpc  # not before: as the interpreter ends, calls are cancelled, and nothing can be imported

        if isinstance(why, grpc.aio.AioRpcError):
            return error_of(str(server), what, why.code().name, why.details() or "")
        if isinstance(why, grpc.aio.UsageError):  # the channel is closed
            return EtcdFailed(f"etcd at {server}, {what}: the connection is being replaced, with other certificates")
        if isinstance(why, CancelledError):
            return EtcdUnknown(f"etcd at {server}, {what}: no answer (this process ended the connection)")
        return EtcdUnknown(f"etcd at {server}, {what}: {type(why).__name__} {why}")

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise EtcdClosed(f"etcd at {self.cluster}: this process closed the client")

    def _log_in(self, server: Server, timeout_s: float, turn_s: float) -> None:
        """Log in if that is due. `timeout_s`: of the login; `turn_s`: how long to wait for another thread's."""
        self._check_open()
        token = self.cluster.token
        login = token.login
        if login is None or not token.is_due():
            return
        replaces = token.value is not None
        # While a token works, nobody waits for the thread that replaces it.
        if not token.turn.acquire(timeout=0 if replaces else turn_s):
            if replaces:
                return
            raise EtcdFailed(f"etcd at {server}, login: another thread's login took longer than {turn_s:.1f} s")
        try:
            if token.is_due():
                self._log_in_now(server, login, timeout_s)
        except StoreError:
            if not replaces:
                raise
            token.put_off()
        finally:
            token.turn.release()

    def _log_in_now(self, server: Server, login: Login, timeout_s: float) -> None:
        token = self.cluster.token
        what = f"login of user {login.user!r}"
        self.pause(token.pause_s())
        request = pb.AuthenticateRequest(name=login.user, password=login.current_password())
        try:
            token.take(self.exchange(server, AUTHENTICATE, request, what, timeout_s).token)
        except EtcdAuthDisabled:
            token.take("")
        except EtcdUnknown as error:
            raise EtcdFailed(str(error)) from error  # the request itself has not been sent

    def _check_tls(self, what: str) -> None:
        """Until a server has answered: raise EtcdTlsRefused if none can be reached because of a certificate, or of TLS
        itself."""
        if self.cluster.reached:
            return
        found = self._explain_all(what)
        self.cluster.reached = "" in found
        refused = [why for why in found if isinstance(why, EtcdTlsRefused)]
        if refused and not self.cluster.reached:
            raise refused[0]

    def _explain_all(self, what: str) -> list[str | EtcdTlsRefused]:
        from .diagnosis import explain_all  # imports ssl, which most processes never need

        self._check_open()
        return explain_all([server.endpoint for server in self.cluster.servers], self.cluster.tls, what)

    def _reasons(self, what: str) -> Iterator[str]:
        """Why each server cannot be reached. None if all of them can, and gRPC alone knows why it did not."""
        found = self._explain_all(what)
        for server, why in zip(self.cluster.servers, found, strict=True):
            if isinstance(why, EtcdTlsRefused):
                raise why
            if any(found):
                yield why or f"{server} answers now"

    def _gave_up(self, what: str, attempts: _Attempts, unanswered: str, after_s: float) -> StoreUnreachable:
        if unanswered:
            return EtcdUnknown(f"{unanswered}; gave up after {after_s:.2g} s, and it may have been applied")
        if attempts.none_reached and (reasons := list(self._reasons(what))):
            return EtcdFailed(
                f"{what}: no etcd server can be reached: {'; '.join(reasons)}; "
                "check that the cluster runs, or correct the endpoints"
            )
        return EtcdFailed(f"{attempts.last}; gave up after {after_s:.2g} s; check that a majority of its servers runs")


class _Attempts:
    """Counts the attempts of a call, and how long to pause before the next."""

    def __init__(self, servers: int) -> None:
        self._servers = servers
        self._tried = 0
        self._unreached = 0
        self._pause_s = PAUSE_FIRST_S
        self.last = "no attempt was made"

    @property
    def none_reached(self) -> bool:
        """Whether the last attempt at each endpoint failed to reach it."""
        return self._unreached >= self._servers

    @property
    def newly_unreached(self) -> bool:
        """Whether the last attempt at each endpoint failed to reach it, and this has just become so."""
        return self._unreached == self._servers

    def failed(self, error: StoreError) -> float:
        """Count a failed attempt; returns how long to pause (s)."""
        self.last = str(error)
        self._tried += 1
        self._unreached = self._unreached + 1 if is_unreached(error) else 0
        if self._tried % self._servers:
            return 0.0
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, PAUSE_MOST_S)
        return pause_s
