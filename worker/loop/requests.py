"""What a run was asked to do at its next step boundary: by its script, by its clock, by the job's agents."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from .channel import Orders, channel_of
from .log import RunLog


class Requests:
    """Of one rank. What agents ask for is the same on all ranks at each boundary; the rest is exchanged."""

    def __init__(self, rank: int, size: int, log: RunLog, done: int = 0) -> None:
        """done: the step at which the run goes on."""
        self.label: str | None = None
        """Of the checkpoint that is asked for; None: none is."""
        self.stop = False
        """All ranks are to save and leave their loops."""
        self.stop_ordered = False
        """So the agents have said: they know how the job ends."""
        self.forced = False
        """A checkpoint is due on all ranks, as soon as one can be made."""
        self._orders: Orders | None = None
        self._channel = channel_of(rank, size, done)
        self.listens = self._channel is not None
        """Whether an agent may ask for something."""
        if "ELASTIC_AGENT_ROUND" not in os.environ:
            log.info(
                "no elastic-agent has started this process: a worker that fails is its launcher's to restart, no "
                "switch and no signal to an agent asks for a checkpoint, and run.stop() does not exit with 75"
            )

    @property
    def ordered(self) -> bool:
        """Whether the agents asked for the checkpoint that is made next."""
        return self._orders is not None

    def reached(self) -> None:
        """This rank has come to its next boundary, as all do. Needed only where it listens."""
        if self._channel is not None and (orders := self._channel.reached()) is not None:
            self._orders, self.label, self.forced = orders, orders.label, True
            self.stop_ordered = self.stop_ordered or orders.stop
            self.stop = self.stop or orders.stop

    def saved(self, wait: Callable[[], None]) -> None:
        """The checkpoint that was asked for is made; `wait` returns when it is on the disk. Where the ranks are to
        wait for the end of the round, this does not return, unless they no longer do."""
        orders, self._orders = self._orders, None
        self.label, self.forced = None, False
        if orders is None or self._channel is None:
            return
        if orders.stop or orders.hold:
            wait()
        self._channel.acted(orders)

    def await_orders(self) -> Iterator[None]:
        """Wait for the decision on what all ranks were asked for. Then gives as often as there is a boundary to come to
        before it is done; not at all where it was given up."""
        if self._channel is not None:
            self._channel.await_orders()
            while self._channel.ordered:
                yield

    def attend(self, attends: bool) -> None:
        """Whether this rank comes to further boundaries before it waits for somebody who is no rank."""
        if self._channel is not None:
            self._channel.attend(attends)

    def closed(self) -> None:
        """The run has made its last checkpoint."""
        if self._channel is not None:
            self._channel.closing()
