"""A node's link to a store by the drivers that run in production: their threads, their calls, their second attempts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from elastic_agent.agent.events import RoundSeen, StoreCameBack
from elastic_agent.agent.inbox import Inbox
from elastic_agent.rendezvous import c10d
from elastic_agent.rendezvous import events as coordination
from elastic_agent.rendezvous.driver import Driver
from elastic_agent.rendezvous.records import JobSpec, NodeRecord, Round
from elastic_agent.rendezvous.store import Store, StoreError, StoreFenced

from . import etcd, tcpstore, threads
from .pretend import Instead
from .threads import Process

if TYPE_CHECKING:
    from .node import SimNode
    from .world import World


SPEC = JobSpec("job", ("train.py",), 1, 64, "number")
"""The same for all nodes; refusals are tests/test_failover_contract.py's."""

Join = Callable[[Store], None]


class Mistake(AssertionError):
    """A thread of the driver died of what no store can be blamed for."""


class Face:
    """What all nodes of a world share of their store."""

    elects = False

    def __init__(self, world: World) -> None:
        self.world = world
        self._frozen_at = 0.0

    def links(self) -> Iterator[DrivenLink]:
        for node in self.world.nodes.values():
            if isinstance(node.link, DrivenLink):
                yield node.link

    def looked_at(self) -> None:
        """Heartbeats are being read."""
        for link in self.links():
            link.looked_at()

    @property
    def answers(self) -> bool:
        raise NotImplementedError

    def leader(self) -> SimNode | None:
        """Whom the store has elected."""
        raise NotImplementedError

    def open(self, link: DrivenLink, cancelled: Any, join: Join) -> Store:
        raise NotImplementedError

    def instead(self) -> list[Instead]:
        """What its drivers find instead of the world outside."""
        return threads.INSTEAD

    def stall(self, lasts_s: float) -> None:
        """Its host stands still for a while."""
        host = self.world.host
        if not host.done and not host.frozen:
            host.freeze()
            self.world.at(lasts_s, self._goes_on)

    def _goes_on(self) -> None:
        self.world.checkers.last_fault = self.world.now
        self.world.host.thaw()

    def freeze(self) -> None:
        """The host stands still."""

    def thaw(self) -> None:
        """It goes on."""

    def end(self) -> None:
        """The host is gone."""


class C10dFace(Face):
    """TCPStore, served by the host's agent: it shares the host's fate."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.server: tcpstore.Server | None = None

    @property
    def answers(self) -> bool:
        return self.server is not None and not self.server.frozen and not self.server.gone

    def open(self, link: DrivenLink, cancelled: Any, join: Join) -> Store:
        timeout_s = self.world.job.connect_timeout_s
        return c10d.open_c10d(
            "host:29400", "job", is_host=link.node.host, connect_timeout_s=timeout_s, cancelled=cancelled, join=join
        )

    def instead(self) -> list[Instead]:
        return [
            *threads.INSTEAD,
            (c10d, "connect", self._connect),
            (c10d, "claim", lambda where, forced: SimpleNamespace(socket=where, why="")),
            (c10d, "serve", self._serve),
            (c10d, "resolve", lambda where: [("", (where.host, where.port))]),
        ]

    def _serve(self, bound: object, where: object, forced: bool) -> tcpstore.Serving:
        self.server = tcpstore.Server(self.world)
        return tcpstore.Serving(self.server)

    def _connect(self, address: object, name: str, timeout_s: float, call_timeout_s: float) -> tcpstore.Wire:
        link = Process.running.node.link
        if not isinstance(link, DrivenLink):
            raise TypeError(f"{link} has no wire")
        return tcpstore.connect(link, self.server, call_timeout_s)

    def freeze(self) -> None:
        if self.server is not None:
            self.server.frozen = True
            self._frozen_at = self.world.now

    def thaw(self) -> None:
        if self.server is not None:
            for link in self.links():
                link.excused(self.world.now - self._frozen_at)
            self.server.thaw()

    def end(self) -> None:
        if self.server is not None and not self.server.gone:
            self.server.close()
        for link in self.links():
            link.reset()


class EtcdFace(Face):
    """etcd, which nobody of the job serves: it elects the coordinator, and has troubles of its own."""

    elects = True

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.server = etcd.Server(world)

    @property
    def answers(self) -> bool:
        return not self.server.frozen

    def leader(self) -> SimNode | None:
        return self.world.nodes.get(self.server.leader)

    def open(self, link: DrivenLink, cancelled: Any, join: Join) -> Store:
        store = etcd.open_etcd(link, self.server, self.world.job.connect_timeout_s, cancelled)
        join(store)
        return store

    def stall(self, lasts_s: float) -> None:
        """The servers elect another leader, or the only one stands still."""
        if not self.server.frozen:
            elects = self.world.rng.random() < 0.5
            self.world.reached.note("etcd elected another leader" if elects else "etcd stood still")
            self.server.frozen = True
            self._frozen_at = self.world.now
            self.world.at(lasts_s, self._goes_on_again, elects)

    def _goes_on_again(self, elected: bool) -> None:
        for link in self.links():
            link.excused(self.world.now - self._frozen_at)
        self.server.thaw(renews=elected)
        self.world.checkers.last_fault = self.world.now


class Heard(Inbox):
    """The production inbox, and the truth about what it was told."""

    def __init__(self, link: DrivenLink) -> None:
        super().__init__(link.arrives, link.strange, lambda: f"{link.node.ident}.example")
        self._link = link

    def store_opened(self, hosting: bool) -> None:
        self._link.opened = True
        super().store_opened(hosting)

    def store_failed(self, error: StoreError) -> None:
        if "a mistake of ours" in str(error) or isinstance(error, StoreFenced):
            raise Mistake(f"{self._link.node.ident}: {error}") from error.__cause__
        super().store_failed(error)

    def store_went_away(self, reason: str) -> None:
        self._link.away_since = self._link.world.now
        super().store_went_away(reason)


class DrivenLink:
    """As `network.Link`, with nothing imagined above the wire."""

    def __init__(self, world: World, node: SimNode, face: Face) -> None:
        self.world = world
        self.node = node
        self.face = face
        self.opened = False
        self.up_cut = False
        self.down_cut = False
        self.away_since: float | None = None
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
    def up(self) -> bool:
        return self.face.answers and not self.up_cut and not self.down_cut and self.away_since is None

    def open(self, deadline: float) -> None:
        self._as_node(self.driver.open)

    def publish(self, record: NodeRecord) -> None:
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
            self.away_since = None
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


FACES = {"c10d": C10dFace, "etcd": EtcdFace}
