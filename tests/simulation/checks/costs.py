"""What a job costs: processor time of its coordinators, and the size of what is written to the store.

Times are those of the machine that simulates, so their bounds leave much room: for growth with the square of anything,
not for a slow machine. What nodes write is only known where production drivers write it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from elastic_agent.rendezvous.codec.limits import INLINE_MEMBERS

from .invariants import CHEAP, SMALL

if TYPE_CHECKING:
    from .checkers import Checkers

EVENT_S, NODE_S = 0.0002, 0.000005
"""Processor time that an event of the coordinator may take on average, and for each node that it knows."""
AT_ONCE_S = 0.5
"""What all events together may take beyond that: for a collection of garbage, or a busy machine."""
RECORD_BYTES = 4096
"""Of a node's record: its exits, which have no texts here, and its sentence."""
ANNOUNCED_BYTES, MEMBER_BYTES = 6144, 48
"""Of an announcement: the exits that are announced and its sentences, and for each member that it lists."""


class InDoubt(Exception):
    """Coordinators spent too much by a clock that also counts what other programs spend."""


class Costs:
    """The costs of one world so far."""

    def __init__(self, truth: Checkers) -> None:
        self._truth = truth
        self.events = 0
        """How many events coordinators have taken."""
        self.spent_s = 0.0
        """Processor time of coordinators."""
        self.allowed_s = AT_ONCE_S
        self.largest_record = 0
        """In bytes."""
        self.largest_announcement = 0

    def decided(self, took_s: float, nodes: int) -> None:
        """A coordinator that knows so many nodes has taken an event."""
        self.events += 1
        self.spent_s += took_s
        self.allowed_s += EVENT_S + NODE_S * nodes
        if self.spent_s > self.allowed_s:
            if self._truth.world.clock is not time.thread_time:
                raise InDoubt(f"{self.events} events took {self.spent_s:.2f} s, with what other programs took")
            self._truth.need(False, CHEAP, f"{self.events} events took {self.spent_s:.2f} s, with {nodes} nodes")

    def recorded(self, size: int) -> None:
        """A node's record of so many bytes is in the store."""
        self.largest_record = max(self.largest_record, size)
        self._truth.need(size <= RECORD_BYTES, SMALL, f"a record has {size} bytes")

    def announced(self, size: int) -> None:
        """An announcement of so many bytes is in the store."""
        self.largest_announcement = max(self.largest_announcement, size)
        most = ANNOUNCED_BYTES + MEMBER_BYTES * INLINE_MEMBERS
        nodes = len(self._truth.world.nodes)
        self._truth.need(size <= most, SMALL, f"an announcement has {size} bytes, with {nodes} nodes")
