"""The connections to one control socket: who may ask, and which method a request means."""

from __future__ import annotations

import _socket
import os
import threading
from collections.abc import Callable
from functools import partial
from sys import byteorder

from ...agent.errors import UsageError
from ...agent.loop import Loop
from ...rendezvous.driver.events import LoopAsked
from ..control_socket import Service
from . import http
from .connection import Connection
from .followers import LogFollower
from .messages import from_json, to_json
from .methods import METHODS, PREFIX, Method, NotNow, reads_nodes
from .serving import Serving, error_body

THREADS_MAX = 4
"""Requests that take time, at a time."""
CREDENTIALS = 12
"""Bytes of a struct ucred: pid, uid, gid."""


class Connections(Serving):
    """Answers what comes on one socket."""

    what = "the control socket"

    def __init__(
        self, service: Service, listener: _socket.socket, loop: Loop, tell: Callable[[str, bool], None]
    ) -> None:
        """The arguments of `Serving`, and the service that answers."""
        super().__init__(listener, loop, tell)
        self._service = service
        self._uids = (os.geteuid(), 0)
        self._threads = 0
        self._woken = threading.Event()

    def admit(self, sock: _socket.socket) -> str:
        """This user and root may ask; the kernel reports the uid of the other end."""
        found = sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, CREDENTIALS)
        pid, uid = (int.from_bytes(found[at : at + 4], byteorder, signed=True) for at in (0, 4))
        if uid not in self._uids:
            denied = f"uid {uid} has no access to the agent of uid {self._uids[0]}"
            raise http.RequestRefused(403, f"{denied}; run elasticctl as that user or as root")
        return f"uid {uid} (pid {pid})"

    def happened(self) -> None:
        """Something happened to the agent: pass it on, and look whether a new round has other workers."""
        for each in list(self._open.values()):
            if each.follower is not None:
                self._pump(each)
        if any(isinstance(each.follower, LogFollower) for each in self._open.values()):
            # Once the effects of this event are carried out: workers are started then.
            self._loop.post(LoopAsked(self._attach))

    def wake(self) -> None:
        """Workers have written something. From any thread."""
        if not self._woken.is_set():
            self._woken.set()
            self._loop.post(LoopAsked(self._written))

    def carry_out(self, one: Connection, request: http.Request) -> None:
        """One method of the contract."""
        one.keeps = request.keeps
        name = request.path.removeprefix(PREFIX).removeprefix("/")
        method = METHODS.get(name)
        if method is None:
            raise http.RequestRefused(404, f"there is no {request.path:.80}; there are {', '.join(METHODS)}")
        if request.method not in (("GET", "POST") if method.reads else ("POST",)):
            raise http.RequestRefused(405, f"{name} takes POST" + (" or GET" if method.reads else " only"))
        try:
            message = from_json(method.request, request.body)
        except ValueError as error:
            raise http.RequestRefused(400, f"{name}: {error}") from None
        if method.waits or (method.lists and reads_nodes(self._service)):
            self._in_thread(one, name, method, message)
            return
        status, found = self._call(method, message, one.who)
        if method.streams and status == 200:
            one.follow(found, http.begin_stream(chunks=request.chunks), chunks=request.chunks)  # type: ignore[arg-type]
            self._pump(one)
        else:
            self._answer(one, status, _body(status, found), keeps=request.keeps, zipped=request.zipped)

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
                one,
                503,
                error_body(503, f"{THREADS_MAX} requests that take time are under way; try again later"),
                keeps=one.keeps,
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
            self._answer(
                one, 503, error_body(503, f"this host refuses a thread ({error}); raise ulimit -u"), keeps=one.keeps
            )
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
            except Exception as error:  # noqa: BLE001 - as below
                self._failed(one, error)
            self._plan()

    def _attach(self) -> None:
        for each in list(self._open.values()):
            if isinstance(each.follower, LogFollower):
                try:
                    each.follower.attach()
                except Exception as error:  # noqa: BLE001 - a mistake here must not end the job
                    self._failed(each, error)
                self._pump(each)

    def _written(self) -> None:
        self._woken.clear()
        for each in list(self._open.values()):
            if isinstance(each.follower, LogFollower):
                self._pump(each)


def _body(status: int, found: object) -> bytes:
    return to_json(found) if status == 200 else error_body(status, str(found))
