"""A host of the store and its coordinator, as a model: who is lost, and when a round ends and the next begins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from elastic_agent.rendezvous.coordinator.fencing import OUTVOTED, REACHED, holds_until
from elastic_agent.rendezvous.election.electorate import Electorate, of_round
from elastic_agent.rendezvous.election.events import Position
from elastic_agent.rendezvous.records import OUTVOTING_BEATS

if TYPE_CHECKING:
    from .cluster import Cluster, Node

LEASE_S = 5.0
LOOKS_S = 0.25


@dataclass(frozen=True)
class Content:
    """An announcement."""

    number: int
    running: bool
    members: tuple[str, ...]
    electorate: Electorate


class Host:
    """Runs on one node until that dies."""

    def __init__(self, cluster: Cluster, node: Node, epoch: int, version: int, content: Content | None) -> None:
        self.cluster, self.node, self.epoch, self.version = cluster, node, epoch, version
        self.content = content
        self.position: Position = node.voter.newest
        """Of the newest announcement in its store."""
        self.known: dict[str, tuple[float, int]] = {}
        """By node: when it was heard last, and up to which round its workers are gone."""
        self._taken_over = content is None
        self._began_at = cluster.now
        for member in content.members if content is not None else ():
            if member not in (node.ident, *self._without()):
                self.known[member] = (cluster.now, 0)
        self._heard: set[str] = set()
        self._heard_since: set[str] = set()
        """Since it last looked."""
        self._has_read: dict[str, int] = {}
        """By node: the last round that it has read of."""
        self.previous: tuple[str, ...] = content.electorate.before if content is not None else ()
        """As `coordinator.state.Placement.previous`."""
        self._dead = self._died = node.voter.dead
        self.workers_until = float("inf")
        """As `coordinator.fencing.host_until`."""
        self.elected_at = cluster.elected_at.get(epoch, 0.0)
        self._ends = False
        self._looked_at = cluster.now
        self._reached_at: dict[str, float] = {}
        """By node: when it last looked before its last heartbeat but one arrived, which was acknowledged."""
        self._arrived_at: dict[str, float] = {}
        """The same of the last one."""
        self.began_at = self.previous_at = 0.0
        self.most = 99
        """Places in a round."""

    def heard(self, ident: str, stopped: int, has_read: int) -> None:
        """A heartbeat."""
        self._has_read[ident] = has_read
        if ident != self.node.ident:
            self._heard.add(ident)
            self._heard_since.add(ident)
            self.known[ident] = (self.cluster.now, stopped)

    def turn(self) -> None:
        """Decide, now and then."""
        if not self.node.alive or self.node.left:
            return
        self.cluster.at(LOOKS_S if self.cluster.now >= self.node.frozen_until else 0.5, self.turn)
        if self.cluster.now >= self.node.frozen_until:
            self._decide()
            self.workers_until = min(holds_until(group, LEASE_S) for group in self._groups())

    def fail(self) -> None:
        """A worker failed somewhere."""
        self._ends = True

    def _lost(self, ident: str) -> bool:
        return ident != self.node.ident and self.cluster.now - self.known[ident][0] > LEASE_S

    def _without(self) -> frozenset[str]:
        """For whom it does not wait as it takes over."""
        return self.node.voter.dead | self.node.voter.outvoted

    def _decide(self) -> None:
        content, now = self.content, self.cluster.now
        for node in self._heard_since:
            self._reached_at[node] = self._arrived_at.get(node, 0.0)
            self._arrived_at[node] = self._looked_at
        self._heard_since.clear()
        since = now - REACHED * LEASE_S
        self._died |= {node for node in self.node.voter.dead - self._dead if self._reached(node) >= since}
        self._dead = self.node.voter.dead
        self._looked_at = now
        if content is not None and not self._taken_over:
            waited = now - self._began_at > LEASE_S
            if not waited and set(content.members) - self._heard - {self.node.ident} - self._without():
                return
            self._taken_over = True
            self._announce(content)
            return
        here = [ident for ident in (self.node.ident, *self.known) if not self._lost(ident)]
        if content is None:
            if len(here) >= 2 and now - self._began_at > 1.0:
                self._begin(here)
        elif content.running:
            gone = any(member not in here for member in content.members)
            new = set(here) - set(content.members)
            room = len(content.members) < self.most
            if gone or self._ends or (new and room and self.cluster.rng.random() < 0.3):
                self._ends = False
                self._announce(replace(content, running=False))
        elif all(self._gone(each) for each in content.members if each in here or each in self.node.voter.outvoted):
            self._begin(here)

    def _gone(self, member: str) -> bool:
        """Whether no worker of the last round runs there, nor will."""
        if member in self.node.voter.outvoted:
            return self.cluster.now >= self.node.voter.heard_at + OUTVOTED * LEASE_S
        stopped = self.node.stopped if member == self.node.ident else self.known[member][1]
        return self.content is not None and stopped >= self.content.number

    def _is_outvoted(self) -> bool:
        """As `coordinator.fencing.silent_majority`."""
        since = self.cluster.now - REACHED * LEASE_S
        silent = (2 * sum(at < since for at in group) > len(group) for group in self._groups())
        return self.cluster.outvotes and any(silent)

    def _groups(self) -> list[list[float]]:
        """As `coordinator.fencing._reached`."""
        if self.content is None:
            return [[], []]
        number = self.content.number
        unread = [node for node in self.previous if self._has_read.get(node, 0) < number]
        previous = [max(self._reached(node), self.previous_at - LEASE_S / OUTVOTING_BEATS) for node in unread]
        read = [float("inf")] * (len(self.previous) - len(previous))
        since = self.began_at - LEASE_S / OUTVOTING_BEATS
        return [[max(self._reached(node), since) for node in self.content.electorate.voters], [*previous, *read]]

    def _reached(self, node: str) -> float:
        at = max(self._reached_at.get(node, 0.0), self.elected_at)
        return float("inf") if node == self.node.ident or node in self._died else at

    def _begin(self, here: list[str]) -> None:
        if self._is_outvoted():
            self.cluster.reached["began no round without a majority"] += 1
            return
        self.cluster.check_is_alone(self.node)
        self.cluster.check_workers_ended(self.node)
        last = self.content.members if self.content is not None else ()
        order = [*(node for node in last if node in here), *(node for node in here if node not in last)]
        if self.cluster.rng.random() < 0.1:
            order.reverse()  # as ranks do that users ask for
        members = tuple(order[: self.most])
        before = self.content.electorate if self.content is not None else Electorate()
        number = (self.content.number if self.content is not None else 0) + 1
        if before.voters:
            self.previous, self.previous_at = before.voters, self.began_at
        self.began_at = self.cluster.now
        absent = {ident for ident in before.voters if ident not in here}
        if self.cluster.dies_beginning:
            self.cluster.dies_beginning = False
            self.cluster.at(self.cluster.rng.choice((0.0, 0.01, 0.03)), self.cluster.die, self.node.ident)
        self._announce(Content(number, True, members, of_round(members, before, absent)))

    def _announce(self, content: Content) -> None:
        cluster = self.cluster
        self.content, self.version = content, self.version + 1
        self.position = self.epoch, self.version
        cluster.contents[self.position] = content
        cluster.readers[self.position] = set()
        cluster.reached["announced"] += 1
        cluster.read(self.node, self.position, content)
        for ident in self.known:
            if cluster.rng.random() < 0.9:
                cluster.send(self.node.ident, ident, cluster.read, self.position, content)
