"""A job on one host, without a store: the node's records reach the coordinator machine beside it at once."""

from __future__ import annotations

from ..rendezvous.coordinator.events import Announce, BeatsSeen, Elected, NodeSeen, ReadBeats, StoreEffect
from ..rendezvous.driver.events import LeadershipChanged, OthersEnded, Post, RecordWritten, RoundSeen, StoreOpened
from ..rendezvous.records import Member, NodeRecord, Round
from ..rendezvous.shared_values import SharedValues
from ..rendezvous.store import FIRST_EPOCH


class Solo:
    """Takes the place of `rendezvous.driver.driver.Driver`, which a job of several nodes uses."""

    def __init__(self, post: Post, addr: str) -> None:
        """`addr`: how workers on this host reach each other."""
        self._post = post
        self._addr = addr
        self.newest = 0
        """As the driver's."""
        self.fencing = self.own_beats = None
        self.held = -1

    def open(self) -> None:
        self._post(StoreOpened(True, self._addr))
        self._post(Elected(FIRST_EPOCH))
        self._post(LeadershipChanged(leads=True))

    def publish(self, record: NodeRecord) -> None:
        self._post(NodeSeen(record))
        self._post(RecordWritten(record.seq))

    def carry_out(self, effect: StoreEffect) -> None:
        if isinstance(effect, Announce):
            self.newest = effect.round.version
            self._post(RoundSeen(effect.round))
        elif isinstance(effect, ReadBeats):
            self._post(BeatsSeen({}))
        else:
            self._post(OthersEnded())

    def members(self, of: Round) -> tuple[Member, ...]:
        """As the driver's: this node holds all there is."""
        return of.members

    def values(self) -> SharedValues | None:
        """There is no other node to share them with."""
        return None

    def resign(self) -> None:
        """No other node could coordinate."""

    def close(self) -> None:
        """Holds no resources."""
