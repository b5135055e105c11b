"""A real HTTP server on a port of this host, which does what a test says: answers, refuses, hangs, recovers."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WAIT_S = 60.0


class WebServer(ThreadingHTTPServer):
    """Counts requests, keeps the bodies of those that it answered with 200."""

    daemon_threads = True
    block_on_close = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.changed = threading.Condition()
        self.status, self.reason = 200, ""
        self.headers: dict[str, str] = {}
        self.date_shift_s = 0.0
        self.hanging = threading.Event()
        """While it is set, requests are not answered."""
        self.requests: list[tuple[str, str]] = []
        """(method, path) of all."""
        self.bodies: list[dict[str, Any]] = []

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def wait_for(self, requests: int = 0, bodies: int = 0) -> None:
        """Until so many have come."""
        with self.changed:
            found = self.changed.wait_for(lambda: len(self.requests) >= requests and len(self.bodies) >= bodies, WAIT_S)
        assert found, (self.requests, self.bodies)

    def recover(self) -> None:
        """Answer with 200 from now on, also those that wait."""
        self.status, self.headers = 200, {}
        self.hanging.clear()


class _Handler(BaseHTTPRequestHandler):
    server: WebServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server = self.server
        with server.changed:
            server.requests.append(("POST", self.path))
            server.changed.notify_all()
        deadline = time.monotonic() + WAIT_S
        while server.hanging.is_set() and time.monotonic() < deadline:
            time.sleep(0.01)
        status = server.status
        with server.changed:
            if status == 200:
                server.bodies.append(json.loads(body))
                server.changed.notify_all()
        try:
            self.send_response(status, server.reason or None)
            for name, value in server.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")
        except OSError:
            pass  # the client has given up

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_GET(self) -> None:
        with self.server.changed:
            self.server.requests.append(("GET", self.path))
        self.send_response(200)
        self.end_headers()

    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string(time.time() + self.server.date_shift_s)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class's name
        """Nothing is printed."""


@contextmanager
def web_server(tls: ssl.SSLContext | None = None) -> Iterator[WebServer]:
    """Serves until the end of the block."""
    server = WebServer()
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, name="web server")
    thread.start()
    try:
        yield server
    finally:
        server.recover()
        server.shutdown()
        thread.join()
        server.server_close()
