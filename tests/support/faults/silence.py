"""A store on which some threads of an agent get no answers, on connections that stay open, while the others live."""

from __future__ import annotations

import threading
from typing import Any

from elastic_agent.rendezvous.store import StoreUnreachable

CLOSED = "this session was closed"


class Silence:
    """Which threads of one agent get no answers, and on which of their connections."""

    def __init__(self) -> None:
        self.role = ""
        """The thread: `watcher`, `reader`, `announcer`, ..."""
        self.new_too = True
        """On connections that are made later, too."""
        self.hangs = False
        """Waits end without a change when their time has passed, as on a watch that hangs; all else is answered."""
        self.begun = threading.Event()
        self.sessions: list[SilentStore] = []

    def begin(self, role: str, *, new_too: bool = True, hangs: bool = False) -> None:
        """From now on."""
        self.role, self.new_too, self.hangs = role, new_too, hangs
        self.begun.set()

    def end(self) -> None:
        """Connections are answered again; those that were silent are broken."""
        self.role = ""
        for session in self.sessions:
            session.close()


class SilentStore:
    """A session of any store, as an agent uses it."""

    def __init__(self, inner: Any, silence: Silence) -> None:
        self._inner = inner
        self._silence = silence
        self._later = silence.begun.is_set()
        """Made after the silence began."""
        self._closed = threading.Event()
        silence.sessions.append(self)

    def session(self) -> SilentStore:
        return SilentStore(self._inner.session(), self._silence)

    def close(self) -> None:
        self._closed.set()
        self._inner.close()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return (lambda *args: self._call(name, *args)) if callable(found) else found

    def _call(self, name: str, *args: Any) -> Any:
        """Also what is under way when the silence begins is not answered."""
        waits = name in ("wait_round", "wait_nodes")
        if waits and self._is_silent() and self._silence.hangs:
            self._closed.wait(args[-1])
            if self._closed.is_set():
                raise StoreUnreachable(CLOSED)
            return _nothing(name, args)
        if not self._is_silent() or self._silence.hangs:
            answer = getattr(self._inner, name)(*args)
            if not self._is_silent():
                return answer
            if self._silence.hangs:
                return _nothing(name, args) if waits else answer
        self._closed.wait()
        raise StoreUnreachable(CLOSED)

    def _is_silent(self) -> bool:
        silence = self._silence
        mine = threading.current_thread().name == f"elastic-agent-{silence.role}"
        return mine and silence.begun.is_set() and (silence.new_too or not self._later)


def _nothing(name: str, args: tuple[Any, ...]) -> Any:
    """The answer to a wait without a change."""
    return None if name == "wait_round" else (args[0], {})
