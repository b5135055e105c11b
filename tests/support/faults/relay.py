"""A relay between agents and a store, which can break and silence some of the connections while the others live."""

from __future__ import annotations

import re
import socket
import struct
import threading
from contextlib import suppress

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER by which close() resets a connection."""


class Relay:
    """Forwards connections to a port of this host. Ends with `close`."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._silent = False
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket | None]] = []
        self._sent: dict[socket.socket, bytes] = {}
        """What each client has sent."""
        self._threads = [threading.Thread(target=self._accept, name="test-relay")]
        self._threads[0].start()

    def silence(self, sender_of: bytes) -> None:
        """Reset the connections whose client has sent bytes that this pattern matches; accept new ones, and never
        answer on them."""
        pattern = re.compile(sender_of)
        with self._lock:
            self._silent = True
            matching = [pair for pair in self._pairs if pattern.search(self._sent.get(pair[0], b""))]
            self._pairs = [pair for pair in self._pairs if pair not in matching]
        assert matching, f"no connection has sent {sender_of!r}"
        for client, store in matching:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            _end(client, store)

    def close(self) -> None:
        _end(self._server)
        with self._lock:
            pairs, self._silent = self._pairs, True
        for pair in pairs:
            _end(*pair)
        for thread in self._threads:
            thread.join(5.0)

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._server.accept()
                with self._lock:
                    store = None if self._silent else socket.create_connection(("127.0.0.1", self._port))
                    self._pairs.append((client, store))
                    if store is not None:
                        ways = ((client, store), (store, client))
                        self._threads += [threading.Thread(target=self._forward, args=way) for way in ways]
                        for thread in self._threads[-2:]:
                            thread.start()

    def _forward(self, source: socket.socket, to: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                with self._lock:
                    self._sent[source] = (self._sent.get(source, b"") + data)[-100_000:]
                to.sendall(data)
        _end(source, to)


def _end(*sockets: socket.socket | None) -> None:
    for each in sockets:
        if each is not None:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
