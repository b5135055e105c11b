"""The requests of torch's TCPStore as bytes.

The protocol is small and the same in torch 2.4 to 2.13 (`TCPStoreBackend.hpp`, `enum class QueryType`): a connection
opens with VALIDATE and a magic number; a request is one byte, then numbers of 8 bytes and length-prefixed strings, all
in the host's byte order.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator, Sequence

MAX_VALUE_BYTES = 1024 * 1024
"""Longest value written, as `codec.limits.MAX_ROUND_BYTES`. A longer value that is read is cut to one byte more."""
KEYS_PER_REQUEST = 64
"""Bounds one reply to 64 MiB, whatever other programs have written."""

_VALIDATE, SET, COMPARE_SET, ADD, _CHECK, WAIT = 0, 1, 2, 4, 5, 6
_COUNT_KEYS, DELETE, _MULTI_GET, CANCEL_WAIT = 7, 8, 10, 12
READY, STOP_WAITING, WAIT_CANCELED = 0, 0, 1
SIZE = struct.Struct("=Q")
INT64 = struct.Struct("=q")
OPENING = bytes([_VALIDATE]) + struct.pack("=I", 0x3C85F7CE) + bytes([_COUNT_KEYS])
"""The magic number, and a first question. Not PING, which torch 2.4 lacks."""
CHECK_ONE = bytes([_CHECK]) + SIZE.pack(1)


@functools.lru_cache(2048)  # the host reads the heartbeats of all nodes twice a second
def packed_key(key: str) -> bytes:
    name = b"/" + key.encode("utf-8")
    return SIZE.pack(len(name)) + name


def reading(keys: Sequence[str]) -> bytes:
    """Asks for the values of these, at most `KEYS_PER_REQUEST`."""
    return bytes([_MULTI_GET]) + SIZE.pack(len(keys)) + b"".join([packed_key(key) for key in keys])


def packed(data: bytes) -> bytes:
    return SIZE.pack(len(data)) + data


def bounded(key: str, value: bytes) -> bytes:
    """The value. Raises ValueError if it is too long."""
    if len(value) > MAX_VALUE_BYTES:
        raise ValueError(f"key {key}: the value has {len(value)} bytes; the limit is {MAX_VALUE_BYTES}; shorten it")
    return value


def batches(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    return (keys[start : start + KEYS_PER_REQUEST] for start in range(0, len(keys), KEYS_PER_REQUEST))
