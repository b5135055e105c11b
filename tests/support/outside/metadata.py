"""A cloud's metadata service, as far as it tells of spot hosts that are taken back."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BOUND_S = 60.0

AWS = {"action": "terminate", "time": "2026-11-22T17:02:00Z"}
AZURE = {"Events": [{"EventType": "Preempt", "NotBefore": "Sun, 22 Nov 2026 17:02:00 GMT", "Resources": ["vm1"]}]}
QUIET = {"aws": (404, ""), "gcp": (200, "FALSE"), "azure": (200, json.dumps({"Events": []}))}
LOUD = {"aws": (200, json.dumps(AWS)), "gcp": (200, "TRUE"), "azure": (200, json.dumps(AZURE))}


class Service:
    """A metadata service on this host, which asks for the headers that the real ones ask for."""

    def __init__(self, port: int = 0) -> None:
        self.answer: tuple[int, str] = (503, "")
        self.hangs = threading.Event()
        self.asked = threading.Semaphore(0)
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                right = self.path == "/latest/api/token" and "X-aws-ec2-metadata-token-ttl-seconds" in self.headers
                self._send((200, "secret") if right else (400, ""))

            def do_GET(self) -> None:
                service.asked.release()
                if service.hangs.is_set():
                    self.rfile.read(1)  # until the client gives up
                    return
                paths = {
                    "/latest/meta-data/spot/instance-action": ("X-aws-ec2-metadata-token", "secret"),
                    "/computeMetadata/v1/instance/preempted": ("Metadata-Flavor", "Google"),
                    "/metadata/scheduledevents?api-version=2020-07-01": ("Metadata", "true"),
                }
                header, value = paths[self.path]
                self._send(service.answer if self.headers.get(header) == value else (403, ""))

            def _send(self, answer: tuple[int, str]) -> None:
                if answer[0]:  # else its text is no HTTP
                    self.send_response(answer[0])
                    self.end_headers()
                self.wfile.write(answer[1].encode())

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def wait_asked(self) -> None:
        assert self.asked.acquire(timeout=BOUND_S), "nobody asked"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
