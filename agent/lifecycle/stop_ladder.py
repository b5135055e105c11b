"""Stopping workers, as values: signal, grace, SIGKILL, a last wait, give up and say so.

Pure: the caller asks what to do at a time and when to ask again. The last rung is bounded: a process in an
uninterruptible state does not die, and the agent must not wait for it for ever.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

GIVE_UP_S = 10.0
"""After SIGKILL. A process that is not stuck in the kernel is gone within milliseconds."""

LEFTOVER_S = 2.0
"""What processes that a worker left behind at exit 0 (resource trackers, loggers) get to end by themselves."""

HOLD_S = 1.0
"""Where a failure looks like the echo of another, workers get this long before they are asked to stop: the one at fault
may exit a moment later than its peers."""


class Rung(Enum):
    """Stages of stopping."""

    LINGER = "left to end by themselves"
    ASKED = "asked to stop"
    KILLED = "killed"
    GIVEN_UP = "given up"


@dataclass(frozen=True, slots=True)
class Ladder:
    """Where stopping stands, and until when."""

    rung: Rung
    until: float
    grace_s: float

    def climb(self, now: float) -> Ladder:
        """The next rung if time is up, else this one."""
        if now < self.until:
            return self
        if self.rung is Rung.LINGER:
            return replace(self, rung=Rung.ASKED, until=now + self.grace_s)
        if self.rung is Rung.ASKED:
            return replace(self, rung=Rung.KILLED, until=now + GIVE_UP_S)
        return replace(self, rung=Rung.GIVEN_UP)

    def hurry(self, now: float) -> Ladder:
        """The ladder after a second request: the grace ends now; killing is never skipped."""
        return replace(self, rung=Rung.ASKED, until=now) if self.rung in (Rung.LINGER, Rung.ASKED) else self


def ask(now: float, grace_s: float) -> Ladder:
    """The workers have just been sent a stop signal."""
    return Ladder(Rung.ASKED, now + grace_s, grace_s)


def linger(now: float, grace_s: float) -> Ladder:
    """The workers exited 0; processes that they left behind may end by themselves."""
    return Ladder(Rung.LINGER, now + LEFTOVER_S, grace_s)


def hold(now: float, grace_s: float) -> Ladder:
    """A failure looks like an echo and its cause is not known yet; the workers may end by themselves."""
    return Ladder(Rung.LINGER, now + HOLD_S, grace_s)
