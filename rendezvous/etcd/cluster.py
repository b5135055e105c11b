"""What all sessions of this process share of one etcd cluster: a channel for each endpoint, the endpoint in use, the
login's token, and the cluster's id and newest revision.

The client rotates endpoints itself, with one channel for each: with all addresses in one channel, gRPC's pick_first
stays with a frozen server for 25 s and more. All gRPC options are set on the channel, none for the process.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from google.protobuf.message import Message

from ...proto import etcd_pb2 as pb
from ...proto.frozen import dataclass
from ..endpoint import Endpoint
from ..store import StoreError
from .credentials import Login, Tls, TlsFiles, Token
from .errors import EtcdReset, EtcdTlsRefused

if TYPE_CHECKING:
    import grpc

DEFAULT_PORT = 2379
"""etcd's port for clients."""
MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Longest answer accepted; gRPC's default of 4 MiB would hold only 16 node records at their limit."""

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
    ("grpc.use_local_subchannel_pool", 1),  # other gRPC users in this process do not share its connections
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
)


class HasHeader(Protocol):
    """An answer of etcd; each has a header."""

    @property
    def header(self) -> pb.ResponseHeader: ...


Request = TypeVar("Request", bound=Message)
Answer = TypeVar("Answer", bound=HasHeader)


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
    streaming: bool = False
    """A stream in both directions."""
    linearizable: bool = False
    """The answer's revision is one that a majority has agreed on, so it never decreases."""


class Call(Protocol):
    """A call in progress."""

    def cancel(self) -> object: ...


class Server:
    """One endpoint and the channel to it, which connects at the first call."""

    def __init__(self, endpoint: Endpoint, tls_files: TlsFiles | None) -> None:
        """`tls_files`: the certificates of the first connection; None: it is a plain one."""
        self.endpoint = endpoint
        self._tls_files = tls_files
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self.streams: set[Call] = set()
        """Long calls on it, cancelled when the client switches to another endpoint."""

    def __str__(self) -> str:
        return str(self.endpoint)

    def unary(self, method: Method[Request, Answer]) -> grpc.UnaryUnaryMultiCallable[Request, Answer]:
        """The gRPC callable of a method with one request and one answer."""
        channel = self._open()
        return channel.unary_unary(method.path, request_serializer=_serialize, response_deserializer=method.parse)

    def stream(self, method: Method[Request, Answer]) -> grpc.StreamStreamMultiCallable[Request, Answer]:
        """The gRPC callable of a method with streams in both directions."""
        channel = self._open()
        return channel.stream_stream(method.path, request_serializer=_serialize, response_deserializer=method.parse)

    def _open(self) -> grpc.Channel:
        import grpc

        with self._lock:
            if self._channel is None:
                target = f"dns:///{self.endpoint}"
                if self._tls_files is None:
                    self._channel = grpc.insecure_channel(target, options=OPTIONS)
                else:
                    credentials = grpc.ssl_channel_credentials(*self._tls_files)
                    self._channel = grpc.secure_channel(target, credentials, options=OPTIONS)
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
            channel.close()

    def close(self) -> None:
        with self._lock:
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


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

    def close_session(self) -> None:
        """Count a session less; closes the channels with the last one."""
        with self._lock:
            self._sessions -= 1
            last = self._sessions == 0
        if last:
            for server in self.servers:
                server.close()

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
