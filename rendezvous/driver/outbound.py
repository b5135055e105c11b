"""This node's records on their way to the store, in their order."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from ..codec import records as codec
from ..failures import Sign
from ..records import NodeRecord, NodeState
from ..store import Store
from .connection import Connection
from .events import Post, RecordWritten


class Outbound:
    """`take` and `write` for one thread. While this node does not do its part (`health.py`) some wait (`_waits`)."""

    def __init__(self, node: str, post: Post) -> None:
        self._node, self._post = node, post
        self._queue: queue.SimpleQueue[NodeRecord | None] = queue.SimpleQueue()
        self._held: NodeRecord | None = None
        self.begun = threading.Event()
        """The store has taken the first, or never will. Nothing that is announced is received before: a node that has
        learned that it is a spare is known to be one, so that the host waits for it at the end of the job."""

    def put(self, record: NodeRecord) -> None:
        self._queue.put(record)

    def end(self) -> None:
        """No more will follow."""
        self._queue.put(None)
        self.begun.set()

    def take(self, timeout_s: float, is_well: Callable[[], bool]) -> NodeRecord | None:
        """The next one to be written now; None: there is none yet. `is_well`: whether this node does its part, as of
        now. Raises queue.Empty after `timeout_s`."""
        due = self._held if self._held is not None and is_well() else None
        try:
            record = self._queue.get(timeout=timeout_s if due is None else 0.0)
        except queue.Empty:
            if due is None:
                raise
            self._held = None
            return due
        if record is None:
            return None
        self._held = record if _waits(record) and not is_well() else None
        return record if self._held is None else None

    def write(self, connection: Connection, record: NodeRecord, meanwhile: Callable[[Store], None]) -> None:
        """Write this record; RecordWritten follows. `meanwhile`: as in `Connection.call`, as a store may refuse records
        for long, and heartbeats not: etcd without space does."""
        value = codec.encode_node(record)

        def publish(session: Store) -> bool:
            session.publish_node(self._node, value)
            return True

        if connection.call(publish, meanwhile=meanwhile):
            self.begun.set()
            self._post(RecordWritten(record.seq))


def _waits(record: NodeRecord) -> bool:
    """Whether this record waits until its node does its part. By any record a node counts as alive, and by one that
    asks for a place the others begin a round with it, which it would not receive. Nor do they wait longer for want of
    it: the node is about to be lost. What else it has to say may end their round sooner, and is written at once."""
    if record.state is NodeState.BROKEN:
        return record.failure is not None and record.failure.sign is Sign.CUT_OFF
    return record.state is NodeState.WAITING
