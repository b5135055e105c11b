"""The last lines of exited workers: waited for beside the agent's loop, for which the node's heartbeats vouch."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .round_logs import RoundLogs

AT_ONCE_S = 0.2
"""How long the loop itself waits: nearly always, all is passed on within milliseconds, and no thread is needed."""
DRAIN_S = 5.0
"""How long the last lines may take to reach console and files; half of `stop_ladder.GIVE_UP_S`, which goes on."""
END_S = 1.0
"""How long `close` waits for the thread, once nothing is left to be read or written."""


class LastLines:
    """Holds back what follows the workers' exit until what they wrote is passed on, so that the next round's lines come
    after it. One thread at most, and only where that takes time."""

    def __init__(self, post: Callable[[object], None]) -> None:
        """`post`: takes what was held back, in its order; called from the thread."""
        self._post = post
        self._lock = threading.Lock()
        self._held: deque[object] = deque()
        self._thread: threading.Thread | None = None

    def hold(self, event: object, logs: RoundLogs | None, read_s: float = DRAIN_S) -> bool:
        """Whether this event is held back, and posted later; else the caller passes it on now. `read_s`: how long
        output that a process still holds open is waited for."""
        with self._lock:
            if self._held:
                self._held.append(event)
                return True
        if logs is None or logs.passed_on(AT_ONCE_S):
            return False
        from .writers import started_thread

        with self._lock:
            self._held.append(event)
            try:
                self._thread = started_thread(lambda: self._wait(logs, read_s), "elastic-agent-last-lines")
            except OSError:  # this host has no thread left for it: the order of lines matters less
                self._held.clear()
                return False
        return True

    def close(self) -> None:
        """Wait for the thread. Idempotent."""
        if self._thread is not None:
            self._thread.join(END_S)

    def _wait(self, logs: RoundLogs, read_s: float) -> None:
        try:
            logs.finish(read_s, most_s=DRAIN_S)
        finally:
            with self._lock:
                while self._held:
                    self._post(self._held.popleft())
