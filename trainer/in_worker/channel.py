"""The worker's end of the socket to its program."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable
from typing import Any

from ..frames import Inbox, Place, send
from ..names import SOCKET

PROGRESS_S = 0.1
"""How often at most a pass shows where it is."""
AT_ONCE_S = 0.02
"""A program that calls within this time after an answer is not waited for: it goes on."""


class Channel:
    """One for each worker."""

    def __init__(self, folder: str) -> None:
        """Raises OSError where the program is gone."""
        place = Place(folder, SOCKET)
        try:
            self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            self._connection.settimeout(None)  # whatever an imported module has given to socket.setdefaulttimeout
            self._connection.connect(place.address)
        finally:
            place.close()
        self._poll = select.poll()
        self._poll.register(self._connection, select.POLLIN)
        self._inbox = Inbox(self._connection)
        self._shown_s = 0.0
        self._asked = 0
        """Number of the call that the program has been asked for; 0: for none."""

    def greet(self, rank: int, world_size: int, done: int) -> list[Any]:
        """Says who this is, and the last call that its state has seen. Returns the later ones that the program has."""
        environment = os.environ
        hello = {
            "round": int(environment.get("ELASTIC_AGENT_ROUND", "0")),
            "restarts": int(environment.get("ELASTIC_AGENT_RESTARTS", "0")),
            "rank": rank,
            "local_rank": int(environment.get("LOCAL_RANK", "0")),
            "local_world_size": int(environment.get("LOCAL_WORLD_SIZE", "1")),
            "world_size": world_size,
            "done": done,
        }
        send(self._connection, {"hello": hello})
        known: list[Any] = self._inbox.receive()[0]["known"]
        return known

    def ready(self, records: list[Any]) -> None:
        """This worker waits for calls. records: what is known of calls that are done, by any node."""
        send(self._connection, {"ready": records})

    def next(self, number: int, waits: Callable[[], None]) -> dict[str, Any]:
        """Wait for a call of the program. waits: called where it does not come at once. Raises Closed where the
        program is gone."""
        if self._asked != number:
            send(self._connection, {"next": number})
        self._asked = 0
        if not self._poll.poll(1e3 * AT_ONCE_S):
            waits()
        return self._inbox.receive()[0]

    def answer(self, number: int, value: Any, body: bytes = b"") -> None:
        send(self._connection, {"result": number, "value": value}, body)

    def part(self, number: int, told: bytes) -> None:
        """This worker's part of what a pass gave, as JSON; `next` is to be called then. Both are asked for at once, so
        that nobody is woken twice."""
        self._asked = number + 1
        send(self._connection, {"part": number, "next": number + 1}, told)

    def kept(self, number: int) -> None:
        """A state that this call goes on from is in memory."""
        send(self._connection, {"kept": number})

    def look(self) -> bool:
        """Let the program look for resources again; whether it asks for another number of workers."""
        send(self._connection, {"look": True})
        return bool(self._inbox.receive()[0]["asked"])

    def failed(self, message: str, traceback: str, rank: int) -> None:
        """Why this worker ends now."""
        told = {"pid": os.getpid(), "rank": rank, "message": message, "traceback": traceback}
        send(self._connection, {"failed": told})

    def progress(self, what: dict[str, Any], always: bool = False) -> None:
        """What the program's progress bar shows, now and then."""
        now_s = time.monotonic()
        if always or now_s - self._shown_s >= PROGRESS_S:
            self._shown_s = now_s
            send(self._connection, {"progress": what})

    def close(self) -> None:
        self._connection.close()
