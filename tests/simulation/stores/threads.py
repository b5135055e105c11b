"""Threads, queues and clocks for the production drivers, on the simulator's clock: all in one real thread.

A simulated thread is a greenlet: it runs until it would block, and goes on when the clock says so. `SUBSTITUTES` puts
these in the place of `threading`, `queue` and `time` in the modules that the drivers are made of, while a world runs.
"""

from __future__ import annotations

import heapq
import queue
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import greenlet
from greenlet import getcurrent

from elastic_agent.rendezvous.c10d import notifications, opening
from elastic_agent.rendezvous.c10d import store as c10d
from elastic_agent.rendezvous.driver import connection, driver, fencing, health, outbound, term
from elastic_agent.rendezvous.driver import threads as crew
from elastic_agent.rendezvous.etcd import election

from ..world.substitution import Substitute

if TYPE_CHECKING:
    from ..world.node import SimNode

TIMEOUT = object()
"""What a wait returns after its timeout."""


NEVER = float("inf")


class Fiber(greenlet.greenlet):  # type: ignore[misc]  # it comes without types
    """One simulated thread. Most of its waits end long before their timeout, so an alarm that is already set serves
    every wait with a later one."""

    ticket: Ticket
    deadline = NEVER

    def __init__(self, target: Callable[..., None], process: Process, role: str) -> None:
        """`role`: which of its driver's threads it is."""
        super().__init__(target, process.hub)
        self.process = process
        self.role = role
        self.alarms: list[float] = []
        """When each is set for; a heap."""


class Ticket:
    """One wait of one thread; only the first wake-up counts."""

    __slots__ = ("done", "process", "thread")

    def __init__(self, process: Process, thread: Fiber) -> None:
        self.process = process
        self.thread = thread
        self.done = False

    def wake(self, value: object = None) -> None:
        """Called by a thread: the waiting one goes on once the caller waits."""
        if not self.done:
            self.done = True
            self.process.resume_soon(self.thread, value)

    def wake_now(self, value: object) -> None:
        """Called by the world: the waiting thread goes on at once."""
        if not self.done:
            self.done = True
            process = self.process
            if process.node.frozen:
                process.node.deliver(process.resume, self.thread, value)
            else:
                process.resume(self.thread, value)


class Process:
    """The threads of one agent. They stop while it is frozen, and end when it is killed."""

    running: Process
    """The one whose code runs right now."""

    def __init__(self, node: SimNode, skew_s: float) -> None:
        self.node = node
        self.world = node.world
        self.skew_s = skew_s
        self.hub: greenlet.greenlet = getcurrent()
        self.threads: list[Fiber] = []

    def now(self) -> float:
        """The clock of this node, which is no other node's."""
        return self.world.now + self.skew_s

    def start(self, target: Callable[..., None], args: tuple[object, ...], role: str = "") -> None:
        thread = Fiber(target, self, role)
        self.threads.append(thread)
        self.world.at(0.0, self.node.deliver, self._begin, thread, args)

    def _begin(self, thread: Fiber, args: tuple[object, ...]) -> None:
        if not self.node.killed:
            Process.running = self
            thread.switch(*args)

    def resume_soon(self, thread: Fiber, value: object) -> None:
        self.world.at(0.0, self.node.deliver, self.resume, thread, value)

    def resume(self, thread: Fiber, value: object) -> None:
        if not self.node.killed and not thread.dead:
            Process.running = self
            thread.switch(value)

    def block(self, ticket: Ticket, timeout_s: float | None) -> object:
        """The thread that runs waits for its ticket; TIMEOUT if that took too long."""
        thread = ticket.thread
        thread.ticket = ticket
        if timeout_s is None:
            thread.deadline = NEVER
        else:
            thread.deadline = deadline = self.world.now + (timeout_s if timeout_s > 0.0 else 0.0)
            alarms = thread.alarms
            if not alarms or deadline < alarms[0]:
                self._arm(thread)
        return self.hub.switch()

    def _arm(self, thread: Fiber) -> None:
        """Sets an alarm that is earlier than all others of this thread."""
        heapq.heappush(thread.alarms, thread.deadline)
        self.world.when(thread.deadline, self._rings, thread)

    def _rings(self, thread: Fiber) -> None:
        if self.node.frozen:
            self.node.deliver(self._rings, thread)
            return
        heapq.heappop(thread.alarms)
        if thread.ticket.done or thread.deadline == NEVER or self.node.killed:
            return
        if thread.deadline > self.world.now:
            if not thread.alarms or thread.deadline < thread.alarms[0]:
                self._arm(thread)
            return
        thread.ticket.done = True
        Process.running = self
        thread.switch(TIMEOUT)

    def die(self) -> None:
        """As SIGKILL: no thread runs on, not even to clean up."""
        for thread in self.threads:
            if not thread.dead:
                thread.throw()
        self.threads.clear()


def current() -> Fiber:
    """The thread that runs."""
    thread = getcurrent()
    if type(thread) is not Fiber:
        raise TypeError("only a simulated thread can wait")
    return thread


def ticket() -> Ticket:
    """For a wait of the thread that runs."""
    thread = current()
    return Ticket(thread.process, thread)


class Thread:
    """As threading.Thread, as far as the drivers use it."""

    def __init__(
        self, target: Callable[..., None], args: tuple[object, ...] = (), name: str = "", daemon: bool = True
    ) -> None:
        self._target = target
        self._args = args
        self._role = name.removeprefix("elastic-agent-")

    def start(self) -> None:
        Process.running.start(self._target, self._args, self._role)


class Event:
    """As threading.Event."""

    def __init__(self) -> None:
        self._set = False
        self._waiting: list[Ticket] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.wake()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            mine = ticket()
            self._waiting.append(mine)
            mine.process.block(mine, timeout)
        return self._set


class Condition:
    """As threading.Condition. Its lock needs nothing: threads here only change places where they wait."""

    def __init__(self) -> None:
        self._waiting: list[Ticket] = []

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_raised: object) -> None:
        pass

    def notify(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.wake()

    def wait(self, timeout: float | None = None) -> None:
        mine = ticket()
        self._waiting.append(mine)
        mine.process.block(mine, timeout)


class SimpleQueue:
    """As queue.SimpleQueue, for one reader."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._reader: Ticket | None = None

    def put(self, item: object) -> None:
        self._items.append(item)
        if self._reader is not None:
            self._reader.wake()
            self._reader = None

    def get(self, timeout: float | None = None) -> Any:
        while not self._items:
            self._reader = mine = ticket()
            if mine.process.block(mine, timeout) is TIMEOUT and not self._items:
                self._reader = None
                raise queue.Empty
        return self._items.popleft()


def _monotonic() -> float:
    process = Process.running
    return process.world.now + process.skew_s


def _now() -> float:
    return Process.running.world.now


_THREADING = SimpleNamespace(Thread=Thread, Event=Event, Condition=Condition, Lock=Condition)
_TIME = SimpleNamespace(monotonic=_monotonic)
_UNSKEWED = SimpleNamespace(monotonic=_now)
"""For differences of times, which a large skew would round."""
_QUEUE = SimpleNamespace(SimpleQueue=SimpleQueue, Empty=queue.Empty)

SUBSTITUTES: list[Substitute] = [
    (crew, "threading", _THREADING),
    (crew, "time", _TIME),
    (driver, "threading", _THREADING),
    (fencing, "threading", _THREADING),
    (health, "time", _TIME),
    (outbound, "queue", _QUEUE),
    (outbound, "threading", _THREADING),
    (term, "queue", _QUEUE),
    (connection, "threading", _THREADING),
    (connection, "time", _TIME),
    (election, "time", _UNSKEWED),
    (opening, "threading", _THREADING),
    (c10d, "time", _TIME),
    (opening, "time", _TIME),
    (notifications, "time", _TIME),
]
