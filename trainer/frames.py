"""Messages between a program and its workers: a header in JSON and bytes, over a socket in a private directory."""

from __future__ import annotations

import json
import os
import socket
import struct
from typing import Any

_LENGTHS = struct.Struct("!IQ")
READ_BYTES = 4096
"""How much is read at once: more than most messages have."""
_encoded, _decoded = json.JSONEncoder().encode, json.JSONDecoder().raw_decode
"""What `json.dumps` and `json.loads` come to, which first look at arguments that no message has."""


class Closed(EOFError):
    """The other side closed the connection."""


def send(connection: socket.socket, header: dict[str, Any], body: bytes = b"") -> None:
    """Send one message. Raises OSError if the connection breaks."""
    connection.sendall(packed(header, body))


def packed(header: dict[str, Any], body: bytes = b"") -> bytes:
    """One message as it is sent."""
    head = _encoded(header).encode()
    return b"".join((_LENGTHS.pack(len(head), len(body)), head, body))


class Inbox:
    """The messages of one connection. A short one takes one system call."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._rest = connection, b""

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """The next message. Raises Closed where the other side closed the connection, and OSError."""
        data = self._rest
        while len(data) < _LENGTHS.size:
            data += self._more()
        head, body = _LENGTHS.unpack_from(data)
        begin, end = _LENGTHS.size + head, _LENGTHS.size + head + body
        if len(data) < end:
            data = self._filled(data, end)
        self._rest = data[end:]
        return _decoded(data[_LENGTHS.size : begin].decode())[0], data[begin:end]

    def _more(self) -> bytes:
        if not (data := self._connection.recv(READ_BYTES)):
            raise Closed("the other side closed the connection")
        return data

    def _filled(self, data: bytes, length: int) -> bytes:
        whole = bytearray(length)
        whole[: len(data)] = data
        view = memoryview(whole)[len(data) :]
        while view:
            count = self._connection.recv_into(view)
            if not count:
                raise Closed("the other side closed the connection")
            view = view[count:]
        return bytes(whole)


class Place:
    """The socket's address: through a descriptor of its directory, as a name of a socket may have 108 bytes only."""

    def __init__(self, folder: str, name: str) -> None:
        self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.address = f"/proc/self/fd/{self._descriptor}/{name}"

    def close(self) -> None:
        os.close(self._descriptor)
