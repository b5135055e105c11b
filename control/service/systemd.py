"""Tells systemd where an agent stands (sd_notify(3)): ready, its status, that its loop turns.

Loaded under systemd only. The beat comes from the agent's loop: where that stands still, systemd ends the agent.
"""

from __future__ import annotations

import _socket
import os
from collections.abc import Callable, Mapping

from ...agent.agent import Agent
from ...agent.lifecycle.state import Phase, Verdict
from ...agent.loop import Loop
from ...agent.report import AgentEvent
from ...rendezvous.driver.events import LoopAsked
from ...rendezvous.records import Round

SOCKET, WATCHDOG_US, WATCHDOG_PID = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"
VARIABLES = (SOCKET, WATCHDOG_US, WATCHDOG_PID)
"""Not for workers: what they said would count as the agent's."""
STATUS_MAX = 200
"""Characters of the status."""


class Notifying:
    """Beside `Service`, which hands it what happens."""

    def __init__(self, env: Mapping[str, str], tell: Callable[[str, bool], None]) -> None:
        self._tell = tell
        where = env[SOCKET]
        self._where = "\0" + where[1:] if where.startswith("@") else where
        ours = env.get(WATCHDOG_PID, str(os.getpid())) == str(os.getpid())
        usec = env.get(WATCHDOG_US, "")
        self._beat_s = int(usec) / 2e6 if ours and usec.isdigit() else 0.0
        self._loop: Loop | None = None
        self._complained = False

    def begin(self, agent: Agent, loop: Loop) -> None:
        """READY=1 at once: the service has started; in which round it is, the status says."""
        self._loop = loop
        self._say("READY=1\nSTATUS=starting")
        self._beat()

    def happened(self, what: AgentEvent | Round | Verdict) -> None:
        """Tell what changed."""
        if isinstance(what, AgentEvent):
            stops = "STOPPING=1\n" if what.phase in (Phase.ENDING, Phase.ENDED) else ""
            because = " ".join(what.because.split())[:STATUS_MAX]
            self._say(f"{stops}STATUS={what.phase.value}: {because}")

    def close(self) -> None:
        """No beat from now on."""
        self._loop = None

    def _beat(self) -> None:
        if self._loop is not None and self._beat_s:
            self._say("WATCHDOG=1")
            self._loop.wake_at(self._loop.now() + self._beat_s, LoopAsked(self._beat))

    def _say(self, text: str) -> None:
        try:
            sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC | _socket.SOCK_NONBLOCK)
            try:
                sock.sendto(text.encode(), _socket.MSG_NOSIGNAL, self._where)
            finally:
                sock.close()
        except OSError as error:
            if not self._complained:
                self._complained = True
                trouble = f"cannot send the agent's state to systemd ({SOCKET}): {error.strerror}"
                self._tell(f"{trouble}; systemd may restart it if WatchdogSec is set", True)
