"""Calls to etcd that keep their deadlines: short attempts, another endpoint after each that failed, a login when the
cluster asks for one.

A hung server costs one attempt (0.7 s), a dead one milliseconds. Each attempt says `hasleader`, so that a server that
is cut off says so at once, where it would else hold a write for 5 to 7 s. When all endpoints hang, attempts get longer,
as a cluster under load is slow and not dead.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from ...proto import etcd_pb2 as pb
from ..store import StoreError, StoreUnreachable
from .cluster import Answer, Call, EtcdCluster, Method, Request, Server
from .errors import (
    EtcdClosed,
    EtcdFailed,
    EtcdNoLogin,
    EtcdTlsRefused,
    EtcdTokenRefused,
    EtcdUnknown,
    EtcdWatchLost,
    error_of,
    is_unsent,
)

CALL_S = 4.0
"""A call that no attempt has answered by then is given up; below `connection.CALL_LIMIT_S`."""
ATTEMPT_S = 0.7
"""Length of an attempt, doubled each time that every endpoint had one."""
PAUSE_FIRST_S, PAUSE_MOST_S = 0.05, 0.5
"""Between rounds of attempts that fail at once, doubled from the first to the most."""
LOGIN_ATTEMPTS = 3
"""A login may take as long as so many attempts: servers hash passwords slowly, on purpose, and go on doing so for each
login that was given up."""
LOGINS = 3
"""Logins within one call before the cluster is believed that it wants none of us."""

AUTHENTICATE = Method(
    "/etcdserverpb.Auth/Authenticate", pb.AuthenticateRequest, pb.AuthenticateResponse.FromString, reads=True
)

T = TypeVar("T")


class Calls:
    """The calls of one session. Threads may share it; `close` may come from any, and ends what is under way."""

    def __init__(self, cluster: EtcdCluster, call_s: float = CALL_S) -> None:
        self.cluster = cluster
        self._call_s = call_s
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._under_way: set[Call] = set()
        cluster.enter()

    def close(self) -> None:
        """End every call under way, with EtcdClosed. Idempotent."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            calls = tuple(self._under_way)
        for call in calls:
            call.cancel()
        self.cluster.exit()

    def ask(self, method: Method[Request, Answer], request: Request, asked: str, *, repeatable: bool = True) -> Answer:
        """The answer to a request. `asked`: the same for people; `repeatable`: applied twice is as good as once.

        Raises EtcdFailed, EtcdUnknown (at once if not `repeatable`), EtcdRefused, StoreForeign or EtcdClosed.
        """

        def attempt(server: Server, timeout_s: float) -> Answer:
            known = self.cluster.revision
            answer = self.exchange(server, method, request, asked, timeout_s)
            self.cluster.take_in(server, answer.header, known, method.settles)
            return answer

        return self.rotate(attempt, asked, repeatable=repeatable, reads=method.reads)

    def rotate(
        self, attempt: Callable[[Server, float], T], asked: str, *, repeatable: bool = True, reads: bool = True
    ) -> T:
        """What `attempt` returns, given a server and how many seconds it may take, as soon as it does for one."""
        deadline = time.monotonic() + self._call_s
        rounds = _Rounds(len(self.cluster.servers))
        doubt = ""
        logins = 0
        if self.cluster.tls is not None:
            self._look(asked)  # before gRPC, which writes to standard error what it thinks of a certificate
        while (left_s := deadline - time.monotonic()) > 0:
            server = self.cluster.current()
            try:
                self._log_in(server, min(LOGIN_ATTEMPTS * rounds.attempt_s, left_s))
                return attempt(server, min(rounds.attempt_s, left_s))
            except EtcdTokenRefused:
                logins += 1
                if logins > LOGINS or self.cluster.login is None:
                    raise
                self.cluster.token = None
                continue
            except (EtcdFailed, EtcdUnknown, EtcdWatchLost) as error:
                if isinstance(error, EtcdUnknown) and not reads:
                    doubt = str(error)
                    if not repeatable:
                        raise
                self.cluster.leave(server)
                pause_s = rounds.failed(error)
                if rounds.is_over_unsent:
                    self._look(asked)
            self._closed.wait(min(pause_s, max(0.0, deadline - time.monotonic())))
            self._check_open()
        raise self._given_up(asked, rounds, doubt)

    def exchange(
        self, server: Server, method: Method[Request, Answer], request: Request, asked: str, timeout_s: float
    ) -> Answer:
        """One attempt: one request, one answer. A stream is kept open until the answer is there, as etcd's own proxy
        takes the end of the requests for the end of the stream."""
        import grpc

        held = threading.Event()
        call: Call | None = None
        try:
            if method.streams:
                requests = _once(request, held)
                call = stream = server.stream(method)(requests, timeout=timeout_s, metadata=self.metadata())
                self.begun(call)
                return next(stream)
            call = future = server.unary(method).future(request, timeout=timeout_s, metadata=self.metadata())
            self.begun(call)
            return future.result()
        except StopIteration:
            raise EtcdUnknown(f"etcd at {server}, {asked}: the server ended the stream without an answer") from None
        except (grpc.RpcError, grpc.FutureCancelledError) as why:
            raise self.error(server, asked, why) from None
        except ValueError as why:  # how gRPC says that the channel is closed
            if not self._closed.is_set():
                raise
            raise self.error(server, asked, why) from None
        finally:
            held.set()
            self.ended(call)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with each request: that the server must have a leader, and who we are."""
        token = self.cluster.token
        return (("hasleader", "true"), *((("token", token),) if token else ()))

    def begun(self, call: Call) -> None:
        """A call is under way, which `close` ends from here on."""
        with self._lock:
            self._under_way.add(call)
        if self._closed.is_set():
            call.cancel()

    def ended(self, call: Call | None) -> None:
        """A call is over, or is to be."""
        if call is not None:
            call.cancel()
            with self._lock:
                self._under_way.discard(call)

    def error(self, server: Server, asked: str, why: Exception) -> StoreError:
        """What an exception of gRPC's means."""
        import grpc

        if self._closed.is_set():
            return EtcdClosed(f"etcd at {server}, {asked}: this client was closed here")
        if isinstance(why, grpc.Call):
            return error_of(str(server), asked, why.code().name, why.details() or "")
        return EtcdUnknown(f"etcd at {server}, {asked}: {type(why).__name__} {why}")

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise EtcdClosed(f"etcd at {self.cluster}: this client was closed here")

    def _log_in(self, server: Server, timeout_s: float) -> None:
        self._check_open()
        login = self.cluster.login
        if login is None or self.cluster.token is not None:
            return
        asked = f"login of user {login.user!r}"
        request = pb.AuthenticateRequest(name=login.user, password=login.password)
        try:
            self.cluster.token = self.exchange(server, AUTHENTICATE, request, asked, timeout_s).token
        except EtcdNoLogin:
            self.cluster.token = ""
        except EtcdUnknown as error:
            raise EtcdFailed(str(error)) from error  # nothing of what was asked has been sent

    def _look(self, asked: str) -> None:
        """Raise EtcdTlsRefused if a certificate, or TLS itself, is why none can be reached; until one is."""
        if self.cluster.looked:
            return
        from .diagnosis import explain  # imports ssl, which few need

        refused: EtcdTlsRefused | None = None
        for _ in self.cluster.servers:
            server = self.cluster.current()
            try:
                self.cluster.looked = not explain(server.endpoint, self.cluster.tls, asked)
            except EtcdTlsRefused as error:
                refused = error
            if self.cluster.looked:
                return
            self.cluster.leave(server)
            self._check_open()
        if refused is not None:
            raise refused

    def _reasons(self, asked: str) -> Iterator[str]:
        from .diagnosis import explain

        for server in self.cluster.servers:
            self._check_open()
            yield explain(server.endpoint, self.cluster.tls, asked) or f"{server} answers now"

    def _given_up(self, asked: str, rounds: _Rounds, doubt: str) -> StoreUnreachable:
        if doubt:
            return EtcdUnknown(f"{doubt}; given up after {self._call_s:g} s, and it may have been applied")
        if rounds.all_unsent:
            return EtcdFailed(
                f"{asked}: no server of etcd can be reached: {'; '.join(self._reasons(asked))}; "
                "see whether the cluster runs, and correct the endpoints"
            )
        return EtcdFailed(f"{rounds.last}; given up after {self._call_s:g} s: see whether most of its servers run")


class _Rounds:
    """Counts attempts: how long the next may be, and how long to pause before it."""

    def __init__(self, servers: int) -> None:
        self._servers = servers
        self._tried = 0
        self._unsent = 0
        self._pause_s = PAUSE_FIRST_S
        self.attempt_s = ATTEMPT_S
        self.last = "no attempt was made"

    @property
    def all_unsent(self) -> bool:
        """Every endpoint was tried just now, and none was reached."""
        return self._unsent >= self._servers

    @property
    def is_over_unsent(self) -> bool:
        """As `all_unsent`, for the first time."""
        return self._tried == self._servers and self.all_unsent

    def failed(self, error: StoreError) -> float:
        """An attempt failed; returns how long to pause (s)."""
        self.last = str(error)
        self._tried += 1
        self._unsent = self._unsent + 1 if is_unsent(error) else 0
        if self._tried % self._servers:
            return 0.0
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, PAUSE_MOST_S)
        self.attempt_s *= 2
        return pause_s


def _once(request: Request, held: threading.Event) -> Iterator[Request]:
    """The requests of a stream: one, and no end before `held` is set."""
    yield request
    held.wait()
