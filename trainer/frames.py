"""Messages between a program and its workers: a header in JSON and bytes, over a socket in a private directory."""

from __future__ import annotations

import json
import os
import socket
import struct
from typing import Any

_LENGTHS = struct.Struct("!II")


def send(connection: socket.socket, header: dict[str, Any], body: bytes = b"") -> None:
    """Send one message. Raises OSError if the connection breaks."""
    connection.sendall(packed(header, body))


def packed(header: dict[str, Any], body: bytes = b"") -> bytes:
    """One message as it is sent."""
    head = json.dumps(header).encode()
    return b"".join((_LENGTHS.pack(len(head), len(body)), head, body))


def receive(connection: socket.socket) -> tuple[dict[str, Any], bytes]:
    """The next message. Raises EOFError where the other side closed the connection, and OSError."""
    head, body = _LENGTHS.unpack(_exactly(connection, _LENGTHS.size))
    data = _exactly(connection, head + body)
    return json.loads(data[:head]), data[head:]


def _exactly(connection: socket.socket, length: int) -> bytes:
    parts = bytearray(length)
    view = memoryview(parts)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise EOFError("the other side closed the connection")
        view = view[count:]
    return bytes(parts)


class Place:
    """The socket's address: through a descriptor of its directory, as a name of a socket may have 108 bytes only."""

    def __init__(self, folder: str, name: str) -> None:
        self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.address = f"/proc/self/fd/{self._descriptor}/{name}"

    def close(self) -> None:
        os.close(self._descriptor)
