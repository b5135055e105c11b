"""A client of torch's TCPStore that keeps its deadlines. No torch in it.

torch's own client blocks for ever against a frozen server, retries strangers for minutes, looks every peer up in
reverse DNS (5 s stalls) and prints stack traces, and importing it costs a second and 200 MB on every node. The
protocol is small and the same in torch 2.4 to 2.13 (`TCPStoreBackend.hpp`, `enum class QueryType`): a connection
opens with VALIDATE and a magic number; a request is one byte, then numbers of 8 bytes and texts with their length
before them, all in the byte order of the machine. Keys carry torch's prefix "/", so that
torch's client sees the same keys.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence

from ..endpoint import Address
from ..store import StoreError, StoreForeign, StoreUnreachable

MAX_VALUE_BYTES = 1024 * 1024
"""Longest value written, and kept when read (a longer one is cut to one byte more); as `codec.MAX_ROUND_BYTES`."""
HANDSHAKE_S = 4.0
"""How long a server may take to answer the first time. TCPStore does it in microseconds."""
MAX_KEYS = 2**40
"""No server has so many keys; what a stranger says, read as a count, is nearly always above."""
MAX_WAIT_S = 24 * 3600.0
"""A longer wait ends early, as poll counts milliseconds in 32 bits."""
KEYS_PER_REQUEST = 64
"""Bounds one reply to 64 MiB, whatever strangers have written."""

_MAGIC = 0x3C85F7CE
_VALIDATE, _SET, _COMPARE_SET, _ADD, _CHECK, _WAIT = 0, 1, 2, 4, 5, 6
_COUNT_KEYS, _DELETE, _MULTI_GET, _CANCEL_WAIT = 7, 8, 10, 12
_READY, _STOP_WAITING, _WAIT_CANCELED = 0, 0, 1
_SIZE = struct.Struct("=Q")
_INT = struct.Struct("=q")
_WORD = struct.Struct("=I")


class StoreSilent(StoreUnreachable):
    """Somebody accepted the connection and never said a word."""


class Wire:
    """One connection. One thread calls it; `close` may come from any, and ends a call that blocks.

    Every call raises StoreUnreachable when the connection broke or `call_timeout_s` passed; the connection is closed
    then, as an answer may still be under way.
    """

    def __init__(self, connected: socket.socket, name: str, call_timeout_s: float) -> None:
        """`name` is the endpoint, for messages."""
        self._socket = connected
        self._name = name
        self.call_timeout_s = call_timeout_s
        self._deadline = 0.0
        self._queued = b""
        self._broken = ""
        # Held during a call, so that close() of another thread frees the descriptor only when nobody blocks on it.
        self._calling = threading.RLock()

    def greet(self, timeout_s: float) -> None:
        """The handshake. Raises StoreForeign if the other end is no TCPStore, StoreSilent if it says nothing."""
        with self._calling:
            self._begin(min(timeout_s, HANDSHAKE_S))
            # Not PING: torch 2.4 does not know it. Anybody who answers with a plausible count of keys is a TCPStore.
            self._send(bytes([_VALIDATE]) + _WORD.pack(_MAGIC) + bytes([_COUNT_KEYS]))
            if not self._readable():
                self.close()
                raise StoreSilent(
                    f"{self._name} accepts connections and says nothing for {HANDSHAKE_S:g} s: it is no TCPStore, or "
                    "its process is frozen; see who listens there, or choose another port"
                )
            answer = b""
            try:
                for piece in self._pieces(_INT.size):
                    answer += piece
            except StoreUnreachable:
                if not answer:
                    raise
            if len(answer) < _INT.size or not 0 <= _INT.unpack(answer)[0] <= MAX_KEYS:
                self.close()
                raise StoreForeign(
                    f"{self._name} is no TCPStore: it answered {answer!r}; stop that server, or choose another port"
                )

    def close(self) -> None:
        """Give the connection up. Idempotent."""
        self._broken = self._broken or "this connection was closed here"
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the other end was faster, or it is closed already
        with self._calling:
            self._socket.close()

    def put_later(self, key: str, value: bytes) -> None:
        """Set a key; travels with the next call, whose return acknowledges it (the server answers in order)."""
        self._queued += bytes([_SET]) + _text(_key(key)) + _text(_fit(key, value))

    def put(self, key: str, value: bytes) -> None:
        """Set a key, acknowledged."""
        with self._calling:
            self.put_later(key, value)
            self.have([key])

    def have(self, keys: Sequence[str]) -> list[bool]:
        """Which of the keys exist."""
        found: list[bool] = []
        with self._calling:
            for part in _parts(keys):
                self._begin()
                self._send(b"".join(bytes([_CHECK]) + _SIZE.pack(1) + _text(_key(key)) for key in part))
                found += [byte == _READY for byte in self._receive(len(part))]
        return found

    def get(self, keys: Sequence[str]) -> dict[str, bytes]:
        """The values of those keys that exist.

        One that is deleted meanwhile reads as empty, or breaks the connection (a server without libuv).
        """
        values: dict[str, bytes] = {}
        with self._calling:
            present = [key for key, exists in zip(keys, self.have(keys), strict=True) if exists]
            for part in _parts(present):
                self._begin()
                self._send(bytes([_MULTI_GET]) + _SIZE.pack(len(part)) + b"".join(_text(_key(key)) for key in part))
                for key in part:
                    values[key] = self._receive_text()
        return values

    def create(self, key: str, value: bytes) -> bytes:
        """Set a key unless it exists; returns what it holds now."""
        with self._calling:
            holds = self.swap(key, b"", value)
            if holds == value:
                # Some servers wake no waiter on compare_set, all do on set; equal bytes, so nothing else changes.
                self.put(key, value)
        return holds

    def swap(self, key: str, expected: bytes, value: bytes) -> bytes:
        """Set a key if it holds `expected`, or, where that is empty, is not there; returns what it holds now, but also
        `expected` if the key is not there. Wakes no waiter."""
        with self._calling:
            self._begin()
            self._send(bytes([_COMPARE_SET]) + _text(_key(key)) + _text(expected) + _text(_fit(key, value)))
            return self._receive_text()

    def add(self, key: str, amount: int) -> int:
        """Add to a counter kept as decimal text; returns its new value. The server hangs up if it holds no number."""
        with self._calling:
            self._begin()
            self._send(bytes([_ADD]) + _text(_key(key)) + _INT.pack(amount))
            return int(_INT.unpack(self._receive(_INT.size))[0])

    def delete(self, keys: Sequence[str]) -> None:
        """Delete those keys that exist."""
        with self._calling:
            for part in _parts(keys):
                self._begin()
                self._send(b"".join(bytes([_DELETE]) + _text(_key(key)) for key in part))
                self._receive(_INT.size * len(part))

    def wait(self, key: str, timeout_s: float) -> bool:
        """Block until the key exists (True) or the time has passed (False)."""
        with self._calling:
            self._begin()
            self._send(bytes([_WAIT]) + _SIZE.pack(1) + _text(_key(key)))
            self._begin(timeout_s)
            if self._readable():
                self._begin()
                return self._receive(1)[0] == _STOP_WAITING
            self._begin()
            self._send(bytes([_CANCEL_WAIT]))
            if self._receive(1)[0] == _WAIT_CANCELED:
                return False
            self._receive(1)  # the key came just before the cancellation, which is answered all the same
            return True

    def _begin(self, timeout_s: float | None = None) -> None:
        if self._broken:
            raise StoreUnreachable(f"the store at {self._name} is gone: {self._broken}")
        self._deadline = time.monotonic() + (self.call_timeout_s if timeout_s is None else timeout_s)

    def _left_s(self) -> float:
        # Zero would make the socket non-blocking, with another error.
        return max(self._deadline - time.monotonic(), 0.001)

    def _readable(self) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        left_s = min(max(self._deadline - time.monotonic(), 0.0), MAX_WAIT_S)
        return bool(poll.poll(left_s * 1000))

    def _send(self, request: bytes) -> None:
        request, self._queued = self._queued + request, b""
        try:
            self._socket.settimeout(self._left_s())
            self._socket.sendall(request)
        except OSError as why:
            raise self._failed(str(why.strerror or why)) from why

    def _receive(self, size: int) -> bytes:
        return b"".join(self._pieces(size))

    def _pieces(self, size: int) -> Iterator[bytes]:
        while size > 0:
            try:
                self._socket.settimeout(self._left_s())
                piece = self._socket.recv(min(size, 65536))
            except TimeoutError as why:
                raise self._failed(f"no answer for {self.call_timeout_s:g} s") from why
            except OSError as why:
                raise self._failed(str(why.strerror or why)) from why
            if not piece:
                raise self._failed("the server closed the connection")
            size -= len(piece)
            yield piece

    def _receive_text(self) -> bytes:
        size = int(_SIZE.unpack(self._receive(_SIZE.size))[0])
        kept = bytearray()
        for piece in self._pieces(size):
            kept += piece[: MAX_VALUE_BYTES + 1 - len(kept)]
        return bytes(kept)

    def _failed(self, why: str) -> StoreUnreachable:
        self._broken = self._broken or why
        self.close()
        return StoreUnreachable(f"the store at {self._name} is gone: {self._broken}")


def connect(address: Address, name: str, timeout_s: float, call_timeout_s: float) -> Wire:
    """A connection to the TCPStore at this address.

    Raises StoreUnreachable with the bare reason if nobody listens, else StoreSilent or StoreForeign as `Wire.greet`.
    """
    deadline = time.monotonic() + timeout_s
    family, where = address
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.settimeout(timeout_s)
        made.connect(where)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as why:
        made.close()
        raise StoreUnreachable(_reason(why)) from why
    wire = Wire(made, name, call_timeout_s)
    try:
        wire.greet(deadline - time.monotonic())
    except StoreError:
        wire.close()
        raise
    return wire


def _reason(why: OSError) -> str:
    if isinstance(why, TimeoutError):
        return "no answer: the address is wrong, the node is down, or a firewall drops packets"
    if isinstance(why, ConnectionRefusedError):
        return "nobody listens there yet (connection refused)"
    return (why.strerror or str(why)).lower()


def _key(key: str) -> bytes:
    return b"/" + key.encode("utf-8")


def _text(data: bytes) -> bytes:
    return _SIZE.pack(len(data)) + data


def _fit(key: str, value: bytes) -> bytes:
    if len(value) > MAX_VALUE_BYTES:
        raise ValueError(f"key {key}: {len(value)} bytes to store, and the limit is {MAX_VALUE_BYTES}")
    return value


def _parts(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    return (keys[start : start + KEYS_PER_REQUEST] for start in range(0, len(keys), KEYS_PER_REQUEST))
