"""One connection to a control socket: what has arrived, what waits to be sent, until when something must happen."""

from __future__ import annotations

import _socket
import select

from . import http
from .followers import Follower
from .messages import to_json

RECEIVED_MAX = http.HEAD_MAX + http.BODY_MAX + 4
"""Bytes that wait to be understood; no more is read until they are."""
UNSENT_FULL = 1 << 16
"""Bytes that wait for the reader: a follower stops there."""
UNSENT_MAX = 1 << 22
"""Bytes at which a reader is given up. No single answer is as long but for stacks of many workers."""
REQUEST_S = 5.0
"""How long a request may take to arrive."""
IDLE_S = 60.0
"""How long a connection may stay without one."""
TAKEN_S = 10.0
"""How long a reader may take nothing of what waits for it."""
NEVER = float("inf")


class Connection:
    """Its methods raise OSError where the peer is gone. None waits."""

    def __init__(self, sock: _socket.socket, now: float) -> None:
        self._sock = sock
        self.fileno = sock.fileno()
        self.received = bytearray()
        self.unsent = bytearray()
        self.follower: Follower | None = None
        self.who = ""
        """Who asks, for people."""
        self.busy = False
        """A thread makes the answer."""
        self.keeps = True
        self.closing = False
        """It ends once all is sent."""
        self.ended = False
        """The peer sends no more."""
        self.watched = select.EPOLLIN
        self.due_s = now + REQUEST_S
        """When it is dropped unless something has happened."""
        self._chunks = True

    @property
    def streaming(self) -> bool:
        """It is a stream, and takes no further request."""
        return self.follower is not None

    @property
    def full(self) -> bool:
        """Its reader should take some of what waits, before there is more."""
        return len(self.unsent) >= UNSENT_FULL

    @property
    def behind(self) -> bool:
        """Its reader takes too little for too long."""
        return len(self.unsent) > UNSENT_MAX

    def receive(self, now: float) -> None:
        """Take what has arrived; of what a follower sends, nothing is kept."""
        try:
            data = self._sock.recv(RECEIVED_MAX)
        except BlockingIOError:
            return
        if not data:
            self.ended = True
        elif self.follower is None and not self.closing:
            if not self.received:
                self.due_s = now + REQUEST_S
            self.received += data

    def send(self, data: bytes) -> None:
        """Send it, as far as the socket takes it; the rest waits."""
        if self.unsent:
            self.unsent += data
            return
        sent = self._push(data)
        self.unsent += memoryview(data)[sent:]

    def flush(self, now: float) -> None:
        """Send more of what waits."""
        if self.unsent and (sent := self._push(self.unsent)):
            del self.unsent[:sent]
            self.progress(now)

    def _push(self, data: bytes | bytearray) -> int:
        try:
            return self._sock.send(data, _socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return 0

    def send_message(self, message: object) -> bool:
        """Send one message of a stream; False where the next ones should wait."""
        line = to_json(message) + b"\n"
        self.send(http.chunk(line) if self._chunks else line)
        return not self.full

    def follow(self, follower: Follower, head: bytes, *, chunks: bool) -> None:
        """Become a stream."""
        self.follower, self._chunks = follower, chunks
        self.received.clear()
        self.due_s = NEVER
        self.send(head)

    def end_stream(self) -> None:
        """All of it was sent."""
        if not self.closing:
            self.closing = True
            if self._chunks:
                self.send(http.LAST_CHUNK)

    def progress(self, now: float) -> None:
        """Something was sent or answered: the time for the next begins."""
        if self.unsent:
            self.due_s = now + TAKEN_S
        elif self.busy or self.follower is not None:
            self.due_s = NEVER
        else:
            self.due_s = now + (REQUEST_S if self.received else IDLE_S)

    def wanted(self, now: float) -> int:
        """What to wait for, as epoll has it."""
        if self.busy:
            self.due_s = NEVER
        elif self.unsent and self.due_s == NEVER:
            self.due_s = now + TAKEN_S
        reads = not self.ended and (self.follower is not None or len(self.received) < RECEIVED_MAX)
        return (select.EPOLLIN if reads else 0) | (select.EPOLLOUT if self.unsent else 0)

    def close(self) -> None:
        """Close the socket, and end the stream that a client follows on it."""
        if self.follower is not None:
            self.follower.close()
        self._sock.close()
