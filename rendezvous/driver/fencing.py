"""Until when this node's workers may run, and what this node answers to others that ask it: docs/adr/0042.

Where the store elects, a node is lost no earlier than 0.75 of a lease after its last acknowledged heartbeat was sent.
So each heartbeat that the store acknowledges moves the fence of its workers to 0.65 of a lease after that. While the
store does not answer, the witnesses of the round do the same: they promise that a newer round without this node waits
for them.

Where a node hosts the store, a node is lost a lease after its last heartbeat, and that counts for 0.9 of one. The host
begins no round without itself, so its own workers have no fence, unless others may replace it while it is silent: then
its coordinator moves it on (docs/adr/0062). It is no witness either (docs/adr/0051).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from ...proto.frozen import replace
from ..coordinator.fencing import PERMITTED
from ..records import MAX_ENDED_HERE, NodeRecord, Round, RoundPhase, Witness

HOLDS = 0.65
"""For how many leases a heartbeat, or a permission, lets workers run on, counted from when it was sent."""
HOSTED, UNWITNESSED = 0.9, 1.25
"""As HOLDS, behind a heartbeat to a store that a node hosts; and where there also is no witness to ask. A host that
stands still for less than a lease then ends no workers."""
ASKS_AFTER, ASKS_AGAIN = 0.3, 0.2
"""Leases without an acknowledged heartbeat after which witnesses are asked, and from one question to the next."""
PATIENCE = 0.2
"""Leases that witnesses have to answer."""
WAIT_S = 10.0
"""Length of one wait for the fence to be moved on; longer only delays the end of a thread."""
HOST_WAIT = 0.1
"""The same on the host, in leases."""
FOREVER = 4e9
"""A time that no clock of a host reaches, in seconds."""
READ_KEPT = 16
"""So many of the newest announcements are remembered by the generation in which they were read."""


class Page(Protocol):
    """Where the process that owns the workers reads the fence."""

    fd: int

    def now(self) -> float: ...
    def move(self, until: float, generation: int) -> None: ...


class Channel(Protocol):
    """How nodes ask each other."""

    def open(self, node: str, secret: bytes, answer: Callable[[int], bool]) -> int:
        """Answer from now on, to who knows the secret; returns the port, 0 if this host allows none."""
        ...

    def prepare(self, witnesses: tuple[Witness, ...]) -> None:
        """These may be asked: find out what takes long now."""
        ...

    def ask(self, number: int, witnesses: tuple[Witness, ...], timeout_s: float) -> bool:
        """Whether all of these answer in time that workers of this round may run on."""
        ...

    def close(self) -> None: ...


class Neighbours(Protocol):
    """Agents of the job on this node's host."""

    presence: str
    """By this name they see whether a process of this node lives; empty: they cannot."""
    fd: int
    """What whoever owns the workers holds for that; -1: nothing."""

    def look(self, found: Callable[[Mapping[str, str]], None]) -> None:
        """Find out of which of them no process is left. `found` is called for it, maybe on another thread, and again
        once there are more: all so far, with names for people, by presence."""
        ...

    def close(self) -> None: ...


class Fencing:
    """One node's fence, and its part as a witness. For any thread."""

    def __init__(
        self,
        node: str,
        lease_s: float,
        alone_s: float,
        page: Page,
        channel: Channel,
        neighbours: Neighbours | None = None,
        *,
        hosted: bool = False,
    ) -> None:
        """`alone_s`: how long workers run on without the store at most. `hosted`: a node hosts the store."""
        self._node, self._lease_s, self._alone_s = node, lease_s, alone_s
        self.page, self._channel, self._neighbours = page, channel, neighbours
        self._hosted, self._hosts = hosted, False
        self.on_ended: Callable[[tuple[str, ...]], None] | None = None
        """Called with names of neighbours of which no process is left."""
        self._ended_here: tuple[str, ...] = ()
        self._lock = threading.Lock()
        self._moved = threading.Event()
        self._until = 0.0
        self._generation = 0
        self._heard_at = float("-inf")
        """When the last acknowledged heartbeat was sent."""
        self._asked_at = float("-inf")
        self._running: tuple[int, tuple[Witness, ...]] | None = None
        """The round that this node has a place in, and its witnesses but this node."""
        self._prepared: tuple[int, tuple[Witness, ...]] | None = None
        self._read_in: dict[int, int] = {}
        """By version of an announcement: the generation in which it was read."""
        self._port = 0
        self._fenced_round = self._permitted_round = 0
        self._permitted_at = float("-inf")

    def open(self, secret: bytes) -> None:
        """Answer who asks. Before the first record of this node is written."""
        self._port = self._channel.open(self._node, secret, self.permits)

    def host(self) -> None:
        """This node hosts the store from now on, and coordinates: no round begins without it."""
        with self._lock:
            self._hosts = True
        self.hold(FOREVER)

    def hold(self, for_s: float) -> None:
        """Workers of this node, which hosts the store, may run for so long from now on, and no longer: another may host
        it then. Before those of a round start that may have to end sooner than what this said before."""
        with self._lock:
            if self.page.now() >= self._until:
                self._generation += 1  # as behind any other gap
            self._until = min(self.page.now() + for_s, FOREVER)
            self.page.move(self._until, self._generation)
        self._moved.set()

    def close(self) -> None:
        self._moved.set()
        self._channel.close()
        if self._neighbours is not None:
            self._neighbours.close()

    @property
    def presence_fd(self) -> int:
        """What whoever owns the workers holds, for neighbours to see that it lives; -1: nothing."""
        return self._neighbours.fd if self._neighbours is not None else -1

    # -- the fence ------------------------------------------------------------------------------------------------

    def heartbeat_acknowledged(self, sent_at: float) -> None:
        """The store has acknowledged a heartbeat that was sent then, on the clock of the page."""
        with self._lock:
            until = sent_at + self._holds_s
            now = self.page.now()
            self._heard_at = max(self._heard_at, sent_at)
            if now >= until or self._hosts:
                return
            if now >= self._until:
                self._generation += 1  # what had been read before this gap is out of date
            self._move(until)
        self._moved.set()

    def _permitted(self, asked_at: float) -> None:
        with self._lock:
            # Behind a gap a newer round may run already; only the store knows.
            if self.page.now() < self._until:
                self._move(min(asked_at + HOLDS * self._lease_s, self._heard_at + self._alone_s))

    @property
    def _holds_s(self) -> float:
        """For how long an acknowledged heartbeat lets workers run."""
        return (HOLDS if not self._hosted else UNWITNESSED if self._alone else HOSTED) * self._lease_s

    @property
    def _alone(self) -> bool:
        """Whether this node may ask nobody but the host, which is no witness."""
        return self._hosted and (self._hosts or (self._running is not None and not self._running[1]))

    def _move(self, until: float) -> None:
        if until > self._until:
            self._until = until
            self.page.move(until, self._generation)

    # -- what is read -----------------------------------------------------------------------------------------------

    def generation(self) -> int:
        """Of what is read from the store from now on."""
        return self._generation

    def is_current(self, generation: int, seen: Round | None = None) -> bool:
        """Whether there was no gap since then. What this node announces itself, as the host, is never out of date; but
        behind a gap it still starts no workers by it: others may run a round of the next host."""
        host = seen.host if self._hosts and seen is not None and seen.phase is not RoundPhase.RUNNING else None
        if host is not None and host.node == self._node:
            return True
        with self._lock:
            return generation == self._generation and self.page.now() < self._until

    def wait_current(self) -> None:
        """Return once the fence is not passed, or after `WAIT_S`; on the host sooner, as what it announces may be
        current all the same."""
        with self._lock:
            if self.page.now() < self._until:
                return
            self._moved.clear()
        self._moved.wait(WAIT_S if not self._hosts else min(WAIT_S, HOST_WAIT * self._lease_s))

    def follow(self, seen: Round, generation: int) -> None:
        """This announcement was read in this generation."""
        with self._lock:
            self._read_in[seen.version] = generation
            for version in sorted(self._read_in)[:-READ_KEPT]:
                del self._read_in[version]
            here = seen.begun and seen.member(self._node) is not None
            others = tuple(witness for witness in seen.witnesses if witness.node != self._node)
            held_s = self._holds_s
            self._running = (seen.number, others) if here and seen.witnesses else None
            if self._holds_s < held_s and not self._hosts:
                self._until = min(self._until, self._heard_at + self._holds_s)
                self.page.move(self._until, self._generation)  # before workers of this round start
        if seen.phase is RoundPhase.OVER and self._neighbours is not None:
            self._neighbours.look(self._ended)  # the coordinator may wait for one that has ended

    def _ended(self, found: Mapping[str, str]) -> None:
        with self._lock:
            self._ended_here = tuple(found)[-MAX_ENDED_HERE:]
        if self.on_ended is not None:
            self.on_ended(tuple(found.values()))

    def read_in(self, version: int) -> int:
        """The generation in which this announcement was read; -1 if that is not known."""
        with self._lock:
            return self._read_in.get(version, -1)

    # -- asking -------------------------------------------------------------------------------------------------------

    def watch(self, ending: threading.Event) -> None:
        """Ask whenever that is due, until `ending` is set. On a thread of its own."""
        while not ending.is_set():
            self.prepare()
            if due_in_s := self.due_in_s():
                ending.wait(due_in_s)
            else:
                self.ask()

    def due_in_s(self) -> float:
        """Seconds until witnesses are to be asked, as far as is known now; 0: now."""
        now = self.page.now()
        due_at = max(self._heard_at + ASKS_AFTER * self._lease_s, self._asked_at + ASKS_AGAIN * self._lease_s)
        if self._running is None or now >= self._until or self._alone:
            due_at = max(due_at, now + ASKS_AFTER * self._lease_s)
        return max(0.0, min(due_at - now, ASKS_AFTER * self._lease_s))

    def prepare(self) -> None:
        """Prepare for questions to the witnesses of the round."""
        if self._running is not None and self._running is not self._prepared:
            self._prepared = self._running
            self._channel.prepare(self._running[1])

    def ask(self) -> None:
        """Ask the witnesses of the round whether workers may run on."""
        running, self._asked_at = self._running, self.page.now()
        if running is None or self._alone:
            return
        asked_at = self._asked_at
        if self._channel.ask(*running, PATIENCE * self._lease_s):
            self._permitted(asked_at)

    # -- answering ----------------------------------------------------------------------------------------------------

    def permits(self, number: int) -> bool:
        """Whether workers of this round may run on, as far as this node knows."""
        with self._lock:
            if number <= self._fenced_round:
                return False
            self._permitted_round = max(self._permitted_round, number)
            self._permitted_at = self.page.now()
            return True

    def recorded(self, record: NodeRecord) -> NodeRecord:
        """The record with what this node says as a witness. Whatever it asks the coordinator to believe holds from now
        on, before the record is written. No node waits for what a permission of long ago let run."""
        with self._lock:
            self._fenced_round = max(self._fenced_round, record.fenced_round)
            lasts = self.page.now() < self._permitted_at + PERMITTED * self._lease_s
            return replace(
                record,
                witness_port=self._port,
                fenced_round=self._fenced_round,
                permitted_round=self._permitted_round if lasts else 0,
                alone_s=self._alone_s,
                presence=self._neighbours.presence if self._neighbours is not None else "",
                ended_here=self._ended_here,
            )
