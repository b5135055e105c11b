"""TCPStore's requests and answers as bytes.

A connection opens with VALIDATE and a magic number. A request is one byte, then numbers of 8 bytes and length-prefixed
strings, all in the host's byte order (torch 2.13, `TCPStoreBackend.hpp`, `enum class QueryType`, and `TCPStore.cpp` for
what follows each of them). Later versions of torch add requests at the end; one that is not known ends the connection,
as with a server of that age.
"""

from __future__ import annotations

import struct

from .table import WAIT_CANCELED, Client, Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

MAGIC = 0x3C85F7CE
MAX_KEY_BYTES, MAX_VALUE_BYTES, MAX_KEYS = 8 * 1024, 8 * 1024 * 1024, 128 * 1024
"""Longest key and value, and most keys in one request: the bounds of torch's own server."""
MAX_ANSWER_BYTES = 1 << 30
"""Longest answer to one request."""
READY, NOT_READY = b"\0", b"\1"
OF_ATTEMPT = b"//worker/attempt_"
"""How keys begin to which torch adds TORCHELASTIC_RESTART_COUNT, as it does where an agent serves the store; TCPStore
itself adds the first character."""

_SIZE, _INT64, _UINT32 = struct.Struct("=Q"), struct.Struct("=q"), struct.Struct("=I")
_size_at, _int64_at = _SIZE.unpack_from, _INT64.unpack_from


class Incomplete(Exception):
    """The rest of a request has not been received."""

    def __init__(self, needed: int) -> None:
        """`needed`: how many bytes there must be at least before another attempt is worth it."""
        self.needed = needed


class Requests:
    """Carries out requests on a table."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._by_number: tuple[Callable[[Client, bytes, int], int], ...] = (
            self._refuse,  # VALIDATE, which only opens a connection
            self._set,
            self._compare_set,
            self._get,
            self._add,
            self._check,
            self._wait,
            self._count_keys,
            self._delete,
            self._append,
            self._multi_get,
            self._multi_set,
            self._cancel_wait,
            self._ping,
            self._queue_push,
            self._queue_pop,
            self._queue_len,
            self._list_keys,
            self._barrier,
        )

    def carry_out(self, client: Client, data: bytes) -> tuple[int, int]:
        """Carry out all complete requests; the answers are added to the client's. Returns how many bytes they took, and
        how many there must be, from there on, for the next. Raises ValueError for what is no request."""
        at, end = 0, len(data)
        requests = self._by_number
        try:
            if not client.valid:
                at = self._validate(client, data)
            while at < end:
                at = requests[data[at]](client, data, at + 1)
        except Incomplete as rest:
            return at, rest.needed - at
        except struct.error:  # a number that is cut off
            return at, 0
        except IndexError:
            raise ValueError(f"{data[at]} is the number of no request") from None
        return at, 0

    # Each of these reads a request from `at` on, answers it, and returns where the next begins.

    def _validate(self, client: Client, data: bytes) -> int:
        if data[0] != 0 or (len(data) >= 5 and _UINT32.unpack_from(data, 1)[0] != MAGIC):
            raise ValueError("the connection does not open as a TCPStore client's")
        if len(data) < 5:
            raise Incomplete(5)
        client.valid = True
        return 5

    def _refuse(self, client: Client, data: bytes, at: int) -> int:
        raise ValueError("a second VALIDATE")

    def _set(self, client: Client, data: bytes, at: int) -> int:
        key, at = _key(data, at)
        value, at = _value(data, at)
        self.table.put(key, value)
        return at

    def _compare_set(self, client: Client, data: bytes, at: int) -> int:
        key, at = _key(data, at)
        expected, at = _value(data, at)
        value, at = _value(data, at)
        _answer(client, self.table.compare_set(key, expected, value))
        return at

    def _get(self, client: Client, data: bytes, at: int) -> int:
        key, at = _key(data, at)
        _answer(client, self.table.values.get(key, b""))
        return at

    def _add(self, client: Client, data: bytes, at: int) -> int:
        key, at = _key(data, at)
        amount = _int64_at(data, at)[0]
        client.answers += _INT64.pack(self.table.add(key, amount))
        return at + 8

    def _check(self, client: Client, data: bytes, at: int) -> int:
        keys, at = _keys(data, at)
        client.answers += READY if all(map(self.table.has, keys)) else NOT_READY
        return at

    def _wait(self, client: Client, data: bytes, at: int) -> int:
        keys, at = _keys(data, at)
        self.table.cancel(client)
        self.table.wait(client, keys)
        return at

    def _count_keys(self, client: Client, data: bytes, at: int) -> int:
        client.answers += _INT64.pack(len(self.table.values))
        return at

    def _delete(self, client: Client, data: bytes, at: int) -> int:
        key, at = _key(data, at)
        client.answers += _INT64.pack(self.table.delete(key))
        return at

    def _append(self, client: Client, data: bytes, at: int) -> int:
        key, at = _key(data, at)
        value, at = _value(data, at)
        self.table.append(key, value)
        return at

    def _multi_get(self, client: Client, data: bytes, at: int) -> int:
        keys, at = _keys(data, at)
        values = [self.table.values.get(key, b"") for key in keys]
        if sum(map(len, values)) > MAX_ANSWER_BYTES:
            raise ValueError(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
        # A full mesh of N workers asks for N keys in each of N requests, so this and `_keys` are written for speed.
        client.answers += b"".join([part for value in values for part in (_SIZE.pack(len(value)), value)])
        return at

    def _multi_set(self, client: Client, data: bytes, at: int) -> int:
        pairs = []
        count, at = _count(data, at)
        for _ in range(count):
            key, at = _key(data, at)
            value, at = _value(data, at)
            pairs.append((key, value))
        for key, value in pairs:
            self.table.put(key, value)
        return at

    def _cancel_wait(self, client: Client, data: bytes, at: int) -> int:
        self.table.cancel(client)
        client.answers += WAIT_CANCELED
        return at

    def _ping(self, client: Client, data: bytes, at: int) -> int:
        client.answers += _UINT32.pack(_UINT32.unpack_from(data, at)[0])
        return at + 4

    def _queue_push(self, client: Client, data: bytes, at: int) -> int:
        key, at = _key(data, at)
        value, at = _value(data, at)
        self.table.push(key, value)
        return at

    def _queue_pop(self, client: Client, data: bytes, at: int) -> int:
        key, at = _key(data, at)
        size, value = self.table.pop(key)
        client.answers += _INT64.pack(size)
        if size:
            _answer(client, value)
        return at

    def _queue_len(self, client: Client, data: bytes, at: int) -> int:
        key, at = _key(data, at)
        client.answers += _INT64.pack(len(self.table.queues.get(key, ())))
        return at

    def _list_keys(self, client: Client, data: bytes, at: int) -> int:
        client.answers += _INT64.pack(len(self.table.values))
        for key in self.table.values:
            _answer(client, key)
        return at

    def _barrier(self, client: Client, data: bytes, at: int) -> int:
        key, at = _key(data, at)
        size = _int64_at(data, at)[0]
        self.table.cancel(client)
        self.table.barrier(client, key, size)
        return at + 8


def _answer(client: Client, value: bytes) -> None:
    client.answers += _SIZE.pack(len(value)) + value


def _key(data: bytes, at: int) -> tuple[bytes, int]:
    size = _size_at(data, at)[0]
    at += 8
    if size > MAX_KEY_BYTES:
        raise ValueError(f"a request names a key of {size} bytes; the limit is {MAX_KEY_BYTES}; shorten the key")
    end = at + size
    if end > len(data):
        raise Incomplete(end)
    return _shared(data[at:end]), end


def _shared(key: bytes) -> bytes:
    """Without what torch 2.4 puts before it: each node counts its own restarts, and a store serves one round only."""
    return key[key.find(b"/", len(OF_ATTEMPT)) + 1 :] if key.startswith(OF_ATTEMPT) else key


def _value(data: bytes, at: int) -> tuple[bytes, int]:
    size = _size_at(data, at)[0]
    at += 8
    if size > MAX_VALUE_BYTES:
        raise ValueError(f"a request holds a value of {size} bytes; the limit is {MAX_VALUE_BYTES}; store it in parts")
    end = at + size
    if end > len(data):
        raise Incomplete(end)
    return data[at:end], end


def _count(data: bytes, at: int) -> tuple[int, int]:
    count = _size_at(data, at)[0]
    if count > MAX_KEYS:
        raise ValueError(f"a request names {count} keys; the limit is {MAX_KEYS}; ask for them in parts")
    return count, at + 8


def _keys(data: bytes, at: int) -> tuple[list[bytes], int]:
    count, at = _count(data, at)
    keys = []
    last = len(data)
    for _ in range(count):
        begin = at + 8
        size = _size_at(data, at)[0]
        end = begin + size
        if end > last or size > MAX_KEY_BYTES:
            _key(data, at)  # which says why
        keys.append(data[begin:end])
        at = end
    if keys and keys[0].startswith(OF_ATTEMPT):  # one client's keys all begin alike
        keys = [_shared(key) for key in keys]
    return keys, at
