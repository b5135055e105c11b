"""What the store's threads read, as events in the agent's queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..rendezvous.coordinator.events import BeatsSeen, Deposed, Elected, NodeSeen
from ..rendezvous.records import NodeRecord, Round
from ..rendezvous.store import JobMismatch, StoreError, VersionMismatch
from . import exit_status
from .lifecycle.events import (
    LeadershipChanged,
    OthersEnded,
    RecordWritten,
    RoundSeen,
    StoreCameBack,
    StoreFailed,
    StoreOpened,
    StoreWentAway,
)

_STATUS = {JobMismatch: exit_status.OTHER_JOB, VersionMismatch: exit_status.OTHER_VERSION}


@dataclass(frozen=True, slots=True)
class LoopAsked:
    """Whether the loop turns: it calls `answer` when it takes this."""

    answer: Callable[[], None]


class Inbox:
    """A `rendezvous.driver.listener.Listener` that only enqueues. `find_addr` runs on the thread that opened the
    store."""

    def __init__(
        self, post: Callable[[object], None], tell: Callable[[str], None], find_addr: Callable[[], str]
    ) -> None:
        self._post = post
        self._tell = tell
        self._find_addr = find_addr
        self.newest = 0
        """Version of the newest announcement. Older ones that are still queued, after a freeze, are dropped."""

    def store_opened(self, hosting: bool) -> None:
        self._post(StoreOpened(hosting, self._find_addr()))

    def store_failed(self, error: StoreError) -> None:
        self._post(StoreFailed(str(error), _STATUS.get(type(error), exit_status.STORE_LOST)))

    def store_went_away(self, reason: str) -> None:
        self._post(StoreWentAway(reason))

    def store_came_back(self) -> None:
        self._post(StoreCameBack())

    def record_written(self, seq: int) -> None:
        self._post(RecordWritten(seq))

    def round_seen(self, seen: Round) -> None:
        self.newest = seen.version
        self._post(RoundSeen(seen))

    def node_seen(self, record: NodeRecord) -> None:
        self._post(NodeSeen(record))

    def beats_seen(self, counts: dict[str, int], steady_s: float | None) -> None:
        self._post(BeatsSeen(counts, steady_s))

    def elected(self, found: Elected) -> None:
        self._post(found)
        self._post(LeadershipChanged(leads=True))

    def deposed(self) -> None:
        self._post(Deposed())
        self._post(LeadershipChanged(leads=False))

    def retired(self) -> None:
        self._post(OthersEnded())

    def foreign_bytes_seen(self, warning: str) -> None:
        self._tell(warning)

    def loop_asked(self, answer: Callable[[], None]) -> None:
        self._post(LoopAsked(answer))
