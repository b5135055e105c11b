"""What `--metrics-address` serves on TCP: /metrics, /healthz and /readyz. Reads only; whoever reaches it may ask."""

from __future__ import annotations

import _socket
from collections.abc import Callable

from ...agent.agent import Agent
from ...agent.lifecycle.state import Phase, Verdict
from ...agent.loop import Loop
from ...agent.report import AgentEvent
from ...rendezvous.records import Round
from ..control_socket import Service
from . import http
from .connection import Connection
from .metrics import Counted, samples_of, text_of, time_samples, worker_samples
from .serving import Serving, listen

TEXT = "text/plain; version=0.0.4; charset=utf-8"
PLAIN = "text/plain; charset=utf-8"


class _Scraped(Serving):
    """Answers scrapers and probes."""

    what = "the metrics address"

    def __init__(self, scraping: Scraping, listener: _socket.socket, loop: Loop) -> None:
        super().__init__(listener, loop, scraping.tell)
        self._scraping = scraping

    def admit(self, sock: _socket.socket) -> str:
        """Anybody: there is nothing to change here."""
        return "a scraper"

    def carry_out(self, one: Connection, request: http.Request) -> None:
        """One of the three paths."""
        if request.path not in ("/metrics", "/healthz", "/readyz"):
            raise http.RequestRefused(404, "there are /metrics, /healthz and /readyz")
        if request.method not in ("GET", "HEAD"):
            raise http.RequestRefused(405, f"{request.path} takes GET only")
        status, body, kind = self._scraping.answer(request.path)
        one.closing = one.closing or not request.keeps
        whole = http.answer(status, body, keeps=request.keeps, kind=kind)
        one.send(whole if request.method == "GET" else whole[: len(whole) - len(body)])
        one.progress(self._loop.now())


class Scraping:
    """Serves one agent's metrics while it runs. Beside `Service`, which hands it what happens."""

    def __init__(
        self, service: Service, address: tuple[str, int], version: str, tell: Callable[[str, bool], None]
    ) -> None:
        self.tell = tell
        self._service, self._address, self._version = service, address, version
        self._counted = Counted()
        self._agent: Agent | None = None
        self._listener: _socket.socket | None = None
        self._scraped: _Scraped | None = None

    def happened(self, what: AgentEvent | Round | Verdict) -> None:
        """Count an event of the agent, the end of a round, or the verdict."""
        self._counted.happened(what, self._agent)

    def begin(self, agent: Agent, loop: Loop) -> None:
        """Serve from now on. Where the address is taken, the job runs without, and one line says so."""
        self._agent = agent
        self._service.recorders.append(self._counted.recorded)
        self._service.lookers.append(self._counted.seen)
        host, port = self._address
        try:
            self._listener, shown = listen(host, port)
        except OSError as error:
            self.tell(f"no metrics are served: {host}:{port}: {error.strerror}; give another --metrics-address", False)
            return
        self._scraped = _Scraped(self, self._listener, loop)
        self.tell(f"metrics are served at http://{shown}/metrics", port != 0)

    def close(self) -> None:
        """Serve no more. Idempotent."""
        if self._scraped is not None:
            self._scraped.close()
            self._scraped = None
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def answer(self, path: str) -> tuple[int, bytes, str]:
        """Status, content and its type."""
        agent, service = self._agent, self._service
        if agent is None:
            return 503, b"not running\n", PLAIN
        if path == "/metrics":
            shown = service.progress() if service.progress is not None else {}
            samples = samples_of(agent, self._counted, service.run_id, self._version, service.number)
            times = time_samples(self._counted, service.goodput(), service.deadline_s)
            workers = worker_samples(agent, shown, service.processes())
            return 200, text_of([*samples, *times, *workers]), TEXT
        status = agent.status()
        # That it answers shows that the loop turns.
        ready = path == "/healthz" or status.phase is Phase.WORKING
        return 200 if ready else 503, f"{status.phase.value}: {status.because}\n".encode(errors="replace"), PLAIN
