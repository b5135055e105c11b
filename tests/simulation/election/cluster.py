"""A job on a store that one of its nodes hosts, as far as elections need it: heartbeats, announcements, rounds.

The machine of the elections is the production one; hosts, stores and connections are models of a few lines each.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from elastic_agent.rendezvous.election import electorate, events, machine
from elastic_agent.rendezvous.election.state import Phase, Rules, Voter, has_given_up

from .hosting import LEASE_S, Content, Host

BEAT_S = 1.0
GRACE_S = 30.0
"""After so long without a store a node exits."""
SHOWS_S = 0.3
GOODBYE_S = 1.0
READS_AGAIN_S = 0.05
START_MOST_S = 3.0
"""The longest time from an election until the store is served."""


class Broken(AssertionError):
    """A promise was broken."""


@dataclass
class Node:
    """One agent."""

    ident: str
    voter: Voter
    alive: bool = True
    frozen_until: float = 0.0
    stopped: int = 0
    """All its workers up to this round are gone."""
    store_lost_at: float = 0.0
    unacknowledged: str = ""
    """The host that has not acknowledged the last heartbeat."""
    host: Host | None = None
    """While it serves."""
    left: bool = False
    """It said goodbye, and serves for a moment yet, to readers alone."""
    queue: list[Callable[[], None]] = field(default_factory=list)
    """What arrived while it was frozen."""


class Cluster:
    """One simulated job."""

    def __init__(self, seed: int, *, outvotes: bool = False) -> None:
        self.rng = random.Random(seed)
        self.outvotes = outvotes
        self.without_power: set[str] = set()
        """Nodes that no kernel says anything about any more."""
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self.nodes: dict[str, Node] = {}
        self.cut: set[tuple[str, str]] = set()
        self.readers: dict[events.Position, set[str]] = {}
        self.contents: dict[events.Position, Content] = {}
        self.served: dict[int, str] = {}
        """Who was elected for which epoch."""
        self.elected_at: dict[int, float] = {}
        self.reached: Counter[str] = Counter()
        self.gap_s: list[float] = []
        """From the death of a host to the next store that is served."""
        self.host_died_at: float | None = None
        self.reads_lost = False
        """No node reads an announcement that it missed."""
        self.dies_beginning = False
        """The host is killed as the next round begins."""
        self.dies_elected = 0
        """So many nodes are killed once they are elected."""

    # -- time and the network -------------------------------------------------------------------------------------

    def at(self, in_s: float, act: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self.now + in_s, self._count, act, args))

    def run(self, until: float) -> None:
        while self._heap and self._heap[0][0] <= until:
            self.now, _, act, args = heapq.heappop(self._heap)
            act(*args)
        self.now = until

    def delay(self) -> float:
        return self.rng.choice((0.001, 0.005, 0.02, 0.02, 0.1))

    def send(self, source: str, to: str, act: Callable[..., None], *args: Any) -> None:
        """Deliver it, unless the way is cut when it sets out."""
        if (source, to) not in self.cut or source == to:
            self.at(self.delay(), self.deliver, to, act, *args)

    def deliver(self, to: str, act: Callable[..., None], *args: Any) -> None:
        node = self.nodes[to]
        if not node.alive:
            return
        if self.now < node.frozen_until:
            node.queue.append(lambda: act(node, *args))
            return
        act(node, *args)

    # -- the life of a node -----------------------------------------------------------------------------------------

    def join(self, ident: str, host: str) -> Node:
        node = Node(ident, Voter(host, epoch=self._epoch_of(host)), store_lost_at=self.now)
        self.nodes[ident] = node
        self.at(0.0, self._beats, ident)
        return node

    def hosted(self, ident: str) -> Host:
        """What this node serves."""
        serving = self.nodes[ident].host
        assert serving is not None
        return serving

    def _epoch_of(self, host: str) -> int:
        return self.nodes[host].voter.epoch if host in self.nodes else 1

    def _beats(self, ident: str) -> None:
        node = self.nodes[ident]
        if not node.alive:
            return
        self.at(BEAT_S, self._beats, ident)
        if self.now < node.frozen_until:
            return
        if node.host is None and self.now - node.store_lost_at > GRACE_S:
            self.die(ident)
            self.reached["gave up"] += 1
            return
        self.beat(node)

    def beat(self, node: Node) -> None:
        voter = node.voter
        if has_given_up(voter):
            return
        if node.unacknowledged == voter.host and (voter.host, node.ident) in self.cut:
            return  # the call before has not returned, and no connection is made without answers
        node.unacknowledged = voter.host
        read = self.contents.get(voter.newest)
        report = (node.ident, node.stopped, read.number if read is not None else 0)
        self.send(node.ident, voter.host, self._beaten, voter.epoch, self.now, report)

    def _beaten(self, there: Node, epoch: int, sent_at: float, report: tuple[str, int, int]) -> None:
        host = there.host
        if host is None or host.epoch != epoch:
            return
        host.heard(*report)
        self.send(there.ident, report[0], self._acknowledged, epoch, sent_at, host.version)

    def _acknowledged(self, node: Node, epoch: int, sent_at: float, version: int) -> None:
        if node.voter.epoch != epoch or not (node.voter.phase is Phase.FOLLOWING or node.voter.silent):
            return
        node.store_lost_at, node.unacknowledged = self.now, ""
        self.step(node, events.HeartbeatAcknowledged(epoch, sent_at, version))
        if (epoch, version) > node.voter.newest and not self.reads_lost:
            self.send(node.ident, node.voter.host, self._asked_to_read, node.ident, epoch)

    def _asked_to_read(self, there: Node, reader: str, epoch: int) -> None:
        if there.host is not None and there.host.epoch == epoch and there.host.content is not None:
            self.send(there.ident, reader, self.read, there.host.position, there.host.content)

    def read(self, node: Node, position: events.Position, content: Content) -> None:
        if position <= node.voter.newest or position[0] > node.voter.epoch:
            return
        of = content.electorate
        self.step(node, events.AnnouncementRead(position, of.voters, of.before))
        if node.voter.newest != position:
            return
        self.readers[position].add(node.ident)
        if not content.running and node.stopped < content.number:
            self.at(self.rng.uniform(0.05, 1.0), self.deliver, node.ident, self._stops, content.number)

    def _stops(self, node: Node, number: int) -> None:
        node.stopped = max(node.stopped, number)
        self.beat(node)

    # -- faults -------------------------------------------------------------------------------------------------------

    def die(self, ident: str) -> None:
        """SIGKILL: its kernel resets the connections of its peers, who reach it then or later."""
        node = self.nodes[ident]
        if not node.alive:
            return
        node.alive = False
        if node.host is not None and not node.left:
            self.host_died_at = self.now
        for other in self.nodes:
            self.at(self.rng.uniform(0.0, 0.1), self._finds_dead, other, ident)

    def lose_power(self, ident: str) -> None:
        """As `die`, and nobody gets to know."""
        self.without_power.add(ident)
        self.die(ident)

    def _finds_dead(self, ident: str, dead: str) -> None:
        """Its connection to that node is gone, if it has one: to its host, and to each voter."""
        if dead in self.without_power:
            return
        node = self.nodes[ident]
        of = node.voter.electorate
        known = {node.voter.host, node.voter.promised[1], *of.voters, *of.before}
        if not node.alive or dead in node.voter.dead or dead not in known:
            return
        if self.now < node.frozen_until or {(ident, dead), (dead, ident)} & self.cut:
            self.at(0.5, self._finds_dead, ident, dead)
            return
        self.step(node, events.ProcessDied(dead))

    def leave(self, ident: str) -> None:
        """The host announces no more, and says so to all."""
        node = self.nodes[ident]
        if not node.alive or node.host is None or node.left or self.now < node.frozen_until:
            return
        self.reached["left"] += 1
        node.left, self.host_died_at = True, self.now
        for other in self.nodes:
            if other != ident:
                self.send(ident, other, self._bidden_goodbye, ident, node.host.position)
        self.at(GOODBYE_S, self.die, ident)

    def _bidden_goodbye(self, node: Node, host: str, newest: events.Position) -> None:
        if node.voter.newest >= newest:
            self.step(node, events.ProcessDied(host, left=True))
        elif self.nodes[host].alive:
            self.reached["read behind a goodbye"] += 1
            self.send(node.ident, host, self._asked_to_read, node.ident, newest[0])
            self.at(READS_AGAIN_S, self.deliver, node.ident, self._bidden_goodbye, host, newest)

    def freeze(self, ident: str, lasts_s: float) -> None:
        node = self.nodes[ident]
        node.frozen_until = max(node.frozen_until, self.now + lasts_s)
        self.at(lasts_s, self._thaws, ident)

    def _thaws(self, ident: str) -> None:
        node = self.nodes[ident]
        if node.alive and self.now >= node.frozen_until:
            queue, node.queue = node.queue, []
            for act in queue:
                if node.alive:
                    act()

    # -- elections ----------------------------------------------------------------------------------------------------

    def step(self, node: Node, event: events.Event) -> None:
        if node.left:
            return
        before = node.voter
        done = machine.step(before, event, self.now, Rules(node.ident, LEASE_S, outvotes=self.outvotes))
        if done.state.silent and not before.silent:
            self.reached["found the host silent"] += 1
        if before.silent and done.state.because.endswith("answers again"):
            self.reached["heard the host again"] += 1
        node.voter = done.state
        for effect in done.effects:
            self._carry_out(node, effect)
        for dead in {done.state.host, done.state.promised[1]} - {before.host, before.promised[1], ""}:
            if not self.nodes[dead].alive:
                self.at(self.delay(), self._finds_dead, node.ident, dead)

    def _carry_out(self, node: Node, effect: events.Effect) -> None:
        if isinstance(effect, events.WakeAt):
            self.at(effect.when - self.now, self.deliver, node.ident, self.step, events.DeadlineReached())
        elif isinstance(effect, events.Ask):
            self.reached["asked"] += 1
            for voter in effect.voters:
                self.send(node.ident, voter, self.step, events.VoteAsked(effect.ballot))
        elif isinstance(effect, events.Answer):
            ballot = effect.ballot
            self.reached["voted yes" if effect.yes else "voted no"] += 1
            said = effect.yes, effect.seen, effect.newest, effect.silent_s
            answer = events.VoteAnswered(node.ident, ballot.epoch, *said)
            self.send(node.ident, ballot.candidate, self.step, answer)
        elif isinstance(effect, events.Withdraw):
            self.reached["withdrew"] += 1
            for voter in effect.voters:
                self.send(node.ident, voter, self.step, events.Withdrawn(node.ident, effect.epoch))
        else:
            self._elected(node, effect.epoch)

    def _elected(self, node: Node, epoch: int) -> None:
        self.reached["elected"] += 1
        if epoch in self.served:
            raise Broken(f"{self.now:.2f}: {node.ident} and {self.served[epoch]} were elected for epoch {epoch}")
        self.served[epoch], self.elected_at[epoch] = node.ident, self.now
        for other in self.nodes.values():
            if other is node or not other.alive or other.left:
                continue
            if other.voter.phase is Phase.SERVING or other.host is not None:
                if not self.outvotes:
                    raise Broken(f"{self.now:.2f}: {node.ident} was elected, and {other.ident} hosts")
                self.reached["elected beside a host that lives"] += 1
        dead = {ident for ident, other in self.nodes.items() if not other.alive or other.left}
        for position, content in self.contents.items():
            of, host = content.electorate, self.served.get(position[0], "n0")
            known = self.readers[position] - dead - ({host} if self.outvotes else set())
            if position > node.voter.newest and of.voters and electorate.elects(of, known, dead, host):
                raise Broken(f"{self.now:.2f}: a majority had read {position}; {node.ident} only {node.voter.newest}")
        self.at(self.rng.uniform(0.02, START_MOST_S), self.deliver, node.ident, self._serves)
        if self.dies_elected:
            self.dies_elected -= 1
            self.at(self.rng.uniform(0.0, START_MOST_S + LEASE_S), self.die, node.ident)

    def check_is_alone(self, host: Node) -> None:
        """This node begins a round: no other one may have been elected since. Raises Broken."""
        epoch = host.voter.epoch
        if later := [node for newer, node in self.served.items() if newer > epoch and self.nodes[node].alive]:
            raise Broken(f"{self.now:.2f}: {host.ident} begins a round of epoch {epoch}, and {later} were elected")

    def check_workers_ended(self, host: Node) -> None:
        """This node begins a round: on no host that it has replaced may workers run. Raises Broken."""
        for ident in host.voter.outvoted:
            old = self.nodes[ident]
            served = old.host if old.alive else None
            runs = served is not None and served.content is not None and served.content.running
            if runs and served is not None and served.workers_until > self.now:
                raise Broken(f"{self.now:.2f}: {host.ident} begins a round, and workers of {ident} may run")
            self.reached["began a round beside a host that lived"] += old.alive

    def _serves(self, node: Node) -> None:
        voter = node.voter
        found = self.contents[voter.newest]
        node.host = Host(self, node, voter.epoch, voter.newest[1], found)
        node.host.most = max(len(found.members), 3)
        if self.host_died_at is not None:
            self.gap_s.append(self.now - self.host_died_at)
            self.host_died_at = None
        node.host.turn()
        self._shows(node.ident)

    def _shows(self, ident: str) -> None:
        """Others find the store: who promised knows where, and the rest asks them."""
        node = self.nodes[ident]
        if not node.alive:
            return
        self.at(SHOWS_S, self._shows, ident)
        if self.now < node.frozen_until:
            return
        for other in self.nodes.values():
            if other.voter.epoch < node.voter.epoch and (other.ident, ident) not in self.cut:
                self.send(ident, other.ident, self._finds, ident, node.voter.epoch)
                if other.host is not None and other.alive:
                    self.send(ident, other.ident, self._is_replaced)

    def _is_replaced(self, node: Node) -> None:
        """A host reads that another node hosts the job in a greater epoch, and ends."""
        self.reached["was replaced"] += 1
        self.die(node.ident)

    def _finds(self, node: Node, host: str, epoch: int) -> None:
        if epoch > node.voter.epoch and self.nodes[host].alive:
            self.step(node, events.HostFound(host, epoch))
            self.beat(node)
