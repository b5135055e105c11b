"""A client of torch's TCPStore that keeps its deadlines and does not import torch.

torch's own client blocks for ever on a frozen server, retries servers of other kinds for minutes, makes a reverse DNS
look-up for every peer (stalls of 5 s) and prints stack traces, and importing it costs a second and 200 MB on each node.
The protocol is in `wire.py`. Keys have torch's prefix "/", so that torch's client sees the same keys.
"""

from __future__ import annotations

import errno
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from ..endpoint import Address, Endpoint, probe_peer, resolve
from ..store import StoreError, StoreForeign, StoreUnreachable
from .wire import (
    ADD,
    CANCEL_WAIT,
    CHECK_ONE,
    COMPARE_SET,
    DELETE,
    INT64,
    MAX_VALUE_BYTES,
    OPENING,
    READY,
    SET,
    SIZE,
    STOP_WAITING,
    WAIT,
    WAIT_CANCELED,
    batches,
    bounded,
    packed,
    packed_key,
    reading,
)

HANDSHAKE_S = 4.0
"""How long a server may take to answer the first request. TCPStore takes microseconds."""
MAX_KEYS = 2**40
"""No server has so many keys; the answer of a server of another kind, read as a count, is nearly always larger."""
MAX_WAIT_S = 24 * 3600.0
"""A longer wait ends after this time, because poll takes milliseconds in 32 bits."""
PART_BYTES = 65536
"""So much of a value must arrive within the time limit of a call. The host sends a round of 1,000 members, 100 KB, to
1,000 nodes at once; a node that gave up half of it would ask for all of it again, and delay the others."""
_TIMEVAL = struct.Struct("@ll")
"""`struct timeval` of socket(7): seconds and microseconds."""
_DISCARD = struct.pack("=ii", 1, 0)
"""`struct linger` of socket(7): on, for 0 s."""
_NO_FAMILY = (errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT)
"""How the kernel says that it was built or started without an IP version."""


class Refused(StoreUnreachable):
    """The kernel at the other end says that nothing listens, or this one that it has no way there."""


class HandshakeTimeout(StoreUnreachable):
    """The server accepted the connection and sent nothing within the handshake's time limit."""


class TcpStoreClient:
    """One connection to a TCPStore. One thread calls it; `close` may come from any, and ends a call that blocks.

    Every call raises StoreUnreachable if the connection breaks or `call_timeout_s` passes; while a value arrives, if it
    passes without another `PART_BYTES` of it. The connection is closed then, because a late answer would be taken for
    that of the next request.
    """

    def __init__(self, connected: socket.socket, name: str, call_timeout_s: float) -> None:
        """`name`: the endpoint, for messages."""
        connected.settimeout(None)
        # The kernel keeps the time of a call: with Python's own timeouts a request takes six system calls, and not two.
        limit = _TIMEVAL.pack(int(call_timeout_s), int(call_timeout_s % 1 * 1e6) or 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._socket = connected
        self._name = name
        self.call_timeout_s = call_timeout_s
        self._deadline = 0.0
        self._deadline_is_sooner = False
        """Than the time that the kernel keeps."""
        self._queued = b""
        self._unread, self._taken = b"", 0
        """What arrived last, and how much of it was taken: an answer of many values arrives at once."""
        self._broken = ""
        self.has_asked, self.said = False, dict[str, bytes]()
        """Whether the key existed that the handshake asked for. What it, or `keys.verify`, read, for who needs it."""
        # Held during a call, so that close() in another thread frees the descriptor only once no call blocks on it.
        self._calling = threading.RLock()

    def handshake(self, timeout_s: float, asks: str = "", reads: Sequence[str] = ()) -> None:
        """Open the protocol, ask for this key, and read these, as many as one request takes. Raises StoreForeign if the
        server is no TCPStore, HandshakeTimeout if it sends nothing."""
        with self._calling:
            self._begin(min(timeout_s, HANDSHAKE_S))
            # A server that answers with a plausible count of keys is a TCPStore.
            self._send(OPENING + (CHECK_ONE + packed_key(asks) if asks else b"") + (reading(reads) if reads else b""))
            if not self._readable():
                self.close()
                raise HandshakeTimeout(
                    f"{self._name} accepts connections but sends nothing for {HANDSHAKE_S:g} s: it is not a TCPStore, "
                    "or its process is frozen; check which process listens there, or choose another port"
                )
            answer = b""
            try:
                for piece in self._pieces(INT64.size):
                    answer += piece
            except StoreUnreachable as why:
                if not answer:
                    raise StoreUnreachable(
                        f"{why} before it answered; the agent that hosts the store may have no file descriptor left "
                        "(`ulimit -n` there), or only a port forwarder listens there"
                    ) from why
            if len(answer) < INT64.size or not 0 <= INT64.unpack(answer)[0] <= MAX_KEYS:
                self.close()
                raise StoreForeign(
                    f"{self._name} is not a TCPStore: it answered {answer!r}; stop that server, or choose another port"
                )
            self.has_asked = bool(asks) and self._receive(1)[0] == READY
            self._begin()  # the time of a call, as the server has shown what it is
            self.said = self._receive_values(reads)

    def close(self) -> None:
        """Close the connection. Idempotent. What it sent and was not answered may never arrive."""
        self._broken = self._broken or "closed by this process"
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # closed already, by this process or by the server
        with self._calling:
            self._socket.close()

    def probe(self, idle_s: int, probes: int) -> None:
        """As `endpoint.probe_peer`, with one probe after each `idle_s`."""
        probe_peer(self._socket, idle_s, idle_s, probes)

    def put_later(self, key: str, value: bytes) -> None:
        """Set a key with the next request, whose answer acknowledges it (the server takes requests in order)."""
        self._queued += bytes([SET]) + packed_key(key) + packed(bounded(key, value))

    def put(self, key: str, value: bytes) -> None:
        """Set a key; acknowledged when it returns."""
        with self._calling:
            self.put_later(key, value)
            self.have([key])

    def put_all(self, values: Mapping[str, bytes]) -> None:
        """Set keys; acknowledged when it returns."""
        with self._calling:
            for part in batches(list(values)):
                for key in part:
                    self.put_later(key, values[key])
                self.have(part[-1:])

    def have(self, keys: Sequence[str]) -> list[bool]:
        """Which of the keys exist."""
        found: list[bool] = []
        with self._calling:
            for part in batches(keys):
                self._begin()
                self._send(b"".join([CHECK_ONE + packed_key(key) for key in part]))
                found += [byte == READY for byte in self._receive(len(part))]
        return found

    def get(self, keys: Sequence[str]) -> dict[str, bytes]:
        """The values of those keys that exist and are not empty.

        torch's libuv server answers a key that does not exist with an empty value; its older server, which agents never
        serve, breaks the connection.
        """
        values: dict[str, bytes] = {}
        with self._calling:
            for part in batches(keys):
                self._begin()
                self._send(reading(part))
                values |= self._receive_values(part)
        return values

    def _receive_values(self, keys: Sequence[str]) -> dict[str, bytes]:
        """The answer to `reading` of these."""
        return {key: value for key in keys if (value := self._receive_string())}

    def create(self, key: str, value: bytes) -> bytes:
        """Set a key unless it exists; returns its value afterwards."""
        with self._calling:
            stored = self.compare_set(key, b"", value)
            if stored == value:
                # Some servers end no wait on compare_set; all do on set. The bytes are equal, so nothing else changes.
                self.put(key, value)
        return stored

    def enter(self, key: str, value: bytes) -> bytes:
        """As `create`, in one request, for a key that nobody else sets to anything but a mark that the value may
        replace: it is set to the value even where the mark came first, which is what this returns then."""
        with self._calling:
            self._begin()
            name, content = packed_key(key), packed(bounded(key, value))
            compare, put = bytes([COMPARE_SET]) + name + packed(b"") + content, bytes([SET]) + name + content
            self._send(compare + put + CHECK_ONE + name)
            stored = self._receive_string()
            self._receive(1)
        return stored

    def compare_set(self, key: str, expected: bytes, value: bytes) -> bytes:
        """Set a key if it holds `expected` or, with `expected` empty, if it does not exist. Returns the value
        afterwards, or `expected` if the key does not exist. May end no wait on the key."""
        with self._calling:
            self._begin()
            self._send(bytes([COMPARE_SET]) + packed_key(key) + packed(expected) + packed(bounded(key, value)))
            return self._receive_string()

    def create_each(self, keys: Sequence[str], value: bytes) -> None:
        """Set those of the keys that do not exist. May end no wait on them."""
        tail = packed(b"") + packed(value)
        with self._calling:
            for part in batches(keys):
                self._begin()
                self._send(b"".join([bytes([COMPARE_SET]) + packed_key(key) + tail for key in part]))
                for _ in part:
                    self._receive_string()

    def add(self, key: str, amount: int) -> int:
        """Add to a counter kept as decimal text; returns the new value. If the key holds no number, the server
        closes the connection."""
        with self._calling:
            self._begin()
            self._send(bytes([ADD]) + packed_key(key) + INT64.pack(amount))
            return int(INT64.unpack(self._receive(INT64.size))[0])

    def delete(self, keys: Sequence[str]) -> None:
        """Delete those keys that exist."""
        with self._calling:
            for part in batches(keys):
                self._begin()
                self._send(b"".join([bytes([DELETE]) + packed_key(key) for key in part]))
                self._receive(INT64.size * len(part))

    def wait(self, key: str, timeout_s: float) -> bool:
        """Block until the key exists (True) or `timeout_s` has passed (False)."""
        with self._calling:
            self._begin()
            self._send(bytes([WAIT]) + SIZE.pack(1) + packed_key(key))
            self._begin(timeout_s)
            if self._readable():
                self._begin()
                return self._receive(1)[0] == STOP_WAITING
            self._begin()
            self._send(bytes([CANCEL_WAIT]))
            if self._receive(1)[0] == WAIT_CANCELED:
                return False
            self._receive(1)  # the key was set just before the cancellation, which the server also answers
            return True

    def _begin(self, timeout_s: float | None = None) -> None:
        if self._broken:
            raise StoreUnreachable(f"the connection to the store at {self._name} broke: {self._broken}")
        self._deadline = time.monotonic() + (self.call_timeout_s if timeout_s is None else timeout_s)
        self._deadline_is_sooner = timeout_s is not None

    def _readable(self) -> bool:
        if self._taken < len(self._unread):
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        left_s = min(max(self._deadline - time.monotonic(), 0.0), MAX_WAIT_S)
        return bool(poll.poll(left_s * 1000))

    def _send(self, request: bytes) -> None:
        request, self._queued = self._queued + request, b""
        try:
            self._socket.sendall(request)
        except BlockingIOError as why:
            raise self._failed(f"it took nothing for {self.call_timeout_s:g} s") from why
        except OSError as why:
            raise self._failed(str(why.strerror or why)) from why

    def _receive(self, size: int) -> bytes:
        while len(self._unread) - self._taken < size:
            rest = self._unread[self._taken :]
            self._unread, self._taken = rest + self._received(), 0
        first, self._taken = self._taken, self._taken + size
        return self._unread[first : self._taken]

    def _pieces(self, size: int) -> Iterator[bytes]:
        while size > 0:
            if self._taken == len(self._unread):
                self._unread, self._taken = self._received(), 0
            piece = self._unread[self._taken : self._taken + size]
            self._taken += len(piece)
            size -= len(piece)
            yield piece

    def _received(self) -> bytes:
        """What has arrived, at most `PART_BYTES`; blocks until something has."""
        if (self._deadline_is_sooner or time.monotonic() >= self._deadline) and not self._readable():
            raise self._failed(f"no answer for {self.call_timeout_s:g} s")
        try:
            arrived = self._socket.recv(PART_BYTES)
        except BlockingIOError as why:
            raise self._failed(f"no answer for {self.call_timeout_s:g} s") from why
        except OSError as why:
            raise self._failed(str(why.strerror or why)) from why
        if not arrived:
            raise self._failed("the server closed the connection")
        return arrived

    def _receive_string(self) -> bytes:
        unread, begins = self._unread, self._taken + SIZE.size
        # Most values have arrived together with others.
        if begins <= len(unread) and (ends := begins + SIZE.unpack_from(unread, self._taken)[0]) <= len(unread):
            self._taken = ends
            return unread[begins:ends]
        size = int(SIZE.unpack(self._receive(SIZE.size))[0])
        kept = bytearray()
        for start in range(0, size, PART_BYTES):
            self._begin()
            for piece in self._pieces(min(size - start, PART_BYTES)):
                kept += piece[: MAX_VALUE_BYTES + 1 - len(kept)]
        return bytes(kept)

    def _failed(self, why: str) -> StoreUnreachable:
        self._broken = self._broken or why
        self.close()
        return StoreUnreachable(f"the connection to the store at {self._name} broke: {self._broken}")


def connect(
    address: Address, name: str, timeout_s: float, call_timeout_s: float, asks: str = "", reads: Sequence[str] = ()
) -> TcpStoreClient:
    """Connect to the TCPStore at this address; `name` is the endpoint, for messages; the last two as with `handshake`.

    Raises Refused if nothing listens there, StoreUnreachable if it cannot be reached, both with the bare reason, else
    as `TcpStoreClient.handshake`.
    """
    deadline = time.monotonic() + timeout_s
    family, where = address
    try:
        connected = socket.socket(family, socket.SOCK_STREAM)
    except OSError as why:
        if why.errno not in _NO_FAMILY:
            raise
        raise Refused(_reason(why)) from why  # a kernel without this IP version, whose names may still have addresses
    try:
        connected.settimeout(timeout_s)
        connected.connect(where)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Closing discards what the kernel has not delivered. Else it would go on sending it for minutes, and a record
        # that was sent on an abandoned connection might arrive after a newer one that was sent on the next.
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DISCARD)
    except OSError as why:
        connected.close()
        kind = Refused if isinstance(why, ConnectionRefusedError) else StoreUnreachable
        raise kind(_reason(why)) from why
    client = TcpStoreClient(connected, name, call_timeout_s)
    try:
        client.handshake(deadline - time.monotonic(), asks, reads)
    except StoreError:
        client.close()
        raise
    return client


def _reason(why: OSError) -> str:
    if isinstance(why, TimeoutError):
        return "no answer: the address is wrong, the node is down, or a firewall drops packets"
    if isinstance(why, ConnectionRefusedError):
        return "nothing listens there yet (connection refused)"
    return (why.strerror or str(why)).lower()


def connect_any(
    where: Endpoint, timeout_s: float, call_timeout_s: float, asks: str = ""
) -> tuple[TcpStoreClient, Address]:
    """A client of the server at the first of this endpoint's addresses that takes a connection, and that address.
    Raises as `connect`; of several errors the first, as the resolver puts what this host can reach first."""
    first: StoreUnreachable | None = None
    for address in resolve(where):
        try:
            return connect(address, str(where), timeout_s, call_timeout_s, asks), address
        except HandshakeTimeout:
            raise
        except StoreUnreachable as why:
            first = first or why
    raise first or StoreUnreachable(f"{where.host} has no address")
