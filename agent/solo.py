"""A job on one host, without a store: the node's records reach the coordinator machine beside it at once."""

from __future__ import annotations

from ..rendezvous.coordinator.events import Announce, Elected, ReadBeats, StoreEffect
from ..rendezvous.driver.listener import Listener
from ..rendezvous.records import NodeRecord
from ..rendezvous.store import FIRST_EPOCH


class Solo:
    """Takes the place of `rendezvous.driver.driver.Driver`, which a job of several nodes uses."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def open(self) -> None:
        self._listener.store_opened(True)
        self._listener.elected(Elected(FIRST_EPOCH))

    def publish(self, record: NodeRecord) -> None:
        self._listener.node_seen(record)
        self._listener.record_written(record.seq)

    def carry_out(self, effect: StoreEffect) -> None:
        if isinstance(effect, Announce):
            self._listener.round_seen(effect.round)
        elif isinstance(effect, ReadBeats):
            self._listener.beats_seen({}, None)
        else:
            self._listener.retired()

    def resign(self) -> None:
        """No other node could coordinate."""

    def close(self) -> None:
        """Holds no resources."""
