"""The same server on a thread of the agent: the store of a job that several nodes may host, one after the other."""

from __future__ import annotations

import os
import select
import socket
import threading
import time

from ...rendezvous.endpoint import probe_peer
from .server import Server

BACKLOG = 4096
"""All nodes may connect at once; the kernel limits it to net.core.somaxconn."""
PEER_IDLE_S, PEER_PROBE_S, PEER_PROBES = 30, 10, 3
"""A connection whose peer is silent for the first of these is probed by the kernel, and closed when so many probes were
not answered (tcp(7))."""
REST_S = 0.1
"""For how long nobody is let in after this host has allowed no further connection."""


class ServerThread(Server):
    """Serves from its start until `close`. Ends with the process at the latest."""

    def __init__(self, bound: socket.socket) -> None:
        """`bound`: belongs to the server from now on. Raises OSError if another process listens on its port."""
        bound.listen(BACKLOG)
        probe_peer(bound, PEER_IDLE_S, PEER_PROBE_S, PEER_PROBES)
        host, port = bound.getsockname()[:2]
        family, host = (socket.AF_INET, "127.0.0.1") if host in ("0.0.0.0", "::") else (bound.family, host)  # noqa: S104
        self.address: tuple[int, tuple[str, int]] = int(family), (host, port)
        super().__init__(bound.detach())
        self._closing, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._lock = threading.Lock()
        self._admits_at: float | None = None
        """When connections are accepted again; None: they are."""
        self.poll.register(self._closing, select.EPOLLIN)
        threading.Thread(target=self.run, name="elastic-agent-store", daemon=True).start()

    def run(self) -> None:
        """Serve until `close`."""
        try:
            while not self.turn(self._closing):
                continue
        finally:
            for connection in list(self.connections.values()):
                connection.socket.close()
            self.listener.close()
            self.poll.close()
            os.close(self._closing)

    def turn(self, closing: int = -1) -> bool:
        """As `Server.turn`."""
        closed = super().turn(closing)
        if self._admits_at is not None and time.monotonic() >= self._admits_at:
            self._admits_at = self.limit_s = None
            self.poll.register(self.listener.fileno(), select.EPOLLIN)
        return closed

    def accept(self) -> None:
        """As `Server.accept`. Where the host allows no more (descriptors, memory), who connects waits in its queue, as
        the end of this server would be that of the job."""
        try:
            super().accept()
        except OSError:
            self.poll.unregister(self.listener.fileno())
            self._admits_at, self.limit_s = time.monotonic() + REST_S, REST_S

    def close(self) -> None:
        """Stop serving: connections close, all keys are lost, the port is free. Idempotent."""
        with self._lock:
            wake, self._wake = self._wake, -1
        if wake >= 0:
            os.close(wake)
