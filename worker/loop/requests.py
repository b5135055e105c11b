"""What a run was asked to do at its next step boundary: by its script, by its clock, by the job's agents."""

from __future__ import annotations

from collections.abc import Callable

from .channel import Orders, channel_of


class Requests:
    """Of one rank. What agents ask for is the same on all ranks at each boundary; the rest is exchanged."""

    def __init__(self, rank: int, size: int) -> None:
        self.label: str | None = None
        """Of the checkpoint that is asked for; None: none is."""
        self.stop = False
        """All ranks are to save and leave their loops."""
        self.forced = False
        """A checkpoint is due on all ranks, as soon as one can be made."""
        self._orders: Orders | None = None
        self._channel = channel_of(rank, size)

    @property
    def ordered(self) -> bool:
        """Whether the agents asked for the checkpoint that is made next."""
        return self._orders is not None

    def reached(self) -> None:
        """This rank has come to its next boundary, as all do."""
        if self._channel is not None and (orders := self._channel.reached()) is not None:
            self._orders, self.label, self.forced = orders, orders.label, True
            self.stop = self.stop or orders.stop

    def saved(self, wait: Callable[[], None]) -> None:
        """The checkpoint that was asked for is made; `wait` returns when it is on the disk. Where the agents want the
        ranks to wait for the end of the round, this does not return, unless they no longer do."""
        orders, self._orders = self._orders, None
        self.label, self.forced = None, False
        if orders is None or self._channel is None:
            return
        if orders.stop or orders.hold:
            wait()
        self._channel.acted(orders)

    def closed(self) -> None:
        """The run has made its last checkpoint."""
        if self._channel is not None:
            self._channel.closing()
