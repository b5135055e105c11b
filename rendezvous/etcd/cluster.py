"""What all sessions of this process share of one etcd cluster: a channel for each endpoint, the endpoint in use, the
login's token, and the cluster's id and newest revision.

The client rotates endpoints itself, with one channel for each: with all addresses in one channel, gRPC's pick_first
stays with a frozen server for 25 s and more. All gRPC options are set on the channel, none for the process.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from google.protobuf.message import Message

from ...proto import etcd_pb2 as pb
from ...proto.frozen import dataclass
from ..endpoint import Endpoint
from ..host_limits import need_room
from ..store import StoreError
from .credentials import Login, Tls, TlsFiles, Token
from .errors import EtcdReset, EtcdTlsRefused

if TYPE_CHECKING:
    import asyncio

    import grpc

DEFAULT_PORT = 2379
"""etcd's port for clients."""
MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Longest answer accepted; gRPC's default of 4 MiB would hold only 16 node records at their limit."""

ATTEMPT_S, ATTEMPT_MOST_S = 0.7, 2.0
"""Bound on an attempt where there are several endpoints; doubled up to the most each time that none has answered. Of
the most, a call has two (`retries.CALL_S`)."""
DESCRIPTORS, THREADS, POOL_LEAST, POOL_MOST = 12, 6, 2, 16
"""What gRPC's asyncio interface takes at its begin, the loop included, and beside the threads one for each processor
within these bounds."""
CLOSE_S = 1.0
"""The longest wait until a channel is closed, which takes less than a millisecond: as this process ends, the thread
that would do it may be gone."""

OPTIONS = (
    # Pings: etcd allows one each 5 s (--grpc-keepalive-min-time) while a call is open, and disconnects a client that
    # sends more.
    ("grpc.keepalive_time_ms", 6000),
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.http2.ping_timeout_ms", 2000),  # this one is decisive: its default of 60 s hides a dead peer for 70 s
    ("grpc.http2.max_pings_without_data", 0),
    # A server that is back is noticed within a second, and one whose packets are dropped is given up after a second.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_retries", 0),  # `retries.py` repeats: it knows which requests may be repeated
    ("grpc.enable_http_proxy", 0),  # the cluster is in the local network; a proxy from the environment leads outside
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.http2.bdp_probe", 0),  # answers are small: a PING for each costs a tenth of all work at rest
    ("grpc.use_local_subchannel_pool", 1),  # other gRPC users in this process do not share its connections
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
)


class HasHeader(Protocol):
    """An answer of etcd; each has a header."""

    @property
    def header(self) -> pb.ResponseHeader: ...


Request = TypeVar("Request", bound=Message)
Answer = TypeVar("Answer", bound=HasHeader)
T = TypeVar("T")
Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Method(Generic[Request, Answer]):
    """One remote procedure."""

    path: str
    """/etcdserverpb.SERVICE/METHOD."""
    request_type: type[Request]
    """Type of the request message."""
    parse: Callable[[bytes], Answer]
    """Parses the answer message."""
    read_only: bool = False
    """Changes nothing, so a lost answer leaves nothing unknown."""
    linearizable: bool = False
    """The answer's revision is one that a majority has agreed on, so it never decreases."""


class Call(Protocol):
    """A call in progress."""

    def cancel(self) -> object: ...


class _GrpcThread:
    """The thread that makes the gRPC calls of all clients of this process, begun with the first and kept: it sleeps
    while nothing arrives. gRPC's blocking interface takes a thread for each channel and two for each stream, and wakes
    those that wait ten times a second (docs/adr/0063-one-thread-for-grpc.md)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0
        """Number of the process in which it was begun: no thread is in one that was forked from that."""
        self._tasks: dict[Future[Any], asyncio.Task[Any]] = {}
        """Calls under way. A task that has ended is not kept: by its exception it would hold the call's connection."""

    def run(self, call: Coroutine[Any, Any, T]) -> Future[T]:
        """Run this in the thread. Cancelling what is returned cancels it; it raises StoreError in a process that was
        forked from the thread's. Raises OSError or RuntimeError if this host refuses what gRPC needs."""
        ended: Future[T] = Future()
        if self._is_left_behind():
            call.close()
            ended.set_exception(
                StoreError(
                    "etcd cannot be used in a process that was forked from one that has used it, as gRPC's threads "
                    "stay behind: start it as a new program, in multiprocessing by the start method 'spawn'"
                )
            )
            return ended
        try:
            self.call_soon(self._begin, call, ended)
        except BaseException:
            call.close()  # else Python warns that nobody awaits it
            raise
        return ended

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Call this in the thread, without waiting; not in a process that was forked from the thread's."""
        if self._is_left_behind():
            return
        with self._lock:
            loop = self._loop = self._loop or self._start()
        loop.call_soon_threadsafe(function, *args)

    def _is_left_behind(self) -> bool:
        return self._process not in (0, os.getpid())

    def _start(self) -> asyncio.AbstractEventLoop:
        import asyncio  # with grpc, and not before: see `need_grpc` and launcher/store_link.py

        from grpc.aio import init_grpc_aio

        pool = min(max(POOL_LEAST, os.cpu_count() or 1), POOL_MOST)
        need_room(DESCRIPTORS, THREADS + pool)
        loop = asyncio.SelectorEventLoop()  # not as this program's policy says, which is for loops of its own
        # Held for good: gRPC would end its own thread with the last channel, and wait for it without a limit, also
        # where that channel is released as the process ends and no other thread runs any more.
        loop.call_soon(init_grpc_aio)
        threading.Thread(target=loop.run_forever, name="elastic-agent-grpc", daemon=True).start()
        self._process = os.getpid()
        return loop

    def _begin(self, call: Coroutine[Any, Any, T], ended: Future[T]) -> None:
        import asyncio

        self._tasks[ended] = task = asyncio.get_running_loop().create_task(call)
        task.add_done_callback(partial(self._pass_on, ended))
        ended.add_done_callback(self._cancelled)

    def _cancelled(self, ended: Future[Any]) -> None:
        if ended.cancelled():
            self.call_soon(self._cancel, ended)

    def _cancel(self, ended: Future[Any]) -> None:
        if ended in self._tasks:
            self._tasks[ended].cancel()

    def _pass_on(self, ended: Future[T], task: asyncio.Task[T]) -> None:
        """Unlike `asyncio.run_coroutine_threadsafe`, which logs the errors of calls that were cancelled."""
        del self._tasks[ended]
        if task.cancelled():
            ended.cancel()
            return
        why = task.exception()
        if not ended.set_running_or_notify_cancel():
            return
        if why is not None:
            ended.set_exception(why)
        else:
            ended.set_result(task.result())


_grpc_thread = _GrpcThread()
run, call_soon = _grpc_thread.run, _grpc_thread.call_soon


class Server:
    """One endpoint and the channel to it, which connects at the first call."""

    def __init__(self, endpoint: Endpoint, tls_files: TlsFiles | None) -> None:
        """`tls_files`: the certificates of the first connection; None: it is a plain one."""
        self.endpoint = endpoint
        self._tls_files = tls_files
        self._lock = threading.Lock()
        self._channel: grpc.aio.Channel | None = None
        self._closed = False
        """No session is open, so a call that another thread had begun before makes no connection."""
        self.streams: set[Call] = set()
        """Long calls on it, cancelled when the client switches to another endpoint."""

    def __str__(self) -> str:
        return str(self.endpoint)

    async def ask(
        self, method: Method[Request, Answer], request: Request, timeout_s: float, metadata: Metadata
    ) -> Answer:
        """The answer of a method with one request and one answer."""
        ask = self._open().unary_unary(method.path, request_serializer=_serialize, response_deserializer=method.parse)
        return await ask(request, timeout=timeout_s, metadata=metadata)

    def stream(self, method: Method[Request, Answer]) -> grpc.aio.StreamStreamMultiCallable[Request, Answer]:
        """The gRPC callable of a method with streams in both directions. Called in gRPC's thread."""
        return self._open().stream_stream(
            method.path, request_serializer=_serialize, response_deserializer=method.parse
        )

    def _open(self) -> grpc.aio.Channel:
        import grpc

        with self._lock:
            if self._closed:
                raise grpc.aio.UsageError("no session is open")  # as gRPC on a closed channel
            if self._channel is None:
                target = f"dns:///{self.endpoint}"
                if self._tls_files is None:
                    self._channel = grpc.aio.insecure_channel(target, options=OPTIONS)
                else:
                    credentials = grpc.ssl_channel_credentials(*self._tls_files)
                    self._channel = grpc.aio.secure_channel(target, credentials, options=OPTIONS)
            return self._channel

    def use_files(self, tls_files: TlsFiles) -> None:
        """Connect anew, with these certificates, if they are others than those in use. Ends the calls under way, as
        gRPC keeps the certificates of a channel for all of its connections."""
        with self._lock:
            if tls_files == self._tls_files:
                return
            self._tls_files = tls_files
            channel, self._channel = self._channel, None
        if channel is not None:
            run(channel.close(None))

    def open(self) -> None:
        """A session is open: connect at the next call."""
        with self._lock:
            self._closed = False

    def close(self) -> list[grpc.aio.Channel]:
        """Make no connection any more; returns the channel to close, if there is one."""
        with self._lock:
            channel, self._channel, self._closed = self._channel, None, True
        return [] if channel is None else [channel]


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


class Patience:
    """How long to wait for the answer of one server before the next is asked; for all calls to one cluster."""

    def __init__(self, servers: int) -> None:
        self._several = servers > 1
        self.attempt_s = ATTEMPT_S if self._several else float("inf")
        """Bound on an attempt."""

    def answered(self, after_s: float) -> None:
        """A server answered: it may take three times as long next time, and little less than so far."""
        if self._several:
            self.attempt_s = min(max(ATTEMPT_S, 3 * after_s, 0.9 * self.attempt_s), ATTEMPT_MOST_S)

    def all_hung(self) -> None:
        """No server has answered in time."""
        if self._several:
            self.attempt_s = min(2 * self.attempt_s, ATTEMPT_MOST_S)


class EtcdCluster:
    """The endpoints of one cluster. Any thread may use it."""

    def __init__(self, endpoints: Sequence[Endpoint], tls: Tls | None = None, login: Login | None = None) -> None:
        """`tls`: None means plain connections. Raises ValueError without endpoints, EtcdTlsRefused if a file cannot be
        read, StoreError if grpcio is not installed."""
        if not endpoints:
            raise ValueError("no etcd endpoint is given; write HOST:PORT, or several with commas between")
        need_grpc()
        self.tls = tls
        self.token = Token(login)
        files = tls.read() if tls is not None else None
        self.servers = tuple(Server(endpoint, files) for endpoint in endpoints)
        self.patience = Patience(len(self.servers))
        self._lock = threading.Lock()
        self._current = random.randrange(len(self.servers))  # agents spread over the servers
        self._sessions = 0
        self._cluster_id = 0
        self._revision = 0
        self.reached = False
        """Whether any server has answered, be it only with HTTP/2 SETTINGS."""

    def __str__(self) -> str:
        return ",".join(map(str, self.servers))

    @property
    def revision(self) -> int:
        """The newest revision that the cluster has acknowledged to this process; 0: none yet."""
        return self._revision

    def current(self) -> Server:
        """The server in use."""
        return self.servers[self._current]

    def switch_from(self, server: Server) -> None:
        """Use the next endpoint, unless another thread has switched already; cancels the long calls on `server`."""
        with self._lock:
            if self.servers[self._current] is not server or len(self.servers) == 1:
                return
            self._current = (self._current + 1) % len(self.servers)
            streams = tuple(server.streams)
        for stream in streams:
            stream.cancel()

    def add_stream(self, server: Server, stream: Call) -> None:
        """Record that a long call on this server began."""
        with self._lock:
            server.streams.add(stream)

    def remove_stream(self, server: Server, stream: Call) -> None:
        """Record that a long call on this server ended."""
        with self._lock:
            server.streams.discard(stream)

    def open_session(self) -> None:
        """Count a new session."""
        with self._lock:
            self._sessions += 1
            for server in self.servers:
                server.open()

    def close_session(self) -> None:
        """Count a session less; closes the channels with the last one."""
        channels: list[grpc.aio.Channel] = []
        with self._lock:
            self._sessions -= 1
            if self._sessions == 0:
                channels = [channel for server in self.servers for channel in server.close()]
        if channels:
            wait([run(channel.close(None)) for channel in channels], CLOSE_S)

    def check_header(self, server: Server, header: pb.ResponseHeader, known: int, linearizable: bool) -> None:
        """Check an answer's header. `known`: `revision` when the request was sent. Raises EtcdReset if another cluster
        answered, or this one at an older revision."""
        with self._lock:
            self.reached = True
            if header.cluster_id and self._cluster_id not in (0, header.cluster_id):
                raise EtcdReset(
                    f"etcd at {server} belongs to cluster {header.cluster_id:x}, and {self} was {self._cluster_id:x}: "
                    "the endpoints lead to different clusters, or this one was recreated; correct the endpoints"
                )
            self._cluster_id = header.cluster_id or self._cluster_id  # 3.4 omits it in some answers
            if linearizable and header.revision < known:
                raise EtcdReset(
                    f"etcd at {server} is at revision {header.revision} and had acknowledged {known}: "
                    "it was restored from a backup, or its data is lost; restart the job"
                )
            if linearizable:
                self._revision = max(self._revision, header.revision)

    def attempt_failed(self, server: Server) -> None:
        """Use the next endpoint, and certificates as they are now: those in use may have expired."""
        if self.tls is not None:
            with suppress(EtcdTlsRefused):  # they are being replaced
                server.use_files(self.tls.read())
        self.switch_from(server)


def need_grpc() -> None:
    """Import grpc, here and not at the top: that takes 50 ms, and only nodes with etcd need it.

    Raises StoreError if it is not installed.
    """
    try:
        import grpc  # noqa: F401 - its users import it again, which costs nothing
    except ImportError as why:
        raise StoreError(f"etcd needs the package grpcio ({why}): pip install grpcio") from why
