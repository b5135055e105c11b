"""Serves HTTP on one listening socket by the agent's loop, which watches one descriptor for all connections."""

from __future__ import annotations

import _socket
import errno
import json
import os
import select
from collections.abc import Callable

from ...agent.loop import Loop
from ...rendezvous.driver.events import LoopAsked
from ..control_socket import BACKLOG
from . import http
from .connection import Connection

CONNECTIONS_MAX = 256
"""Connections at a time; further ones are answered 503, and closed."""
ACCEPTED_AT_ONCE = 32
"""Connections that are accepted before the loop looks at the agent's own events again."""
SERVED_AT_ONCE = 64
"""Connections that are served before that."""
ALL_ADDRESSES = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound to
NO_ROOM_S = 1.0
"""Pause before the next connection is accepted, where this process has no descriptor left."""
CODES = {400: "invalid_argument", 403: "permission_denied", 404: "not_found", 409: "failed_precondition",
         408: "deadline_exceeded", 500: "internal", 503: "unavailable"}  # fmt: skip


class Serving:
    """Takes connections and requests; what a request means is for a subclass."""

    what = "socket"
    """What messages call it."""

    def __init__(self, listener: _socket.socket, loop: Loop, tell: Callable[[str, bool], None]) -> None:
        """`listener` stays the caller's. `tell` gets what goes wrong, and whether it is routine."""
        self._listener, self._loop, self._tell = listener, loop, tell
        self._epoll = select.epoll()
        self._open: dict[int, Connection] = {}
        self._planned_s = float("inf")
        self._paused = False
        self._epoll.register(listener.fileno(), select.EPOLLIN)
        loop.watch(self._epoll.fileno(), self._observe)

    def admit(self, sock: _socket.socket) -> str:
        """Who asks, for people. Raises RequestRefused."""
        raise NotImplementedError

    def carry_out(self, one: Connection, request: http.Request) -> None:
        """Answer one request, now or later. Raises RequestRefused."""
        raise NotImplementedError

    def close(self) -> None:
        """Close all. What a reader has not taken by now is lost to it."""
        for each in list(self._open.values()):
            if each.follower is not None:
                each.follower.endless = False
                self._pump(each)
            self._drop(each)
        self._loop.forget(self._epoll.fileno())
        self._epoll.close()

    def _observe(self) -> tuple[()]:
        for fd, mask in self._epoll.poll(0, SERVED_AT_ONCE):
            if fd == self._listener.fileno():
                self._accept()
            elif (found := self._open.get(fd)) is not None:
                self._serve(found, mask)
        self._plan()
        return ()

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                fd, _ = self._listener._accept()  # type: ignore[attr-defined]
            except BlockingIOError:
                return
            except ConnectionError:
                continue  # it has gone while it waited
            except OSError as error:
                self._pause(error)
                return
            self._welcome(_socket.socket(fileno=fd))

    def _pause(self, error: OSError) -> None:
        """Without descriptors the socket stays readable: it would be looked at without end."""
        if not self._paused:
            self._paused = True
            again = f"next try in {NO_ROOM_S:g} s"
            self._tell(f"{self.what} cannot accept a connection: {error.strerror}; {again}", True)
            self._epoll.unregister(self._listener.fileno())
            self._loop.wake_at(self._loop.now() + NO_ROOM_S, LoopAsked(self._resume))

    def _resume(self) -> None:
        if self._paused and not self._epoll.closed:
            self._paused = False
            self._epoll.register(self._listener.fileno(), select.EPOLLIN)

    def _welcome(self, sock: _socket.socket) -> None:
        sock.setblocking(False)
        made = Connection(sock, self._loop.now())
        try:
            made.who = self.admit(sock)
        except http.RequestRefused as refused:
            self._refuse(made, refused.status, str(refused))
            return
        if len(self._open) >= CONNECTIONS_MAX:
            self._refuse(made, 503, f"{CONNECTIONS_MAX} connections are open; close some")
            return
        self._open[sock.fileno()] = made
        self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _refuse(self, one: Connection, status: int, text: str) -> None:
        """Answer as far as the socket takes it at once, and close."""
        try:
            one.send(http.answer(status, error_body(status, text), keeps=False))
        except OSError:
            pass  # it is gone already
        one.close()

    def _serve(self, one: Connection, mask: int) -> None:
        try:
            if mask & (select.EPOLLERR | select.EPOLLHUP) and not mask & select.EPOLLIN:
                self._drop(one)
                return
            if mask & select.EPOLLIN:
                one.receive(self._loop.now())
            if mask & select.EPOLLOUT:
                one.flush(self._loop.now())
            self._go_on(one)
        except OSError:
            self._drop(one)  # the peer is gone
        except Exception as error:  # noqa: BLE001 - a mistake here must not end the job
            self._failed(one, error)

    def _failed(self, one: Connection, error: Exception) -> None:
        """A mistake of ours: it costs this connection, and nobody else anything."""
        self._tell(f"{self.what} failed: {type(error).__name__}: {error}; please report it", False)
        self._drop(one)

    def _go_on(self, one: Connection) -> None:
        """Carry out what has arrived, send what waits."""
        if one.follower is not None:
            if one.ended:
                self._drop(one)
            else:
                self._pump(one)
            return
        try:
            while not one.busy and not one.streaming and not one.closing and not one.unsent:
                request = http.take(one.received)
                if request is None:
                    break
                self.carry_out(one, request)
        except http.RequestRefused as refused:
            self._answer(one, refused.status, error_body(refused.status, str(refused)), keeps=False)
        if one.ended and not one.busy and not one.unsent:
            self._drop(one)
        else:
            self._settle(one)

    def _settle(self, one: Connection) -> None:
        """Drop it if it is done or behind, else wait for what it needs."""
        if not self._has(one):
            return
        if (one.closing and not one.unsent) or one.behind:
            self._drop(one)
            return
        wanted = one.wanted(self._loop.now())
        if wanted != one.watched:
            one.watched = wanted
            self._epoll.modify(one.fileno, wanted)

    def _has(self, one: Connection) -> bool:
        """Whether it is open: another may have its number by now."""
        return self._open.get(one.fileno) is one

    def _drop(self, one: Connection) -> None:
        if self._has(one):
            del self._open[one.fileno]
            self._epoll.unregister(one.fileno)
            one.close()

    def _answer(self, one: Connection, status: int, body: bytes, *, keeps: bool, zipped: bool = False) -> None:
        one.closing = one.closing or not keeps
        one.send(http.answer(status, body, keeps=keeps, zipped=zipped))
        one.progress(self._loop.now())

    def _pump(self, one: Connection) -> None:
        follower = one.follower
        if follower is None or not self._has(one):
            return
        try:
            if not one.full and follower.pump(one.send_message) and not follower.endless:
                one.end_stream()
            self._settle(one)
        except OSError:
            self._drop(one)
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(one, error)

    def _plan(self) -> None:
        """Look again when the first connection will have taken too long."""
        first = min((each.due_s for each in self._open.values()), default=float("inf"))
        if first < self._planned_s:
            self._planned_s = first
            self._loop.wake_at(first, LoopAsked(self._expire))

    def _expire(self) -> None:
        self._planned_s = float("inf")
        now = self._loop.now()
        for each in list(self._open.values()):
            if each.due_s <= now:
                if each.received and not each.unsent:
                    self._refuse_late(each)
                self._drop(each)
        self._plan()

    def _refuse_late(self, one: Connection) -> None:
        try:
            one.send(http.answer(408, error_body(408, "the request was not complete in time"), keeps=False))
        except OSError:
            pass  # it is dropped next


def listen(host: str, port: int) -> tuple[_socket.socket, str]:
    """A socket that listens there, and its HOST:PORT as in an address of the web: of all addresses of this host, by its
    name, as nobody elsewhere reaches 0.0.0.0. Raises OSError."""
    try:
        family, kind, _, _, where = _socket.getaddrinfo(host, port, 0, _socket.SOCK_STREAM)[0]
    except UnicodeError:
        raise OSError(errno.EINVAL, "not a legal host name") from None
    listener = _socket.socket(family, kind | _socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.setblocking(False)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    shown = os.uname().nodename if host in ALL_ADDRESSES else host
    return listener, f"{f'[{shown}]' if ':' in shown else shown}:{listener.getsockname()[1]}"


def error_body(status: int, text: str) -> bytes:
    """What an answer that is none says."""
    return json.dumps({"code": CODES.get(status, "invalid_argument"), "message": text}).encode()
