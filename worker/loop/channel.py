"""The worker's side of the page that it shares with its agent (`proto/steps.py`): what all ranks do at one boundary.

`reached` is called at each boundary and costs one write and one read of memory. A number it does not know makes it wait
until all agents have found out where their workers are and one boundary is decided, which no rank has passed: some
milliseconds, once for each request.
"""

from __future__ import annotations

import mmap
import os
import select
import sys
from typing import NamedTuple

from ...proto import steps
from . import account


class Orders(NamedTuple):
    """What all ranks do at this boundary."""

    number: int
    acts: int
    label: str

    @property
    def stop(self) -> bool:
        """Whether all ranks leave their loops."""
        return bool(self.acts & steps.STOP)

    @property
    def hold(self) -> bool:
        """Whether all ranks wait for the end of the round."""
        return bool(self.acts & steps.HOLD)


class Channel:
    """One for each process, whatever number of runs it makes: all their boundaries are counted together."""

    def __init__(self, place: steps.Place) -> None:
        """Opens the page and the pipes to the agent. Raises OSError if one of them cannot be opened."""
        opened: list[int] = []
        try:
            for descriptor, flags in (
                (place.page, os.O_RDWR),
                (place.reports, os.O_WRONLY | os.O_NONBLOCK),
                (place.changes, os.O_RDONLY | os.O_NONBLOCK),
            ):
                opened.append(os.open(f"/proc/{place.pid}/fd/{descriptor}", flags | os.O_CLOEXEC))
            page, self._reports, self._changes = opened
            owner = os.pread(page, steps.WORD_BYTES, steps.slot_at(place.slot, steps.ATTACHED))
            if any(owner):
                raise FileExistsError(f"slot {place.slot} belongs to process {int.from_bytes(owner, sys.byteorder)}")
            self._memory = mmap.mmap(page, 0)
            os.close(page)
        except OSError:
            for descriptor in opened:
                os.close(descriptor)
            raise
        self._common = memoryview(self._memory).cast("Q")
        begin = steps.slot_at(place.slot, 0)
        self._slot = memoryview(self._memory)[begin : begin + steps.SLOT_BYTES].cast("Q")
        self._known = 0
        """Number of the newest agreement that this worker knows."""
        self._pending: list[tuple[int, Orders]] = []
        """Boundaries to come at which something is to be done."""
        self.boundary = 0
        """The last one that this process has come to."""
        self.stopping = False
        """Whether all ranks leave their loops."""
        self._waiting: select.epoll | None = None
        self.pid = os.getpid()
        self._slot[steps.ATTACHED] = self.pid
        self._report()

    def reached(self) -> Orders | None:
        """This process has come to its next boundary, as all ranks do; what all are to do there."""
        self.boundary = boundary = self.boundary + 1
        # The order matters: see `StepPage._bound`.
        self._slot[1] = boundary
        if self._common[0] == self._known and not self._pending:
            return None
        self._listen()
        if self._pending and self._pending[0][0] <= boundary:
            return self._pending.pop(0)[1]
        return None

    @property
    def ordered(self) -> bool:
        """Whether something is to be done at a boundary to come."""
        return bool(self._pending)

    def await_orders(self) -> None:
        """Wait until the agents have decided on what somebody has asked all ranks for."""
        known = self._known
        while self._known == known:
            self._listen()
            if self._known == known:
                self._wait()

    def acted(self, orders: Orders) -> None:
        """What was to be done is done; for all but a plain save, it is on the disk."""
        self._slot[steps.ACTED] = orders.number
        self._report()
        while orders.hold and self._common[steps.RELEASED] < orders.number:
            self._wait()

    def accounting(self, done: int) -> account.Account:
        """What accounts for this process's time from now on. done: the step at which the run goes on."""
        return account.Account(self._slot, self._common[steps.REACHED], done, self._report)

    def attend(self, attends: bool) -> None:
        """Whether boundaries follow: a process that waits for what it is to do next comes to none, and a planned change
        does not wait for it."""
        if (accounts := account.current) is not None:
            accounts.attend(attends)
        self._slot[steps.ATTACHED] = self.pid if attends else 0
        self._report()

    def closing(self) -> None:
        """The run has saved its last checkpoint: what comes later is not waited for."""
        if self._pending:
            self._slot[steps.ACTED] = self._pending[-1][1].number
            self._report()

    def close(self) -> None:
        """Close its descriptors. The channel of a process lives as long as that."""
        for descriptor in (self._reports, self._changes):
            os.close(descriptor)
        if self._waiting is not None:
            self._waiting.close()

    def _listen(self) -> None:
        common = self._common
        while (asked := common[steps.ASKED]) != self._known:
            if common[steps.DECIDED] != asked:
                self._wait()
                continue
            label = bytes(self._memory[steps.LABEL_AT : steps.LABEL_AT + common[steps.LABEL_BYTES]])
            orders = Orders(asked, common[steps.ACTS], label.decode("utf-8", "replace"))
            if common[steps.AT]:
                self._pending.append((common[steps.AT], orders))
            self._known = self._slot[steps.NEWEST_READ] = asked
            self._report()

    def _wait(self) -> None:
        """Until the agent has changed something since the last look, or at once the first time."""
        if self._waiting is None:
            self._waiting = select.epoll()
            self._waiting.register(self._changes, select.EPOLLIN | select.EPOLLET)
        self._waiting.poll()

    def _report(self) -> None:
        try:
            os.write(self._reports, b"\0")
        except BlockingIOError:
            pass  # full: the agent has yet to look
        except BrokenPipeError:
            pass  # the agent is gone, and this process soon, too


_channel: Channel | None = None


def channel_of(rank: int, size: int, done: int = 0) -> Channel | None:
    """The channel of this process, where an agent has started it as this rank of this many; None elsewhere. done: the
    step at which the run goes on; from here on its time is accounted for."""
    global _channel  # noqa: PLW0603 - the page knows one process, so it is one for the process
    place, ours = os.environ.get(steps.VARIABLE), (os.environ.get("RANK"), os.environ.get("WORLD_SIZE"))
    if _channel is None and place and ours == (str(rank), str(size)):
        try:
            _channel = Channel(steps.from_variable(place))
        except (OSError, ValueError):
            # The agent's processes are not seen from here, as in a container of one's own; or another process of this
            # worker has made a Run before, and boundaries are those of one process.
            return None
        account.current = _channel.accounting(done)
    elif _channel is not None and account.current is not None:
        account.current.goes_on(done)
    return _channel if _channel is not None and _channel.pid == os.getpid() else None
