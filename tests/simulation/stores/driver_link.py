"""The link of a node to its store through the production drivers: their threads, their calls, their second attempts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from elastic_agent.rendezvous.codec import records as codec
from elastic_agent.rendezvous.coordinator import events as coordination
from elastic_agent.rendezvous.driver.driver import Driver
from elastic_agent.rendezvous.driver.events import (
    LoopAsked,
    RecordWritten,
    RoundSeen,
    StoreCameBack,
    StoreFailed,
    StoreOpened,
    StoreWentAway,
    overtaken,
)
from elastic_agent.rendezvous.driver.fencing import Fencing
from elastic_agent.rendezvous.records import JobSpec, NodeRecord, NodeState, Round
from elastic_agent.rendezvous.store import Store, StoreError, StoreFenced

from . import tcpstore_client
from .threads import Process
from .witnesses import SimChannel, SimNeighbours, SimPage

if TYPE_CHECKING:
    from ..world.node import SimNode
    from ..world.world import World
    from .shared import SharedStore


SPEC = JobSpec("job", ("train.py",), 1, 64, "number")
"""The same for all nodes; refusals are tested in tests/contract/test_one_job_one_record.py."""

Join = Callable[[Store], None]


class DriverDied(AssertionError):
    """A thread of the driver ended by an error that is not the store's."""


class DriverLink:
    """As `direct.DirectLink`, with nothing simulated above the client of the store."""

    def __init__(self, world: World, node: SimNode, shared_store: SharedStore) -> None:
        self.world = world
        self.node = node
        self.shared_store = shared_store
        self.opened = False
        self.up_cut = False
        self.down_cut = False
        self.silent: set[str] = set()
        """Roles of threads whose connections, also new ones, bring no answer any more."""
        self.silent_since = 0.0
        self.absences: deque[float] = deque()
        """When the store went away, for each time whose end the agent has not taken from its queue."""
        self.back_at: float | None = None
        """When it first answered after the last time that it went away."""
        self.came_back_at = 0.0
        """When its agent last took that it answers again."""
        self._writes = False
        """It has answered what this node writes since it went away."""
        self._looked_at = self.beats_again_at = 0.0
        """When the heartbeat was sent whose answer last showed those of the host; when this node's came again, after a
        lease."""
        self._unread_record_at = 0.0
        """Where this node coordinates: at which answer it had read all records."""
        self.newest = 0
        """The newest version in the agent's queue, taken or not."""
        self.last_record_written_at: float | None = None
        """When the last record of its agent was acknowledged; None while the agent coordinates and clears up."""
        self._last_record = b""
        self.unsent: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        """What TCP sends again once the cut is healed."""
        self.wires: list[tcpstore_client.Wire] = []
        self.sent: dict[str, bytes] = {}
        """The record that this node sent last."""
        self._unaccepted: dict[tuple[int, int], Round] = {}
        """By epoch and version: announcements that the store has not accepted yet."""
        self.process = Process(node, node.skew_s)
        self.channel = SimChannel(node)
        self.fencing = self._fence() if world.fences else None
        self.driver = self._as_node(
            partial(Driver, find_addr=lambda: f"{node.ident}.example", warn=self.strange, fencing=self.fencing),
            node.ident, node.ident, SPEC, self._open, self.arrives, world.job.beat_s, world.job.lease_s,
        )  # fmt: skip
        self._taken_at = 0.0
        self._unwritten = 0
        """Records that the agent has published, and whose writing was not answered."""
        self.losing = ""
        """What gets lost for a while: requests or replies."""
        self._loses_until = 0.0
        self._beat_at = world.now
        self._silent_s = 0.0

    def _fence(self) -> Fencing:
        job = self.world.job
        return Fencing(
            self.node.ident, job.lease_s, job.alone_s, SimPage(self.node), self.channel, SimNeighbours(self.node),
            hosted=not self.shared_store.elects,
        )  # fmt: skip

    def _as_node(self, act: Callable[..., Any], *args: object) -> Any:
        Process.running = self.process
        return act(*args)

    def _open(self, cancelled: Any, join: Join) -> Store:
        return self.shared_store.open(self, cancelled, join)

    @property
    def away_since(self) -> float | None:
        """When the store went away, by the events that the agent has taken."""
        return self.absences[0] if self.absences else None

    @property
    def up(self) -> bool:
        return self.shared_store.answers and not self.up_cut and not self.down_cut and self.away_since is None

    def open(self, deadline: float) -> None:
        self._as_node(self.driver.open)

    def publish(self, record: NodeRecord) -> None:
        if record.state is NodeState.ENDED:
            self._last_record = codec.encode_node(record)
        self._unwritten += 1
        self._as_node(self.driver.publish, record)

    def carry_out(self, effect: coordination.StoreEffect) -> None:
        if isinstance(effect, coordination.Announce) and self.world.elects:
            self._unaccepted[effect.round.epoch, effect.round.version] = effect.round
        self._as_node(self.driver.carry_out, effect)

    @property
    def announces(self) -> bool:
        """A call of its announcer is under way."""
        term = self.driver._term
        return term is not None and "announcer" in term.under_way()

    def accepted(self, version: int, epoch: int) -> None:
        """The store, which elects, has accepted this announcement of the node."""
        if self.node.coordinator is not None:
            self.node.coordinator.accepted(self._unaccepted.pop((epoch, version)))

    def resign(self) -> None:
        """Does not wait for the call, as production does."""
        self.process.start(self.driver.resign, ())

    def close(self) -> None:
        self._as_node(self.driver.close)

    def die(self) -> None:
        self.process.die()

    def arrives(self, event: Any) -> None:
        """What the driver posts: into the agent's queue, which one loop empties for both machines."""
        if isinstance(event, LoopAsked):
            self.world.at(0.0, self.node.turn, event.answer)
            return
        self._note(event)
        self._taken_at = max(self._taken_at, self.world.now + self.world.delays.local())
        self.world.when(self._taken_at, self.node.turn, self._take, event)

    def _note(self, event: Any) -> None:
        if isinstance(event, StoreOpened):
            self.opened = True
        elif isinstance(event, StoreFailed):
            self._stands(event.error)
        elif isinstance(event, StoreWentAway):
            self.absences.append(self.world.now)
            self.back_at, self._writes = None, False
        elif isinstance(event, RecordWritten):
            self.taken()
        elif isinstance(event, RoundSeen):
            self.newest = max(self.newest, event.round.version)
            if self._writes:
                self._usable()

    def _stands(self, error: StoreError) -> None:
        """Raises DriverDied if it is not for the store that a thread ended."""
        refused = isinstance(error, StoreFenced) and not self.shared_store.spoiled
        crashed = type(error) is StoreError and error.__cause__ is not None
        if refused or crashed:
            raise DriverDied(f"{self.node.ident}: {error}") from error.__cause__

    def _take(self, event: Any) -> None:
        if isinstance(event, coordination.Event):
            if self.node.coordinator is not None:
                self.node.coordinator.take(event)
            return
        if overtaken(event, self.driver.newest):
            self.world.reached.note("an announcement was overtaken by the next")
            return
        if isinstance(event, StoreCameBack):
            self.absences.popleft()
            self.came_back_at = self.world.now
        if isinstance(event, RoundSeen):
            self.world.checkers.announcements.taken(self, event.round.version)
        self.node.post(event)

    def strange(self, what: str) -> None:
        self.world.reached.note("strange bytes were ignored")

    # -- faults -------------------------------------------------------------------------------------------------------

    def cut(self, up: bool, down: bool) -> None:
        self.up_cut, self.down_cut = up, down

    def heal(self) -> None:
        self.up_cut = self.down_cut = False
        unsent, self.unsent = self.unsent, []
        for act, args in unsent:
            self.world.at(0.0, act, *args)  # in its order, and before all that is sent from now on

    def silence(self, role: str, *, broken: bool) -> None:
        """The connection of this thread, and each that it makes from now on, brings no answer. `broken`: the one that
        there is is reset."""
        self.silent.add(role)
        self.silent_since = self.world.now
        for wire in self.wires if broken else ():
            if wire.role == role:
                wire.reset_later()

    def speak(self) -> None:
        """Connections bring answers again."""
        self.silent.clear()
        self.heal()

    def lose(self, what: str, lasts_s: float) -> None:
        """For a while, half of the requests (or of their replies) get lost."""
        self.losing, self._loses_until = what, self.world.now + lasts_s

    def loses(self, what: str) -> bool:
        if self.losing != what:
            return False
        if self.world.now >= self._loses_until or self.world.rng.random() < 0.5:
            return False
        self.world.checkers.last_fault = self.world.now
        self.world.reached.note(f"a {what} was lost")
        return True

    def taken(self) -> None:
        """The driver has written a record. No wire shows when that is: a heartbeat too may write the last record again,
        over late bytes, while the driver still tries to."""
        self._unwritten -= 1
        self._writes = True
        self._usable()

    def answered(self, wrote: bytes, asked_at: float) -> None:
        """A call of the writer returned. `wrote`: the record that it wrote; empty for a heartbeat. `asked_at`: when it
        was sent; what reached the store later, its answer may not show."""
        term, recorded = self.driver._term, self.driver._recorded
        if term is None or recorded is None or term.cursor >= recorded:
            self._unread_record_at = self.world.now
        if not wrote and not self._unwritten:  # else it does not show that the store takes the record
            self._writes, self._looked_at = True, asked_at
            self._usable()
        if wrote and wrote == self._last_record and not self.node.state.leading:
            self.last_record_written_at = self.world.now

    def _usable(self) -> None:
        useless = self.silent or self._host_stands() or self._behind()
        if self.absences and self.back_at is None and not useless:
            self.back_at = self.world.now

    def _behind(self) -> bool:
        """An announcement, or a record where this node coordinates, has waited for it for longer than it may, so that
        for it the store is still away."""
        announced_at = self.world.checkers.announcements.announced_at(self.newest + 1)
        unread_at = min(self._unread_record_at, self.world.now if announced_at is None else announced_at)
        return self.world.now - unread_at >= self.world.job.lease_s

    def _host_stands(self) -> bool:
        """Whether the node that hosts the store does not do its part, or this one has seen no heartbeat of it since."""
        if self.world.elects:
            return False
        host = self.world.host
        return not (host.attends and host.link.beats_on() and host.link.beats_again_at <= self._looked_at)

    def beats_on(self) -> bool:
        """A heartbeat of this node has arrived within a lease."""
        return self.world.now - self._beat_at < self.world.job.lease_s

    def reset(self) -> None:
        """The server has ended. A node that waits for heartbeats of the host looks for them as it sends its own: that
        they were back for less time than that, it has not seen, so for it the store never came back."""
        if self.back_at is not None and self.world.now - self.back_at <= self.world.job.beat_s:
            self.back_at = None
        for wire in self.wires:
            wire.reset_later()
        self.wires.clear()

    # -- heartbeats ---------------------------------------------------------------------------------------------------

    def beat_arrived(self) -> None:
        """A new heartbeat has reached the store."""
        if not self.beats_on():
            self.beats_again_at = self.world.now
        self._beat_at = self.world.now

    def vouched(self) -> None:
        """What has arrived is a heartbeat that its writer sent."""
        self.world.checkers.liveness.vouched(self.node, self)

    def beats_read(self) -> None:
        """The coordinator's reading of the heartbeats is at the store."""
        self._silent_s = self.world.now - self._beat_at

    def excused(self, frozen_s: float) -> None:
        """The store was frozen for so long: no silence of this node, but for the time between two heartbeats."""
        self._beat_at = min(self.world.now, self._beat_at + max(0.0, frozen_s - self.world.job.beat_s))

    def silent_s(self) -> float:
        """For how long no heartbeat had arrived, by the node's own fault, at the coordinator's last reading."""
        return self._silent_s

    def settle_beats(self) -> None:
        """Nothing: the driver itself sends heartbeats."""

    def pump(self) -> None:
        """Nothing: the driver itself sends records."""

    def look(self) -> None:
        """Nothing: the driver itself reads rounds."""
