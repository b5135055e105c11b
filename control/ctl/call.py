"""Calls of one agent through its control socket. Every wait has a limit."""

from __future__ import annotations

import _socket
import json
import select
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

PREFIX = "/elastic.control.v1.Control/"
ANSWER_S = 3.0
"""How long an agent has for what it answers at once: its loop is never away for long, unless it is frozen."""
SLOW_S = 120.0
"""The same for what takes time: stacks, watches."""
SLOW = ("Stacks", "SetWatch")
NO_AGENT = (
    "what answers there is no agent; give an agent's control.sock, or no --address to look for those of this host"
)
Message = dict[str, Any]


class AgentUnreachable(Exception):
    """The agent does not answer. One line."""


class CallRefused(Exception):
    """The agent has answered that it will not. One line."""


class Call:
    """One request, and what comes back: one message, or a stream of them."""

    def __init__(self, path: str, method: str, fields: Mapping[str, Any] | None = None) -> None:
        """Raises AgentUnreachable where nobody listens."""
        self.path, self.method = path, method
        self.ended = False
        self.limit_s = SLOW_S if method in SLOW else ANSWER_S
        self._received = bytearray()
        self._lines = bytearray()
        self._head: tuple[int, bool] | None = None
        self._left = -1
        """Bytes that are still to come of the body, or of this chunk."""
        body = json.dumps(fields or {}).encode()
        head = f"POST {PREFIX}{method} HTTP/1.1\r\nHost: agent\r\nContent-Length: {len(body)}\r\n\r\n"
        self._sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
        try:
            self._sock.setblocking(False)
            self._sock.connect(path)
            with suppress(BrokenPipeError):  # refused at once, as another user is: why is there to be read
                self._sock.send(head.encode() + body)
        except OSError as error:
            self._sock.close()
            raise AgentUnreachable(f"{path}: {error.strerror}") from error

    def fileno(self) -> int:
        return self._sock.fileno()

    def answer(self) -> Message:
        """The one message. Raises AgentUnreachable, CallRefused."""
        try:
            for message in self.messages(self.limit_s):
                return message
        finally:
            self.close()
        raise AgentUnreachable(self.unanswered())

    def unanswered(self) -> str:
        """What is wrong where it has ended without a message."""
        return f"{self.path}: the connection ended without an answer to {self.method}"

    def late(self) -> str:
        """What is wrong where no answer came in time."""
        return f"{self.path}: no answer to {self.method} in {self.limit_s:g} s; the agent may be frozen"

    def messages(self, limit_s: float | None = None) -> Iterator[Message]:
        """All messages as they come, until the end; `limit_s`: how long all may take, None for as long as it goes on.
        Raises AgentUnreachable, CallRefused."""
        until = None if limit_s is None else time.monotonic() + limit_s
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        while not self.ended:
            left_ms = None if until is None else max(0.0, until - time.monotonic()) * 1000
            if not poll.poll(left_ms):
                raise AgentUnreachable(self.late())
            yield from self.arrived()

    def ends_soon(self) -> bool:
        """Whether it ends within `ANSWER_S`; what comes until then is dropped. Raises AgentUnreachable, CallRefused."""
        until = time.monotonic() + ANSWER_S
        while not self.ended and select.select([self], [], [], max(0.0, until - time.monotonic()))[0]:
            self.arrived()
        return self.ended

    def arrived(self) -> list[Message]:
        """What has come by now. Raises AgentUnreachable, CallRefused."""
        try:
            data = self._sock.recv(1 << 18)
        except BlockingIOError:
            return []
        except OSError as error:
            raise AgentUnreachable(f"{self.path}: {error.strerror}") from error
        self.ended = not data
        self._received += data
        try:
            return self._parsed()
        except (ValueError, LookupError, TypeError, AttributeError):
            self.ended = True
            raise AgentUnreachable(f"{self.path}: {NO_AGENT}") from None

    def _parsed(self) -> list[Message]:
        """What has come of messages. Raises AgentUnreachable, CallRefused, and what reading another program's words
        leads to."""
        if self._head is None and not self._begin():
            return []
        self._unpack()
        *whole, rest = self._lines.split(b"\n")
        status, _ = self._head or (0, False)
        if status != 200:
            if self.ended:
                raise CallRefused(json.loads(self._lines or b"{}").get("message", f"status {status}"))
            return []
        self._lines = bytearray() if self.ended else bytearray(rest)
        found = [json.loads(line) for line in [*whole, *([rest] if self.ended else [])] if line]
        if not all(isinstance(each, dict) for each in found):
            raise TypeError("a message is an object")
        return found

    def _begin(self) -> bool:
        """Take the head of the answer, if it is there."""
        head, found, rest = bytes(self._received).partition(b"\r\n\r\n")
        if not found:
            if self.ended:
                raise AgentUnreachable(f"{self.path}: the agent has closed the connection")
            return False
        first, *lines = head.lower().split(b"\r\n")
        headers = dict(line.split(b": ", 1) for line in lines)
        chunked = headers.get(b"transfer-encoding") == b"chunked"
        self._head = int(first.split()[1]), chunked
        self._left = -1 if chunked else int(headers[b"content-length"])
        self._received = bytearray(rest)
        return True

    def _unpack(self) -> None:
        """Move what has come of the body to `_lines`."""
        if self._head is not None and not self._head[1]:
            self._lines += self._received
            self._left -= len(self._received)
            self._received.clear()
            self.ended = self.ended or self._left <= 0
            return
        while True:
            if self._left < 0:
                size, found, rest = bytes(self._received).partition(b"\r\n")
                if not found:
                    return
                self._left, self._received = int(size, 16), bytearray(rest)
            if self._left == 0:
                self.ended = True
                return
            if len(self._received) < self._left + 2:
                return
            self._lines += self._received[: self._left]
            del self._received[: self._left + 2]
            self._left = -1

    def close(self) -> None:
        """End the call."""
        self.ended = True
        self._sock.close()
