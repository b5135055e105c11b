"""What all sessions of this process share of one etcd cluster.

A channel for each endpoint, which of them is in use, the token of the login, and what the cluster has said of itself.

One channel for each endpoint, and rotation of our own: with all addresses in one channel, gRPC's pick_first stays for
25 s and more with a server that is frozen. No process-wide switch of gRPC's is touched; all is said for each channel.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from google.protobuf.message import Message

from ...proto import etcd_pb2 as pb
from ..endpoint import Endpoint
from ..store import StoreError
from .errors import EtcdReset, EtcdTlsRefused

if TYPE_CHECKING:
    import grpc

DEFAULT_PORT = 2379
"""etcd's port for clients."""
MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Longest answer taken; gRPC's own 4 MiB would be 64 nodes with records of 64 KiB."""

OPTIONS = (
    # Pings: etcd takes one each 5 s (--grpc-keepalive-min-time) while a call is open, and hangs up on more.
    ("grpc.keepalive_time_ms", 6000),
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.http2.ping_timeout_ms", 2000),  # the one that counts; its default of 60 s hides a dead peer for 70 s
    ("grpc.http2.max_pings_without_data", 0),
    # A server that comes back is noticed within a second, and one that drops packets is not waited for.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_retries", 0),  # we repeat, as we know what may be
    ("grpc.enable_http_proxy", 0),  # a cluster is inside; a proxy in the environment leads outside
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.use_local_subchannel_pool", 1),  # connections are not shared with others in this process
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
)


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM. Changes of the files are seen by the next process."""

    ca_file: str = ""
    """Who may sign the servers' certificates; empty: who this system trusts."""
    cert_file: str = ""
    """Our certificate, for a cluster that asks for one; empty: none."""
    key_file: str = ""
    """The key to it."""


@dataclass(frozen=True, slots=True)
class Login:
    """A user of the cluster."""

    user: str
    password: str = field(repr=False)


class Headed(Protocol):
    """An answer of etcd's: each has a header."""

    @property
    def header(self) -> pb.ResponseHeader: ...


Request = TypeVar("Request", bound=Message)
Answer = TypeVar("Answer", bound=Headed)


@dataclass(frozen=True)
class Method(Generic[Request, Answer]):
    """One remote procedure."""

    path: str
    """As etcd has it: /etcdserverpb.SERVICE/METHOD."""
    asks: type[Request]
    """The message that goes out."""
    parse: Callable[[bytes], Answer]
    """Makes the message that comes back."""
    reads: bool = False
    """Changes nothing, so that an answer that never came leaves nothing unknown."""
    streams: bool = False
    """A stream in both directions."""
    settles: bool = False
    """The revision in its answer is one that the cluster has agreed on, so it never goes back."""


class Call(Protocol):
    """A call under way."""

    def cancel(self) -> object: ...


class Server:
    """One endpoint and the channel to it, which connects at the first call."""

    def __init__(self, endpoint: Endpoint, credentials: Callable[[], grpc.ChannelCredentials | None]) -> None:
        self.endpoint = endpoint
        self._credentials = credentials
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self.streams: set[Call] = set()
        """Long calls on it, which are given up when another endpoint is taken into use."""

    def __str__(self) -> str:
        return str(self.endpoint)

    def unary(self, method: Method[Request, Answer]) -> grpc.UnaryUnaryMultiCallable[Request, Answer]:
        """What calls a method of one request and one answer."""
        channel = self._open()
        return channel.unary_unary(method.path, request_serializer=_serialize, response_deserializer=method.parse)

    def stream(self, method: Method[Request, Answer]) -> grpc.StreamStreamMultiCallable[Request, Answer]:
        """What calls a method of a stream of each."""
        channel = self._open()
        return channel.stream_stream(method.path, request_serializer=_serialize, response_deserializer=method.parse)

    def _open(self) -> grpc.Channel:
        import grpc

        with self._lock:
            if self._channel is None:
                target, credentials = f"dns:///{self.endpoint}", self._credentials()
                if credentials is None:
                    self._channel = grpc.insecure_channel(target, options=OPTIONS)
                else:
                    self._channel = grpc.secure_channel(target, credentials, options=OPTIONS)
            return self._channel

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
        """`tls`: None means plain connections. Raises ValueError for no endpoints, EtcdTlsRefused if a file cannot be
        read, StoreError if grpcio is not installed."""
        if not endpoints:
            raise ValueError("no endpoint of etcd is given; write HOST:PORT, several with commas between")
        need_grpc()
        self.tls = tls
        self.login = login
        self.token: str | None = None
        """Of the last login; empty: none is needed; None: there is none yet, or it is not good any more."""
        self._files = _read(tls) if tls is not None else None
        self.servers = tuple(Server(endpoint, self._credentials) for endpoint in endpoints)
        self._lock = threading.Lock()
        self._used = random.randrange(len(self.servers))  # agents spread over the servers
        self._sessions = 0
        self._cluster_id = 0
        self._revision = 0
        self.looked = False
        """Whether any server has answered, if only in HTTP/2."""

    def __str__(self) -> str:
        return ",".join(map(str, self.servers))

    @property
    def revision(self) -> int:
        """The newest that the cluster has acknowledged to this process; 0: none yet."""
        return self._revision

    def current(self) -> Server:
        """The server in use."""
        return self.servers[self._used]

    def leave(self, server: Server) -> None:
        """Take the next endpoint into use, unless another thread has; long calls on this one end."""
        with self._lock:
            if self.servers[self._used] is not server or len(self.servers) == 1:
                return
            self._used = (self._used + 1) % len(self.servers)
            streams = tuple(server.streams)
        for stream in streams:
            stream.cancel()

    def hold(self, server: Server, stream: Call) -> None:
        """A long call on this server began."""
        with self._lock:
            server.streams.add(stream)

    def drop(self, server: Server, stream: Call) -> None:
        """A long call on this server ended."""
        with self._lock:
            server.streams.discard(stream)

    def enter(self) -> None:
        """A session begins."""
        with self._lock:
            self._sessions += 1

    def exit(self) -> None:
        """A session ends; with the last one go the channels."""
        with self._lock:
            self._sessions -= 1
            last = self._sessions == 0
        if last:
            for server in self.servers:
                server.close()

    def take_in(self, server: Server, header: pb.ResponseHeader, known: int, settles: bool) -> None:
        """Look at an answer's header; `known`: our revision when the request was sent. Raises EtcdReset."""
        with self._lock:
            self.looked = True
            if header.cluster_id and self._cluster_id not in (0, header.cluster_id):
                raise EtcdReset(
                    f"etcd at {server} is of cluster {header.cluster_id:x}, and {self} was {self._cluster_id:x}: the "
                    "endpoints lead to different clusters, or this one was made anew; correct the endpoints"
                )
            self._cluster_id = header.cluster_id or self._cluster_id  # 3.4 leaves it out of some answers
            if settles and header.revision < known:
                raise EtcdReset(
                    f"etcd at {server} is at revision {header.revision} and had acknowledged {known}: "
                    "it was restored from a backup, or its data is lost; start the job anew"
                )
            if settles:
                self._revision = max(self._revision, header.revision)

    def _credentials(self) -> grpc.ChannelCredentials | None:
        import grpc

        if self._files is None:
            return None
        ca, key, cert = self._files
        return grpc.ssl_channel_credentials(root_certificates=ca, private_key=key, certificate_chain=cert)


def need_grpc() -> None:
    """Import what is imported here and not at the top: it takes 50 ms, and only nodes with etcd need it.

    Raises StoreError if it is not there.
    """
    try:
        import grpc  # noqa: F401 - its users import it again, which costs nothing
    except ImportError as why:
        raise StoreError(f"etcd needs the package grpcio ({why}): pip install 'elastic-agent[etcd]'") from why


def _read(tls: Tls) -> tuple[bytes | None, bytes | None, bytes | None]:
    """The contents of (CA, key, certificate)."""
    if bool(tls.cert_file) != bool(tls.key_file):
        alone, missing = ("certificate", "key") if tls.cert_file else ("key", "certificate")
        raise EtcdTlsRefused(f"a TLS {alone} for etcd is given and no {missing} to it; give both, or none")
    ca_file = tls.ca_file
    if not ca_file:
        import ssl

        ca_file = ssl.get_default_verify_paths().cafile or ""
    return (
        _contents("CA certificate", ca_file),
        _contents("key", tls.key_file),
        _contents("certificate", tls.cert_file),
    )


def _contents(what: str, path: str) -> bytes | None:
    if not path:
        return None
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as why:
        raise EtcdTlsRefused(f"cannot read etcd's TLS {what} {path}: {why.strerror}; correct the path") from why
