"""Asks agents through their control sockets, as curl would."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BOUND_S = 60.0


class Link(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("agent", timeout=BOUND_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(BOUND_S)
        self.sock.connect(self._path)


class Asking:
    """A directory for sockets, with a short path, and what is asked there. The agents get `env`."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="ea-", dir="/tmp")
        self.env = {"ELASTIC_AGENT_RUN_DIR": f"{self.folder}/run"}

    def path(self, pid: int) -> str:
        """Of the socket of this agent, once it is there."""
        deadline = time.monotonic() + BOUND_S
        while not (found := list(Path(self.folder).glob(f"run/{pid}-*/control.sock"))):
            assert time.monotonic() < deadline, f"no socket of {pid} in {self.folder}"
            time.sleep(0.01)
        return str(found[0])

    def ask(self, path: str, method: str, **fields: Any) -> dict[str, Any]:
        """One answer, which must be a good one."""
        status, found = self.answer(path, method, json.dumps(fields).encode())
        assert status == 200, found
        return found

    def answer(self, path: str, method: str, body: bytes = b"{}") -> tuple[int, dict[str, Any]]:
        """Status and content of one answer."""
        link = Link(path)
        try:
            link.request("POST", f"/elastic.control.v1.Control/{method}", body)
            response = link.getresponse()
            return response.status, json.loads(response.read())
        finally:
            link.close()

    def stream(self, path: str, method: str, **fields: Any) -> Iterator[dict[str, Any]]:
        """The messages of a stream, until its end."""
        link = Link(path)
        try:
            link.request("POST", f"/{method}", json.dumps(fields))
            response = link.getresponse()
            assert response.status == 200, response.read()
            for line in response:
                yield json.loads(line)
        finally:
            link.close()

    def wait(self, path: str, method: str, field: str, wanted: object) -> dict[str, Any]:
        """The first answer in which this field is so."""
        deadline = time.monotonic() + BOUND_S
        while (found := self.ask(path, method))[field] != wanted:
            assert time.monotonic() < deadline, f"{method}.{field} is {found[field]!r}, not {wanted!r}"
            time.sleep(0.02)
        return found

    def wait_gone(self, path: str) -> None:
        """Until there is no such file or directory."""
        deadline = time.monotonic() + BOUND_S
        while Path(path).exists():
            assert time.monotonic() < deadline, f"{path} is left"
            time.sleep(0.02)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
