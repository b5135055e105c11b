"""Stopping workers, as values: signal, grace, SIGKILL, a last wait, give up and say so.

Pure: the caller asks what to do at a time and when to ask again. The last rung is bounded: a process in an
uninterruptible state does not die, and the agent must not wait for it for ever.
"""

from __future__ import annotations

from enum import Enum

from ...proto.frozen import dataclass, replace

FOREVER = float("inf")

GIVE_UP_S = 10.0
"""After SIGKILL. A process that is not stuck in the kernel is gone within milliseconds."""

LAST_LOOK_S = 2.0
"""At the end of that. Whoever was frozen until then, agent and nursery, receives now which processes have exited."""

LEFTOVER_S = 30.0
"""What processes that workers left behind at exit 0 (uploaders, loggers) get to end by themselves, if not told
otherwise."""

UNNAMED_S = 2.0
"""How long they run before a message names them: resource trackers and the like are gone by then."""

HOLD_S = 1.0
"""Where a failure looks like the echo of another, workers get this long before they are asked to stop: the one at fault
may exit a moment later than its peers."""


class Leftovers(Enum):
    """What becomes of the processes that workers left behind when all of them exited 0."""

    STOP = "stop"
    """They may end by themselves for some time, then they are stopped."""
    WAIT = "wait"
    """They are waited for, without limit."""
    KEEP = "keep"
    """They run on, also when the agent has ended."""


class Rung(Enum):
    """Stages of stopping."""

    LINGER = "left to end by themselves"
    NAMED = "named, and left to end by themselves"
    KEPT = "left running"
    ASKED = "asked to stop"
    KILLED = "killed"
    LAST_LOOK = "killed, and about to be given up"
    GIVEN_UP = "given up"


@dataclass(frozen=True, slots=True)
class Ladder:
    """Where stopping stands, and until when."""

    rung: Rung
    until: float
    grace_s: float
    leftovers: Leftovers | None = None
    """What becomes of processes that workers left behind at exit 0; None if the workers themselves are stopped."""
    named_s: float = 0.0
    """How long these may run on once they are named."""
    named: str = ""
    """What they are, in words; empty until that is known."""

    def climb(self, now: float) -> Ladder:
        """The next rung if time is up, else this one."""
        if now < self.until:
            return self
        if self.rung is Rung.LINGER and self.leftovers is Leftovers.KEEP:
            return replace(self, rung=Rung.KEPT, until=FOREVER)
        if self.rung is Rung.LINGER and self.named_s > 0:
            return replace(self, rung=Rung.NAMED, until=now + self.named_s)
        if self.rung in WAITING:
            return replace(self, rung=Rung.ASKED, until=now + self.grace_s)
        if self.rung is Rung.ASKED:
            return replace(self, rung=Rung.KILLED, until=now + GIVE_UP_S - LAST_LOOK_S)
        if self.rung is Rung.KILLED:
            return replace(self, rung=Rung.LAST_LOOK, until=now + LAST_LOOK_S)
        return replace(self, rung=Rung.GIVEN_UP, until=FOREVER)

    def hurry(self, now: float) -> Ladder:
        """The ladder after a second request: the grace ends now; killing is never skipped."""
        return replace(self, rung=Rung.ASKED, until=now) if self.rung in (*WAITING, Rung.ASKED) else self

    def ask_now(self, now: float) -> Ladder:
        """The ladder after a first request, where nothing was asked to stop so far."""
        return replace(self, rung=Rung.ASKED, until=now + self.grace_s) if self.rung in WAITING else self


WAITING = (Rung.LINGER, Rung.NAMED)
"""Rungs on which nothing has been asked to stop yet."""


def ask(now: float, grace_s: float) -> Ladder:
    """The workers have just been sent a stop signal."""
    return Ladder(Rung.ASKED, now + grace_s, grace_s)


def linger(now: float, grace_s: float, leftovers: Leftovers = Leftovers.STOP, leftover_s: float = LEFTOVER_S) -> Ladder:
    """The workers exited 0; processes that they left behind may end by themselves. `leftover_s`: for how long, if they
    are to be stopped then."""
    allowed_s = leftover_s if leftovers is Leftovers.STOP else FOREVER
    unnamed_s = min(UNNAMED_S, allowed_s)
    return Ladder(Rung.LINGER, now + unnamed_s, grace_s, leftovers, allowed_s - unnamed_s)


def hold(now: float, grace_s: float, held_s: float = HOLD_S) -> Ladder:
    """The workers may end by themselves for `held_s`: a failure looks like an echo and its cause is not known yet, or
    one of them asked for the end of the job, and others may still write what they save."""
    return Ladder(Rung.LINGER, now + held_s, grace_s)
