"""A limit for all of an HTTP request: the timeout of a socket begins anew with each byte that comes."""

from __future__ import annotations

import contextlib
import socket
import threading
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.request import BaseHandler, HTTPHandler, HTTPSHandler, Request


class Within:
    """While this context lasts, connections that its handlers make are cut off when the time is over."""

    def __init__(self, limit_s: float) -> None:
        self.over = False
        """Whether they were."""
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(limit_s, self._end)
        self._timer.name, self._timer.daemon = "elastic-agent-notify-limit", True

    def __enter__(self) -> None:
        """Raises OSError where the host refuses a thread."""
        try:
            self._timer.start()
        except RuntimeError as error:
            raise OSError(f"this host refuses a thread ({error}); raise ulimit -u") from None

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            for each in self._sockets:
                each.close()
            self._sockets.clear()

    def handlers(self) -> list[BaseHandler]:
        """For urllib's `build_opener`."""
        within = self

        class Http(HTTPConnection):
            def connect(self) -> None:
                super().connect()
                within.keep(self.sock)

        class Https(HTTPSConnection, Http):
            """Its `connect` calls the one above before TLS begins, so that a handshake has the limit, too."""

        class Handler(HTTPHandler):
            def http_open(self, req: Request) -> HTTPResponse:
                return self.do_open(Http, req)

        class SecureHandler(HTTPSHandler):
            def https_open(self, req: Request) -> HTTPResponse:
                made: Any = Https
                return self.do_open(made, req)

        return [Handler(), SecureHandler()]

    def keep(self, connected: socket.socket) -> None:
        """Cut this one off, too. TLS takes its descriptor away, so this has one of its own."""
        with self._lock:
            self._sockets.append(connected.dup())

    def _end(self) -> None:
        with self._lock:
            self.over = True
            for each in self._sockets:
                with contextlib.suppress(OSError):  # the server has closed it
                    each.shutdown(socket.SHUT_RDWR)
