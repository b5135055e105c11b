"""The connections to one control socket. All on the agent's loop, which watches one descriptor for all of them."""

from __future__ import annotations

import _socket
import json
import os
import select
import threading
from collections.abc import Callable
from functools import partial
from sys import byteorder

from ...agent.errors import UsageError
from ...agent.loop import Loop
from ...rendezvous.driver.events import LoopAsked
from ..beside import Service
from . import http
from .connection import Connection
from .followers import LogFollower
from .messages import from_json, to_json
from .methods import METHODS, PREFIX, Method, NotNow

CONNECTIONS_MAX = 256
"""Connections at a time; further ones are told so, and closed."""
ACCEPTED_AT_ONCE = 32
"""Connections that are accepted before the loop looks at the agent's own events again."""
SERVED_AT_ONCE = 64
THREADS_MAX = 4
"""Requests that take time, at a time."""
NO_ROOM_S = 1.0
"""Pause before the next connection is accepted, where this process has no descriptor left."""
CREDENTIALS = 12
"""Bytes of a struct ucred: pid, uid, gid."""
CODES = {400: "invalid_argument", 403: "permission_denied", 404: "not_found", 409: "failed_precondition",
         408: "deadline_exceeded", 500: "internal", 503: "unavailable"}  # fmt: skip


class Connections:
    """Answers what comes on one socket."""

    def __init__(
        self, service: Service, listener: _socket.socket, loop: Loop, tell: Callable[[str, bool], None]
    ) -> None:
        """`listener` stays the caller's. `tell` gets what goes wrong, and whether it is routine."""
        self._service, self._listener, self._loop, self._tell = service, listener, loop, tell
        self._uids = (os.geteuid(), 0)
        self._epoll = select.epoll()
        self._open: dict[int, Connection] = {}
        self._threads = 0
        self._planned_s = float("inf")
        self._paused = False
        self._woken = threading.Event()
        self._epoll.register(listener.fileno(), select.EPOLLIN)
        loop.watch(self._epoll.fileno(), self._observe)

    def happened(self) -> None:
        """Something happened to the agent: pass it on, and look whether a new round has other workers."""
        for each in list(self._open.values()):
            if each.follower is not None:
                self._pump(each)
        if any(isinstance(each.follower, LogFollower) for each in self._open.values()):
            # Once the effects of this event are carried out: workers are started then.
            self._loop.post(LoopAsked(self._attach))

    def close(self) -> None:
        """Close all. What a reader has not taken by now is lost to it."""
        for each in list(self._open.values()):
            if each.follower is not None:
                each.follower.endless = False
                self._pump(each)
            self._drop(each)
        self._loop.forget(self._epoll.fileno())
        self._epoll.close()

    # -- the loop -----------------------------------------------------------------------------------------------------

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
            self._tell(f"the control socket accepts no connection for now: {error.strerror}", True)
            self._epoll.unregister(self._listener.fileno())
            self._loop.wake_at(self._loop.now() + NO_ROOM_S, LoopAsked(self._resume))

    def _resume(self) -> None:
        if self._paused and not self._epoll.closed:
            self._paused = False
            self._epoll.register(self._listener.fileno(), select.EPOLLIN)

    def _welcome(self, sock: _socket.socket) -> None:
        sock.setblocking(False)
        made = Connection(sock, self._loop.now())
        pid, uid = self._peer(sock)
        if uid not in self._uids:
            self._refuse(made, 403, f"uid {uid} may not ask an agent of uid {self._uids[0]}")
        elif len(self._open) >= CONNECTIONS_MAX:
            self._refuse(made, 503, f"{CONNECTIONS_MAX} connections are open; close some")
        else:
            made.who = f"uid {uid} (pid {pid})"
            self._open[sock.fileno()] = made
            self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _peer(self, sock: _socket.socket) -> tuple[int, int]:
        found = sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, CREDENTIALS)
        pid, uid = (int.from_bytes(found[at : at + 4], byteorder, signed=True) for at in (0, 4))
        return pid, uid

    def _refuse(self, one: Connection, status: int, text: str) -> None:
        """Answer as far as the socket takes it at once, and close."""
        try:
            one.send(http.answer(status, _error(status, text), keeps=False))
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
                self._carry_out(one, request)
        except http.Refused as refused:
            self._answer(one, refused.status, _error(refused.status, str(refused)), keeps=False)
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

    # -- requests -----------------------------------------------------------------------------------------------------

    def _carry_out(self, one: Connection, request: http.Request) -> None:
        one.keeps = request.keeps
        name = request.path.removeprefix(PREFIX).removeprefix("/")
        method = METHODS.get(name)
        if method is None:
            raise http.Refused(404, f"there is no {request.path:.80}; there are {', '.join(METHODS)}")
        if request.method not in (("GET", "POST") if method.reads else ("POST",)):
            raise http.Refused(405, f"{name} is asked by POST" + (" or GET" if method.reads else ""))
        try:
            message = from_json(method.request, request.body)
        except ValueError as error:
            raise http.Refused(400, f"{name}: {error}") from None
        if method.waits:
            self._in_thread(one, name, method, message)
            return
        status, found = self._call(method, message, one.who)
        if method.streams and status == 200:
            one.follow(found, http.begin_stream(chunks=request.chunks), chunks=request.chunks)  # type: ignore[arg-type]
            self._pump(one)
        else:
            self._answer(one, status, _body(status, found), keeps=request.keeps)

    def _call(self, method: Method, message: object, who: str) -> tuple[int, object]:
        try:
            return 200, method.call(self._service, message, who)
        except NotNow as error:
            return 409, str(error)
        except UsageError as error:
            return 400, str(error)
        except Exception as error:  # noqa: BLE001 - a mistake here must not end the job
            self._tell(f"the control service failed: {type(error).__name__}: {error}; please report it", False)
            return 500, f"{type(error).__name__}: {error}"

    def _in_thread(self, one: Connection, name: str, method: Method, message: object) -> None:
        if self._threads >= THREADS_MAX:
            self._answer(
                one, 503, _error(503, f"{THREADS_MAX} such requests are under way; try again"), keeps=one.keeps
            )
            return

        def run() -> None:
            status, found = self._call(method, message, one.who)
            self._loop.post(LoopAsked(partial(self._finished, one, status, found)))

        one.busy = True
        try:
            threading.Thread(target=run, name=f"elastic-agent-{name.lower()}", daemon=True).start()
        except RuntimeError as error:
            one.busy = False
            self._answer(one, 503, _error(503, f"this host refuses a thread: {error}"), keeps=one.keeps)
            return
        self._threads += 1

    def _finished(self, one: Connection, status: int, found: object) -> None:
        self._threads -= 1
        one.busy = False
        if self._has(one):
            try:
                self._answer(one, status, _body(status, found), keeps=one.keeps)
                self._go_on(one)
            except OSError:
                self._drop(one)
            self._plan()

    def _answer(self, one: Connection, status: int, body: bytes, *, keeps: bool) -> None:
        one.closing = one.closing or not keeps
        one.send(http.answer(status, body, keeps=keeps))
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

    def _attach(self) -> None:
        for each in list(self._open.values()):
            if isinstance(each.follower, LogFollower):
                each.follower.attach()
                self._pump(each)

    def wake(self) -> None:
        """Workers have written something. From any thread."""
        if not self._woken.is_set():
            self._woken.set()
            self._loop.post(LoopAsked(self._written))

    def _written(self) -> None:
        self._woken.clear()
        for each in list(self._open.values()):
            if isinstance(each.follower, LogFollower):
                self._pump(each)

    # -- time ---------------------------------------------------------------------------------------------------------

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
            one.send(http.answer(408, _error(408, "the request was not whole in time"), keeps=False))
        except OSError:
            pass  # it is dropped next


def _body(status: int, found: object) -> bytes:
    return to_json(found) if status == 200 else _error(status, str(found))


def _error(status: int, text: str) -> bytes:
    return json.dumps({"code": CODES.get(status, "invalid_argument"), "message": text}).encode()
