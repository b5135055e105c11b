"""A store without drivers, and the links to it: slow, cut one way or both, frozen and ended with its host."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from elastic_agent.rendezvous.coordinator.events import Announce, BeatsSeen, NodeSeen, ReadBeats, StoreEffect
from elastic_agent.rendezvous.driver.events import (
    OthersEnded,
    RecordWritten,
    RoundSeen,
    StoreCameBack,
    StoreFailed,
    StoreOpened,
    StoreWentAway,
)
from elastic_agent.rendezvous.records import NodeRecord, Round
from elastic_agent.rendezvous.store import StoreUnreachable

if TYPE_CHECKING:
    from ..world.node import SimNode
    from ..world.world import World

OP_DEADLINE_S = 5.0
"""As the driver's: after this long without an answer to a call, the store went away."""


class DirectStore:
    """What the host serves: current records, the newest announcement, heartbeat counters."""

    spoiled = False
    """No other client writes to it, and no other store is served in its place."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.served = False
        self.gone = False
        self.frozen = False
        self._frozen_at = 0.0
        self.records: dict[str, NodeRecord] = {}
        self.latest: Round | None = None
        self.backlog: list[tuple[Callable[..., None], tuple[object, ...]]] = []

    @property
    def answers(self) -> bool:
        return self.served and not self.gone and not self.frozen

    def receive(self, link: DirectLink, record: NodeRecord) -> None:
        """A record arrives, perhaps again; the coordinator reads the one that is current by then."""
        if self.gone or link.up_cut:
            return
        if self.frozen:
            self.backlog.append((self.receive, (link, record)))
            return
        held = self.records.get(record.node)
        if held is None or record.seq >= held.seq:
            self.records[record.node] = record
        self.world.at(self.world.delays.local(), self._notice, record.node)
        self.world.at(self.world.delays.network(), link.acknowledged, record)

    def _notice(self, node: str) -> None:
        self.world.coordinate(NodeSeen(self.records[node]))

    def announce(self, announcement: Round) -> None:
        if self.gone or (self.latest is not None and announcement.version < self.latest.version):
            return  # versions have keys of their own, and readers take the newest
        self.latest = announcement
        for node in self.world.nodes.values():
            if node.link.opened:
                self.world.at(self.world.delays.network(), node.link.look)

    def counts(self, nodes: tuple[str, ...]) -> dict[str, int]:
        """A reading of the heartbeat counters."""
        links = [(name, link) for name in nodes if isinstance(link := self.world.nodes[name].link, DirectLink)]
        for _, link in links:
            link.beats_read()
        return {name: count for name, link in links if (count := link.beats()) > 0}

    def freeze(self) -> None:
        self._each_link(DirectLink.settle_beats)
        self.frozen = True
        self._frozen_at = self.world.now
        self._each_link(DirectLink.broke)

    def thaw(self) -> None:
        self.frozen = False
        self._each_link(lambda link: link.excused(self.world.now - self._frozen_at))
        backlog, self.backlog = self.backlog, []
        for act, args in backlog:
            act(*args)
        self._each_link(DirectLink.settle_beats)
        self._each_link(DirectLink.mended)
        self.world.at(0.0, self.world.host.link.look)

    def stall(self, lasts_s: float) -> None:
        """Its host is frozen for `lasts_s` seconds."""
        if not self.world.host.done and not self.world.host.frozen:
            self.world.host.freeze()
            self.world.at(lasts_s, self._goes_on)

    def _goes_on(self) -> None:
        self.world.checkers.last_fault = self.world.now
        self.world.host.thaw()

    def end(self) -> None:
        """The host has ended, and the store with it."""
        self._each_link(DirectLink.settle_beats)
        self.gone = True
        self._each_link(DirectLink.broke)

    def _each_link(self, act: Callable[[DirectLink], None]) -> None:
        for node in self.world.nodes.values():
            if isinstance(node.link, DirectLink) and not node.host:
                act(node.link)


class DirectLink:
    """One node's connection. Records go out one at a time; one that was not acknowledged is sent again."""

    def __init__(self, world: World, node: SimNode) -> None:
        self.world = world
        self.node = node
        if not isinstance(world.store, DirectStore):
            raise TypeError(f"{world.store} is no DirectStore")
        self.store = world.store
        self.opened = False
        self.up_cut = False
        self.down_cut = False
        self.silent: set[str] = set()
        """Not empty: it receives no rounds, while all else arrives."""
        self.silent_since = 0.0
        self.away = False
        self.away_since: float | None = None
        """When the agent took the event that the store is away, from which store_grace counts."""
        self.back_at: float | None = None
        """Always None: the agent takes the event that the store is back at once."""
        self.last_record_written_at: float | None = None
        """Always None: no driver writes its last record."""
        self.cuts = 0
        self.outbox: deque[NodeRecord] = deque()
        self.sending = False
        self.version = 0
        self._announced_at = 0.0
        self._beats = 0
        self._beats_since = 0.0
        self._beating = False
        self._mute_since: float | None = None
        """Since when no heartbeat of this node can arrive, by its own fault."""
        self._silent_s = 0.0

    @property
    def up(self) -> bool:
        return self.store.answers and not self.up_cut and not self.down_cut

    # -- opening ---------------------------------------------------------------------------------------------------

    def open(self, deadline: float) -> None:
        if self.node.done or self.opened:
            return
        if self.node.frozen:
            self.node.deliver(self.open, deadline)
            return
        if self.node.host:
            self.store.served = True
        if self.up:
            self.opened = True
            self.settle_beats()
            self.node.post_later(StoreOpened(self.node.host, f"{self.node.ident}.example"))
            self.world.at(self.world.delays.network(), self.look)
        elif self.world.now >= deadline:
            self.node.post_later(StoreFailed(StoreUnreachable("nobody serves the store")))
        else:
            self.world.at(0.5, self.open, deadline)

    # -- records ---------------------------------------------------------------------------------------------------

    def publish(self, record: NodeRecord) -> None:
        self.outbox.append(record)
        self.pump()

    def pump(self) -> None:
        if self.sending or not self.outbox or self.node.done or self.node.frozen:
            return
        self.sending = True
        self.world.at(self.world.delays.network(), self.store.receive, self, self.outbox[0])

    def acknowledged(self, record: NodeRecord) -> None:
        if self.down_cut or self.node.done:
            return
        self.node.turn(self._written, record)

    def _written(self, record: NodeRecord) -> None:
        if self.outbox and self.outbox[0] is record:
            self.outbox.popleft()
            self.sending = False
            self.node.post(RecordWritten(record.seq))
            self.pump()

    # -- rounds ----------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Takes the newest announcement if it is newer than the last one taken."""
        newest = self.store.latest
        if newest is None or newest.version <= self.version:
            return
        if not self.opened or self.down_cut or self.silent or self.node.done or not self.store.answers:
            return
        self.version = newest.version
        self.node.turn(self.node.post, RoundSeen(newest))

    # -- faults ----------------------------------------------------------------------------------------------------

    def cut(self, up: bool, down: bool) -> None:
        self.settle_beats()
        self.up_cut, self.down_cut = up, down
        self.settle_beats()
        self.broke()

    def heal(self) -> None:
        self.up_cut = self.down_cut = False
        self.settle_beats()
        self.mended()

    def broke(self) -> None:
        self.cuts += 1
        if self.opened:
            self.world.at(OP_DEADLINE_S, self._went_away, self.cuts)

    def _went_away(self, cut: int) -> None:
        if cut == self.cuts and not self.up and not self.away and not self.node.done:
            self.away = True
            self.away_since = self.world.now
            self.node.post_later(StoreWentAway("no answer within 5 s"))

    def mended(self) -> None:
        if not self.up:
            return
        self.cuts += 1
        self.sending = False
        self.pump()
        self.world.at(self.world.delays.network(), self.look)
        if self.away:
            self.away, self.away_since = False, None
            self.node.post_later(StoreCameBack())

    def carry_out(self, effect: StoreEffect) -> None:
        """As the coordinator; announcements arrive in their order."""
        if isinstance(effect, Announce):
            self._announced_at = max(self._announced_at, self.world.now + self.world.delays.local())
            self.world.at(self._announced_at - self.world.now, self.store.announce, effect.round)
        elif isinstance(effect, ReadBeats):
            self.world.at(self.world.delays.local(), self._count, effect.nodes)
        else:
            self.node.post_later(OthersEnded())

    def _count(self, nodes: tuple[str, ...]) -> None:
        counts = self.store.counts(nodes)
        self.world.at(self.world.delays.local(), self.world.coordinate, BeatsSeen(counts))

    def resign(self) -> None:
        """Nothing: no other node could coordinate."""

    def close(self) -> None:
        """Nothing: there is no connection to close."""

    def die(self) -> None:
        """Nothing: there are no threads to end."""

    def silence(self, role: str, *, broken: bool) -> None:
        """It receives no rounds any more."""
        self.silent.add(role)
        self.silent_since = self.world.now

    def speak(self) -> None:
        """It receives them again."""
        self.silent.clear()
        self.world.at(self.world.delays.network(), self.look)

    def lose(self, what: str, lasts_s: float) -> None:
        """Cuts the link for a quarter of `lasts_s`: without drivers, a lost message is sent again at once."""
        if not self.node.host:
            self.cut(up=what == "request", down=what == "reply")
            self.world.at(lasts_s / 4, self.heal)

    # -- heartbeats: counted by arithmetic, not by an event each ------------------------------------------------------

    beats_again_at = 0.0
    """As of the other link."""

    def beats(self) -> int:
        grown = int((self.world.now - self._beats_since) / self.world.job.beat_s) if self._beating else 0
        return self._beats + grown

    def beat_arrived(self) -> None:
        """Nothing: heartbeats are counted by arithmetic."""

    def beats_on(self) -> bool:
        """A heartbeat of this node has arrived within a lease."""
        return self._beating

    def settle_beats(self) -> None:
        """Call after anything that may start or stop the heartbeat; also before it, where the store is frozen."""
        node = self.node
        beating = self.opened and not node.frozen and not node.done and not self.up_cut and self.store.answers
        if beating is not self._beating:
            self._beats = self.beats() + beating
            self._beats_since = self.world.now
            self._beating = beating
        mute = node.frozen or node.done or self.up_cut
        if mute and self._mute_since is None:
            self._mute_since = self.world.now
        elif beating:
            self._mute_since = None

    def excused(self, frozen_s: float) -> None:
        """The store was frozen for so long: no silence of this node, but for the time between two heartbeats."""
        if self._mute_since is not None:
            both_s = min(frozen_s, self.world.now - self._mute_since)
            self._mute_since += max(0.0, both_s - self.world.job.beat_s)

    def beats_read(self) -> None:
        """The coordinator's reading of the heartbeats is at the store."""
        self._silent_s = 0.0 if self._mute_since is None else self.world.now - self._mute_since

    def silent_s(self) -> float:
        """For how long it had been silent, by its own fault, at the coordinator's last reading."""
        return self._silent_s
