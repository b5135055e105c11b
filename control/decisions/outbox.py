"""What is sent when: events are gathered into one message, messages keep a distance, and what failed is sent again.

One outbox for each channel, because each fails by itself. Times are seconds of any clock that never goes backwards.
"""

from __future__ import annotations

from ...proto.frozen import dataclass

LINES_MAX = 20
"""Most causes that one message names; the others are counted."""
RETRY_FIRST_S = 1.0
RETRY_MOST_S = 300.0
RETRY_TOLD_MOST_S = 3600.0
"""Longest pause that a server may ask for."""


@dataclass(frozen=True)
class SendPace:
    """How messages of one channel are spread."""

    gather_s: float = 1.0
    """How long the first event waits for others that belong to the same message."""
    pause_s: float = 60.0
    """Shortest time between two messages."""


@dataclass(frozen=True)
class Digest:
    """One message: each cause once, with how often it happened."""

    lines: tuple[tuple[str, int], ...]
    """(text, count), in the order of the first event of each; at most LINES_MAX."""
    total: int
    """Events in all, also those whose cause is not among the lines."""

    @property
    def unlisted(self) -> int:
        """Events whose cause is not among the lines."""
        return self.total - sum(count for _, count in self.lines)


class _Pending:
    """Events that wait. Its size does not grow with their number."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.counts: dict[str, int] = {}
        self.total = 0

    def add(self, key: str, text: str, count: int = 1) -> None:
        self.total += count
        if key in self.counts or len(self.counts) < LINES_MAX:
            self.texts[key] = text
            self.counts[key] = self.counts.get(key, 0) + count

    def digest(self) -> Digest:
        return Digest(tuple((self.texts[key], count) for key, count in self.counts.items()), self.total)


class Outbox:
    """Events to one channel. At most one message is under way; what it holds is kept until it has been delivered."""

    def __init__(self, pace: SendPace) -> None:
        self._pace = pace
        self._waiting = _Pending()
        self._under_way: _Pending | None = None
        self._due_at: float | None = None
        self._not_before: float | None = None
        self._failures = 0
        self._hurried = False

    def backlog(self) -> list[tuple[str, str, int]]:
        """(key, text, count) of what has not been delivered."""
        parts = [part for part in (self._under_way, self._waiting) if part]
        return [(key, part.texts[key], number) for part in parts for key, number in part.counts.items()]

    def add(self, key: str, text: str, now: float, number: int = 1) -> None:
        """An event, or several. Events of one key are one line, with the latest text and their count."""
        self._waiting.add(key, text, number)
        if self._due_at is None:
            self._due_at = now if self._hurried else now + self._pace.gather_s

    def due_at(self) -> float | None:
        """When `take` gives the next message; None while there is nothing to send, or a message is under way."""
        if self._under_way is not None or not self._waiting.total or self._due_at is None:
            return None
        return self._due_at if self._not_before is None else max(self._due_at, self._not_before)

    def hurry(self, now: float) -> None:
        """What waits is due now, or once the message under way has arrived: there will be nothing later to gather."""
        self._hurried = True
        if self._waiting.total:
            self._due_at, self._not_before = now, None

    def take(self, now: float) -> Digest | None:
        """The message to send now, if one is due. `delivered` or `failed` must follow."""
        due = self.due_at()
        if due is None or now < due:
            return None
        self._under_way, self._waiting, self._due_at = self._waiting, _Pending(), None
        return self._under_way.digest()

    def delivered(self, now: float) -> None:
        """The message under way has arrived."""
        self._under_way, self._failures = None, 0
        self._not_before = None if self._hurried else now + self._pace.pause_s

    def failed(self, now: float, retry_after_s: float | None = None) -> float:
        """The message under way has not arrived; its events go first in the next. Returns how long until then.

        The pause doubles with each failure, up to RETRY_MOST_S, or is what the server asked for, if that is longer.
        """
        pause = min(RETRY_FIRST_S * 2.0 ** min(self._failures, 20), RETRY_MOST_S)
        pause = max(pause, min(retry_after_s or 0.0, RETRY_TOLD_MOST_S))
        self._failures += 1
        first, later = self._under_way or _Pending(), self._waiting
        for key, count in later.counts.items():
            first.add(key, later.texts[key], count)
        first.total += later.total - sum(later.counts.values())
        self._waiting, self._under_way = first, None
        self._not_before = self._due_at = now + pause
        return pause
