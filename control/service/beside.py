"""The control service of one agent as long as nobody asks: a socket, and what happened lately. Kept small and quick.

All else is imported with the first connection (`connections.py`).
"""

from __future__ import annotations

# The C module: an agent has it already, and importing `socket` takes longer than all of this.
import _socket
import os
import time
from collections import deque
from collections.abc import Callable, Mapping

from . import place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...agent.agent import Agent
    from ...agent.lifecycle.state import Verdict
    from ...agent.loop import Loop
    from ...agent.report import AgentEvent
    from ...proto.progress import Progress
    from ...rendezvous.records import Round
    from .connections import Connections

KEPT = 1024
"""Events that are remembered; the oldest are forgotten first."""
BACKLOG = 128
"""Connections that may wait to be accepted; more are refused by the kernel, or wait there."""

SetWatch = Callable[[str, str], str]
"""Sets what is watched, from names of usual watches and the text of a table; returns what was done. May block. Raises
UsageError."""


class Service:
    """What answers for one agent. But for `history`, only for the thread of the agent's loop."""

    def __init__(self, run_id: str, tell: Callable[[str, bool], None], set_watch: SetWatch | None = None) -> None:
        """Makes the run directory. Where there can be none, nothing answers, and `tell` gets one sentence."""
        self.run_id = run_id
        self.set_watch = set_watch
        self.progress: Callable[[], Mapping[int, Progress]] | None = None
        """How far each worker is, by rank, where that is known."""
        self.listeners: tuple[Callable[[], None], ...] = ()
        """Called, from any thread, when there may be something new for somebody who follows in this process."""
        self.closed = False
        self.history: deque[tuple[int, float, float, object]] = deque(maxlen=KEPT)
        """Number, wall-clock time, monotonic time, and what happened."""
        self.number = 0
        """Of the newest event."""
        self.began_s = time.monotonic()
        self.agent: Agent | None = None
        self.directory = ""
        self._tell = tell
        self._loop: Loop | None = None
        self._listener: _socket.socket | None = None
        self._connections: Connections | None = None
        try:
            self.directory = place.make()
        except place.NoPlace as error:
            tell(f"this agent cannot be asked (elasticctl): {error}", True)

    @property
    def path(self) -> str:
        """Of the socket; empty where nothing answers."""
        return f"{self.directory}/{place.SOCKET}" if self.directory else ""

    def begin(self, agent: Agent, loop: Loop) -> None:
        """Answer from now on, on this loop."""
        self.agent, self._loop = agent, loop
        if not self.directory:
            return
        listener = None
        try:
            listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
            listener.bind(self.path)
            os.chmod(self.path, 0o600)
            listener.setblocking(False)
            listener.listen(BACKLOG)
        except OSError as error:
            if listener is not None:
                listener.close()
            self._tell(f"this agent cannot be asked (elasticctl): {self.path}: {error.strerror}", False)
            return
        self._listener = listener
        loop.watch(listener.fileno(), self._asked)

    def happened(self, what: AgentEvent | Round | Verdict) -> None:
        """Remember it, and pass it on to those who follow."""
        self.number += 1
        self.history.append((self.number, time.time(), time.monotonic(), what))
        for listener in self.listeners:
            listener()
        if self._connections is not None:
            self._connections.happened()

    def announced(self, announcement: Round) -> None:
        """As `happened`, for an announcement that this node makes as the coordinator."""
        self.happened(announcement)

    def wake(self) -> None:
        """Workers have written something that somebody follows. From any thread."""
        for listener in self.listeners:
            listener()
        if (connections := self._connections) is not None:
            connections.wake()

    def close(self) -> None:
        """Answer no more; who follows gets what is left. Idempotent."""
        verdict = self.agent.known().node.verdict if self.agent is not None else None
        if verdict is not None and self._loop is not None:
            self._loop = None
            self.happened(verdict)
        self.closed = True
        for listener in self.listeners:
            listener()
        if self._connections is not None:
            self._connections.close()
            self._connections = None
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self.directory:
            try:
                place.remove(self.directory)
            except OSError as error:
                self._tell(f"{self.directory} is left: {error.strerror}", False)
            self.directory = ""

    def _asked(self) -> tuple[()]:
        """The first connection."""
        if self._listener is not None and self._loop is not None:
            from .connections import Connections

            self._loop.forget(self._listener.fileno())
            self._connections = Connections(self, self._listener, self._loop, self._tell)
        return ()
