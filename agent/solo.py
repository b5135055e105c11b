"""One machine, one agent, no store: what the node says reaches the coordinator beside it at once."""

from __future__ import annotations

from collections.abc import Sequence

from ..rendezvous.listener import Listener
from ..rendezvous.records import NodeRecord, Round


class Solo:
    """Stands where `rendezvous.driver.Driver` stands when there are other nodes."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def open(self) -> None:
        self._listener.store_opened(True)

    def publish(self, record: NodeRecord) -> None:
        self._listener.node_seen(record)
        self._listener.record_written(record.seq)

    def announce(self, word: Round) -> None:
        self._listener.round_seen(word)

    def read_beats(self, nodes: Sequence[str]) -> None:
        self._listener.beats_seen({})

    def close(self) -> None:
        """Nothing is held."""
