"""A node's link to a store by the drivers that run in production: their threads, their calls, their second attempts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from elastic_agent.agent.inbox import Inbox
from elastic_agent.agent.lifecycle.events import RoundSeen, StoreCameBack
from elastic_agent.rendezvous.codec import records as codec
from elastic_agent.rendezvous.coordinator import events as coordination
from elastic_agent.rendezvous.driver.driver import Driver
from elastic_agent.rendezvous.records import JobSpec, NodeRecord, NodeState, Round
from elastic_agent.rendezvous.store import Store, StoreError, StoreFenced

from . import tcpstore
from .threads import Process

if TYPE_CHECKING:
    from .faces import Face
    from .node import SimNode
    from .world import World


SPEC = JobSpec("job", ("train.py",), 1, 64, "number")
"""The same for all nodes; refusals are tests/contract/test_one_job_one_record.py's."""

Join = Callable[[Store], None]


class Mistake(AssertionError):
    """A thread of the driver died of what no store can be blamed for."""


class Heard(Inbox):
    """The production inbox, and the truth about what it was told."""

    def __init__(self, link: DrivenLink) -> None:
        super().__init__(link.arrives, link.strange, lambda: f"{link.node.ident}.example")
        self._link = link

    def store_opened(self, hosting: bool) -> None:
        self._link.opened = True
        super().store_opened(hosting)

    def store_failed(self, error: StoreError) -> None:
        if "a mistake of ours" in str(error) or (isinstance(error, StoreFenced) and not self._link.face.spoiled):
            raise Mistake(f"{self._link.node.ident}: {error}") from error.__cause__
        super().store_failed(error)

    def store_went_away(self, reason: str) -> None:
        self._link.absences.append(self._link.world.now)
        self._link.back_at = None
        super().store_went_away(reason)

    def round_seen(self, seen: Round) -> None:
        self._link.newest = max(self._link.newest, seen.version)
        super().round_seen(seen)


class DrivenLink:
    """As `network.Link`, with nothing imagined above the wire."""

    def __init__(self, world: World, node: SimNode, face: Face) -> None:
        self.world = world
        self.node = node
        self.face = face
        self.opened = False
        self.up_cut = False
        self.down_cut = False
        self.absences: deque[float] = deque()
        """When the store went away, each time that the agent has not heard the end of."""
        self.back_at: float | None = None
        """When it first answered after it last went away."""
        self.newest = 0
        """The newest version that the agent was told of, whether it has taken it or not."""
        self.said_last_at: float | None = None
        """When the last word of its agent was written and acknowledged; not while that coordinates, and clears up."""
        self._last_word = b""
        self.unsent: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        """What TCP sends again once the cut is healed."""
        self.wires: list[tcpstore.Wire] = []
        self._words: dict[tuple[int, int], Round] = {}
        """By epoch and version: what the store has not accepted yet."""
        self.process = Process(node, node.skew_s)
        self.inbox = Heard(self)
        self.driver = self._as_node(
            Driver, node.ident, node.ident, SPEC, self._open, self.inbox, world.job.beat_s, world.job.lease_s
        )
        self._taken_at = 0.0
        self._loses = ""
        self._loses_until = 0.0
        self._heard_at = world.now
        self._silent_s = 0.0

    def _as_node(self, act: Callable[..., Any], *args: object) -> Any:
        Process.running = self.process
        return act(*args)

    def _open(self, cancelled: Any, join: Join) -> Store:
        return self.face.open(self, cancelled, join)

    @property
    def away_since(self) -> float | None:
        """When the store went away, as the agent knows it."""
        return self.absences[0] if self.absences else None

    @property
    def up(self) -> bool:
        return self.face.answers and not self.up_cut and not self.down_cut and self.away_since is None

    def open(self, deadline: float) -> None:
        self._as_node(self.driver.open)

    def publish(self, record: NodeRecord) -> None:
        if record.state is NodeState.ENDED:
            self._last_word = codec.encode_node(record)
        self._as_node(self.driver.publish, record)

    def announce(self, word: Round) -> None:
        if self.world.elects:
            self._words[word.epoch, word.version] = word
        self._as_node(self.driver.announce, word)

    def accepted(self, version: int, epoch: int) -> None:
        """The store, which elects, has taken this announcement of ours."""
        if self.node.seat is not None:
            self.node.seat.accepted(self._words.pop((epoch, version)))

    def read_beats(self, nodes: tuple[str, ...]) -> None:
        self._as_node(self.driver.read_beats, nodes)

    def retire(self) -> None:
        self._as_node(self.driver.retire)

    def resign(self) -> None:
        """In production this call is waited for; what it does is the same."""
        self.process.start(self.driver.resign, ())

    def close(self) -> None:
        self._as_node(self.driver.close)

    def die(self) -> None:
        self.process.die()

    def arrives(self, event: Any) -> None:
        """Into the agent's queue, which one loop empties for both machines."""
        self._taken_at = max(self._taken_at, self.world.now + self.world.delays.local())
        self.world.when(self._taken_at, self.node.deliver, self._take, event)

    def _take(self, event: Any) -> None:
        if isinstance(event, coordination.Event):
            if self.node.seat is not None:
                self.node.seat.take(event)
            return
        if isinstance(event, RoundSeen) and event.round.version < self.inbox.newest:
            self.world.reached.note("a word was overtaken by the next")
            return
        if isinstance(event, StoreCameBack):
            self.absences.popleft()
        if isinstance(event, RoundSeen):
            self.world.checkers.hearing.taken(self, event.round)
        self.node.post(event)

    def strange(self, what: str) -> None:
        self.world.reached.note("strange bytes were ignored")

    # -- trouble ------------------------------------------------------------------------------------------------------

    def cut(self, up: bool, down: bool) -> None:
        self.up_cut, self.down_cut = up, down

    def heal(self) -> None:
        self.up_cut = self.down_cut = False
        unsent, self.unsent = self.unsent, []
        for act, args in unsent:
            self.world.at(0.0, act, *args)  # in its order, and before all that is sent from now on

    def lose(self, what: str, lasts_s: float) -> None:
        """For a while, half of the requests (or of their replies) get lost."""
        self._loses, self._loses_until = what, self.world.now + lasts_s

    def loses(self, what: str) -> bool:
        if self._loses != what or self.world.now >= self._loses_until or self.world.rng.random() < 0.5:
            return False
        self.world.checkers.last_fault = self.world.now
        self.world.reached.note(f"a {what} was lost")
        return True

    def answered(self, wrote: bytes) -> None:
        """A call of the writer's came back. `wrote`: its record; empty for a heartbeat."""
        if self.absences and self.back_at is None:
            self.back_at = self.world.now
        if wrote and wrote == self._last_word and not self.node.state.leading:
            self.said_last_at = self.world.now

    def reset(self) -> None:
        """The server is no more."""
        for wire in self.wires:
            wire.reset_later()
        self.wires.clear()

    # -- heartbeats ---------------------------------------------------------------------------------------------------

    def heard(self) -> None:
        """A new heartbeat has reached the store."""
        self._heard_at = self.world.now

    def looked_at(self) -> None:
        """The coordinator's reading is at the store."""
        self._silent_s = self.world.now - self._heard_at

    def excused(self, stood_s: float) -> None:
        """The store stood still for so long: no silence of this node's, but for the time between two heartbeats."""
        self._heard_at = min(self.world.now, self._heard_at + max(0.0, stood_s - self.world.job.beat_s))

    def silent_s(self) -> float:
        """For how long the store had not heard from it, of its own fault, at the coordinator's last reading."""
        return self._silent_s

    def settle_beats(self) -> None:
        """They are sent by the driver itself."""

    def pump(self) -> None:
        """As above."""

    def look(self) -> None:
        """As above."""
