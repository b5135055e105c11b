"""How many workers this node has resources for: asked before each round, and while there are fewer than wanted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial

from ...agent.errors import HostFailed, UsageError

log = logging.getLogger("elastic_agent")
FIRST_S = 1.0
"""Between two looks for resources at first; each pause is twice the one before it."""
LONGEST_S = 60.0
"""Between two looks at most, while a training goes on with fewer workers than wanted."""
LOOKS = 11
"""How often a node that has resources for no worker looks for some: for 1,023 s."""


class Room:
    """Used by the program's thread, the agent's, and that of `watch`."""

    def __init__(self, share: int, count: Callable[[], int] | None) -> None:
        """share: workers that this node is to have. count: for how many there are resources now; None: for all."""
        self.share, self._count = share, count
        self.used = share if count is None else 0
        """Workers that the last look before a round found resources for; 0 before the first."""
        self._changed = threading.Condition()
        self._closed = threading.Event()

    @property
    def changes(self) -> bool:
        """Whether another look may find another number."""
        return self._count is not None

    def look(self) -> int:
        """Workers that there are resources for now, at most `share`. Raises UsageError where `count` gave no number."""
        if self._count is None:
            return self.share
        try:
            found = self._count()
        except Exception as error:  # it is the user's own
            raise UsageError(f"resources() raised {type(error).__name__}: {error}; correct it") from error
        if isinstance(found, bool) or not isinstance(found, int):
            raise UsageError(f"resources() returned {found!r}, and must return a number of workers")
        return max(0, min(self.share, found))

    def take(self) -> int:
        """As `look`, for the round that comes next."""
        room = self.look()
        with self._changed:
            self.used = room
            self._changed.notify_all()
        return room

    def wait(self) -> None:
        """Until there are resources for a worker, or `close`. Raises HostFailed where there are none for long."""
        pause_s = FIRST_S
        for number in range(LOOKS):
            if self._closed.is_set() or self.look():
                return
            if number < LOOKS - 1:
                log.warning("this node has resources for no worker; looking again in %g s", pause_s)
                self._closed.wait(pause_s)
                pause_s *= 2
        raise HostFailed(
            f"this node had resources for no worker in {FIRST_S * (2 ** (LOOKS - 1) - 1):g} s; free a device, or start "
            "the program on another node"
        )

    def watch(self, ask: Callable[[int, int], object]) -> None:
        """Until `close`, on a thread of its own: where a round has fewer workers than wanted, looks again, later each
        time, and when there are resources for more, asks for another round. ask: is given how many it has, and how many
        it may have."""
        pause_s = FIRST_S
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed.is_set() or 0 < self.used < self.share)
                used = self.used
                changed = self._changed.wait_for(partial(self._differs, used), pause_s)
            if self._closed.is_set():
                return
            if changed:
                pause_s = FIRST_S
                continue
            pause_s = min(2 * pause_s, LONGEST_S)
            try:
                room = self.look()
            except UsageError as error:
                log.warning("%s; the workers go on as they are", error)
                continue
            if room > used:
                ask(used, room)

    def _differs(self, used: int) -> bool:
        return self._closed.is_set() or self.used != used

    def close(self) -> None:
        """Ends `wait` and `watch`. May be called again."""
        with self._changed:
            self._closed.set()
            self._changed.notify_all()
