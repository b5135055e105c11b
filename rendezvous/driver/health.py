"""Whether this node does its part in the job, as far as its own threads can see: what a heartbeat vouches for.

A heartbeat that said no more than that one thread lives would keep a node in the job that does nothing any more. So the
writer sends one only while the agent's loop takes what is posted to it, every thread on the store gets answers, and the
newest announcement, and where it coordinates the newest record, has been received. On a store that a node hosts, that
node's heartbeat vouches for the coordinator in the same way, and all others look at it.

All time is counted by the writer, look by look: a look that comes late counts as two intervals at most, as the whole
process may have been frozen, and that says nothing about any of its threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping

from ...proto.frozen import dataclass
from ..store import NO_BEAT


class Standstill:
    """For how long something has stayed the same, in seconds. Used by one thread."""

    def __init__(self, interval_s: float) -> None:
        """`interval_s`: time between two looks."""
        self._most_s = 2 * interval_s
        self._was: Hashable | None = None
        self._at = 0.0
        self._for_s = 0.0

    def look(self, now_is: Hashable | None) -> float:
        """Seconds for which it has been `now_is`; None: it need not change, and the next look begins anew."""
        now = time.monotonic()
        if now_is is None or now_is != self._was:
            self._was, self._for_s = now_is, 0.0
        else:
            self._for_s += min(now - self._at, self._most_s)
        self._at = now
        return self._for_s


class LoopWatch:
    """Whether the agent's loop turns: asked with each look, answered when the loop takes the question."""

    def __init__(self, ask: Callable[[Callable[[], None]], None], interval_s: float) -> None:
        """`ask` posts a question to the loop, which calls what it is given."""
        self._ask = ask
        self._asked = self._answered = 0
        self._unanswered = Standstill(interval_s)

    def standing_s(self) -> float:
        """Seconds for which the loop has not taken a question. Asks the next, unless one is unanswered."""
        if self._asked == self._answered:
            self._asked += 1
            self._ask(self._answer)
        return self._unanswered.look(self._asked)

    def _answer(self) -> None:
        self._answered = self._asked


@dataclass(frozen=True, slots=True)
class Newest:
    """What one thread waits for: its numbers only grow."""

    what: str
    """One of them, in words."""
    received: int
    """The last one that this node has received."""
    there_is: int
    """The last one that the store has named with a heartbeat."""


class Health:
    """Why this node must not send a heartbeat, as one sentence; empty if it may. Used by the writer only."""

    def __init__(self, loop: LoopWatch, limit_s: float, interval_s: float) -> None:
        """`limit_s`: how long something may stand still; `interval_s`: time between two looks."""
        self._loop = loop
        self._limit_s = limit_s
        self._interval_s = interval_s
        self._host = Standstill(interval_s)
        self._late: dict[str, Standstill] = {}
        """By thread: how long it has not received the newest of what it waits for."""
        self._calls: dict[str, Standstill] = {}
        self._half_over: set[str] = set()
        self.to_renew: set[str] = set()
        """As of the last call of `why_not_receiving`: threads for which half of a limit has just passed. Their
        connection may have broken without an error, so that another one would do."""

    def loop_stands(self) -> bool:
        """Whether the agent's loop has stood still for too long."""
        return self._loop.standing_s() >= self._limit_s

    def why_not_receiving(self, newest: Mapping[str, Newest], calls: Mapping[str, tuple[int, float]]) -> str:
        """Why this node receives nothing; empty if it does. `newest`: by thread, what it waits for. `calls`: by thread
        with a call under way, the number of the call and how long it may take, in seconds."""
        over: set[str] = set()
        late = [said for role, now in newest.items() if (said := self._late_words(role, now, over))]
        overdue = [role for role, (number, most_s) in calls.items() if self._is_overdue(role, number, most_s, over)]
        for gone, present in ((self._late, newest), (self._calls, calls)):
            for role in gone.keys() - present.keys():
                del gone[role]
        self.to_renew, self._half_over = over - self._half_over, over
        if late:
            return late[0]
        return f"the {' and the '.join(overdue)} of this agent got no answer in time" if overdue else ""

    def _late_words(self, role: str, now: Newest, half_over: set[str]) -> str:
        """What this thread has not received for too long, if anything. `half_over`: takes it from half of that on."""
        late = self._late.setdefault(role, Standstill(self._interval_s))
        late_s = late.look(now.received if now.received < now.there_is else None)
        if late_s >= self._limit_s / 2:
            half_over.add(role)
        if late_s < self._limit_s:
            return ""
        return f"{now.what} {now.there_is} was not received for {late_s:.0f} s; the last one here is {now.received}"

    def _is_overdue(self, role: str, number: int, most_s: float, half_over: set[str]) -> bool:
        unanswered_s = self._calls.setdefault(role, Standstill(self._interval_s)).look(number)
        if unanswered_s >= most_s / 2:
            half_over.add(role)
        return unanswered_s >= most_s

    def host_stands(self, count: int | None, newest: int) -> bool:
        """Whether the node that hosts the store has sent no heartbeat for too long, and announced nothing either.
        `count`: as `Store.host_count`. `newest`: the newest version that there is."""
        return self._host.look(None if count in (None, NO_BEAT) else (count, newest)) >= self._limit_s
