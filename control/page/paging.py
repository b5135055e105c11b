"""What `--page` serves on TCP: the page, and by server-sent events all that it shows.

Only under a path with a secret that the agent prints: the page shows what workers write, and TCP on a host is open to
all its users and, through a browser, to any web page.
"""

from __future__ import annotations

import _socket
import hmac
import os
import threading
from collections.abc import Callable

from ...agent.agent import Agent
from ...agent.loop import Loop
from ...rendezvous.driver.events import LoopAsked
from ..control_socket import Service
from ..service import http
from ..service.connection import Connection
from ..service.describe import event_of, job_of, workers_of
from ..service.followers import LogFollower
from ..service.messages import LogPart, LogsRequest, to_json
from ..service.serving import Serving, listen
from .render import render

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...agent.lifecycle.state import Verdict
    from ...agent.report import AgentEvent
    from ...rendezvous.records import Round
    from ..service.followers import Send
    from ..stream import Entry

HTML, STREAM = "text/html; charset=utf-8", "text/event-stream"
NOT_KEPT = "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
STATE_S = 1.0
"""How often an open page gets the state, besides when something happens."""
TAIL_BYTES = 8192
"""Of each stream of each worker, when a page is opened."""
SECRET_BYTES = 16


class _Watching:
    """Feeds one open page."""

    endless = True

    def __init__(self, paging: Paging, one: Connection, agent: Agent, wake: Callable[[], None]) -> None:
        self._paging, self._one = paging, one
        self._next = 1
        self._logs = LogFollower(agent, LogsRequest((), TAIL_BYTES, follow=True), wake)
        self.stale = True
        """The state is to be sent again."""

    def attach(self) -> None:
        """There may be another round's workers to follow."""
        self._logs.attach()

    def pump(self, send: Send) -> bool:
        """Send what there is, as far as the reader takes it."""
        for entry in self._paging.entries(self._next):
            self._next = entry.number + 1
            self._tell("event", to_json(event_of(entry, self._paging.name)))
            if self._one.full:
                return False
        if self.stale:
            self.stale = False
            self._one.send(http.chunk(b"data: " + self._paging.state() + b"\n\n"))
        return self._logs.pump(self._send_log)

    def _send_log(self, part: object) -> bool:
        if isinstance(part, LogPart):
            self._tell("log", to_json(part))
        return not self._one.full

    def _tell(self, kind: str, message: bytes) -> None:
        self._one.send(http.chunk(b'data: {"%b":%b}\n\n' % (kind.encode(), message)))

    def close(self) -> None:
        """Follow no more."""
        self._logs.close()


class _Served(Serving):
    """Answers browsers."""

    what = "the page"

    def __init__(self, paging: Paging, listener: _socket.socket, loop: Loop) -> None:
        super().__init__(listener, loop, paging.tell)
        self._paging = paging
        self._woken = threading.Event()

    def admit(self, sock: _socket.socket) -> str:
        """Everyone may connect; only the secret path shows anything."""
        return "a browser"

    def carry_out(self, one: Connection, request: http.Request) -> None:
        """The page, or its stream."""
        base = f"/{self._paging.secret}/"
        asked, agent = request.path.encode(), self._paging.agent
        if agent is None or not any(hmac.compare_digest(asked, f"{base}{each}".encode()) for each in ("", "stream")):
            raise http.RequestRefused(404, "open the address that the agent has printed")
        if request.method != "GET":
            raise http.RequestRefused(405, "the page takes GET only")
        if request.path == base:
            one.closing = one.closing or not request.keeps
            one.send(http.answer(200, render(), keeps=request.keeps, kind=HTML, more=NOT_KEPT))
            one.progress(self._loop.now())
            return
        if not request.chunks:
            raise http.RequestRefused(505, "the stream needs HTTP/1.1")
        head = http.begin_stream(chunks=True, kind=STREAM, more=NOT_KEPT)
        one.follow(_Watching(self._paging, one, agent, self._wake), head, chunks=True)
        self._pump(one)
        self._paging.plan()

    @property
    def open(self) -> bool:
        """Whether a page is open somewhere."""
        return any(each.follower is not None for each in self._open.values())

    def refresh(self) -> None:
        """Send each open page the state, and whatever else there is."""
        for each in list(self._open.values()):
            if isinstance(each.follower, _Watching):
                each.follower.stale = True
                each.follower.attach()
                self._pump(each)
        self._plan()

    def _wake(self) -> None:
        """Workers have written something. From any thread."""
        if not self._woken.is_set():
            self._woken.set()
            self._loop.post(LoopAsked(self._written))

    def _written(self) -> None:
        self._woken.clear()
        for each in list(self._open.values()):
            self._pump(each)
        self._plan()


class Paging:
    """Serves one agent's page while it runs. Beside `Service`, which hands it what happens."""

    def __init__(self, service: Service, address: tuple[str, int], tell: Callable[[str, bool], None]) -> None:
        self.tell = tell
        self.secret = os.urandom(SECRET_BYTES).hex()
        self.agent: Agent | None = None
        self._service, self._address = service, address
        self._loop: Loop | None = None
        self._listener: _socket.socket | None = None
        self._served: _Served | None = None
        self._planned = self._asked = False

    @property
    def name(self) -> str:
        """The name of the agent."""
        return self.agent.name if self.agent is not None else ""

    def entries(self, first: int) -> list[Entry]:
        """The events from this number on that are still kept."""
        return [entry for entry in self._service.history if entry.number >= first]

    def state(self) -> bytes:
        """What the page shows beside events and output, as one message."""
        service, agent = self._service, self.agent
        if agent is None:
            return b"{}"
        job = to_json(job_of(agent, service.run_id, service.began_s, service.number))
        shown = service.progress() if service.progress is not None else {}
        workers = to_json(workers_of(agent, shown, service.processes()))
        return b'{"state":{"job":%b,"workers":%b,"goodput":%b}}' % (job, workers, to_json(service.goodput()))

    def begin(self, agent: Agent, loop: Loop) -> None:
        """Serve from now on. Where the address is taken, the job runs without, and one line says so."""
        self.agent, self._loop = agent, loop
        host, port = self._address
        try:
            self._listener, shown = listen(host, port)
        except OSError as error:
            self.tell(f"no page is served: {host}:{port}: {error.strerror}; give another --page-address", False)
            return
        self._served = _Served(self, self._listener, loop)
        self._service.recorders.append(self.happened)
        self.tell(f"the page of this job: http://{shown}/{self.secret}/", False)

    def happened(self, what: AgentEvent | Round | Verdict | Entry) -> None:
        """Show it, once the effects of this event are carried out."""
        if self._served is not None and self._loop is not None and not self._asked:
            self._asked = True
            self._loop.post(LoopAsked(self._refresh))

    def plan(self) -> None:
        """Look again in a while, as long as a page is open."""
        if self._loop is not None and not self._planned:
            self._planned = True
            self._loop.wake_at(self._loop.now() + STATE_S, LoopAsked(self._look))

    def _look(self) -> None:
        self._planned = False
        if self._served is not None and self._served.open:
            self._served.refresh()
            self.plan()

    def _refresh(self) -> None:
        self._asked = False
        if self._served is not None:
            self._served.refresh()

    def close(self) -> None:
        """Serve no more. Idempotent."""
        if self._served is not None:
            self._served.refresh()
            self._served.close()
            self._served = None
        if self._listener is not None:
            self._listener.close()
            self._listener = None
