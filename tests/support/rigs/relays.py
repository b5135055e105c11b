"""What a relay reads from, and the troubles that it reports."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from pathlib import Path

from elastic_agent.agent.output.relay import Relay
from elastic_agent.agent.output.sinks import FileSink
from elastic_agent.agent.output.streams import Route
from support.consoles import FINISH_S, Console

LINE = b"z" * 99 + b"\n"


class Feed:
    """One stream without a worker: bytes written to `fd` go to a file and a console."""

    def __init__(self, relay: Relay, route: Route, *, terminal: bool = False) -> None:
        self.relay = relay
        self.fd, self.stream = relay.add(route, terminal=terminal)

    def end(self, timeout_s: float = FINISH_S) -> bool:
        os.close(self.fd)
        whole = self.relay.finish([self.stream], timeout_s)
        self.relay.close()
        return whole


class Troubles(list[str]):
    """What a relay reports; also makes relays."""

    def relay(self, console: Console, out: int | None = None, hold_s: float = 0.1) -> Relay:
        fd = console.fds[0] if out is None else out
        return Relay(self.append, stdout_fd=fd, stderr_fd=console.fds[1], hold_s=hold_s, stall_s=hold_s)

    def feed(self, console: Console, path: Path | None, out: int | None = None, hold_s: float = 0.1) -> Feed:
        relay = self.relay(console, out, hold_s)
        file = FileSink(str(path), relay.report) if path else None
        return Feed(relay, Route(file=file, shown=True, prefix=lambda: b"> "))

    def dropped(self) -> int:
        """Bytes, by the reports that end a loss."""
        return sum(int(text.split()[0]) for text in self if text.split()[0].isdigit())


def wait_for(found: Callable[[], bool]) -> None:
    """A bounded wait for a condition that no descriptor signals."""
    until = time.monotonic() + FINISH_S
    while not found():
        assert time.monotonic() < until
        select.select([], [], [], 0.002)
