"""A host of the store and its coordinator, as a model: who is lost, and when a round ends and the next begins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from elastic_agent.rendezvous.election.electorate import Electorate, of_round
from elastic_agent.rendezvous.election.events import Position

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
            if member != node.ident:
                self.known[member] = (cluster.now, 0)
        self._heard: set[str] = set()
        self._ends = False
        self.most = 99
        """Places in a round."""

    def heard(self, ident: str, stopped: int) -> None:
        """A heartbeat."""
        if ident != self.node.ident:
            self._heard.add(ident)
            self.known[ident] = (self.cluster.now, stopped)

    def turn(self) -> None:
        """Decide, now and then."""
        if not self.node.alive or self.node.left:
            return
        self.cluster.at(LOOKS_S if self.cluster.now >= self.node.frozen_until else 0.5, self.turn)
        if self.cluster.now >= self.node.frozen_until:
            self._decide()

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
        elif all(self._gone(member) for member in content.members if member in here):
            self._begin(here)

    def _gone(self, member: str) -> bool:
        """Whether no worker of the last round runs there, nor will."""
        stopped = self.node.stopped if member == self.node.ident else self.known[member][1]
        return self.content is not None and stopped >= self.content.number

    def _is_outvoted(self, here: list[str]) -> bool:
        """As `coordinator.fencing.silent_majority`."""
        voters = self.content.electorate.voters if self.content is not None else ()
        return self.cluster.survivor_goes and 2 * sum(node not in here for node in voters) > len(voters)

    def _begin(self, here: list[str]) -> None:
        if self._is_outvoted(here):
            self.cluster.reached["began no round without a majority"] += 1
            return
        self.cluster.check_is_alone(self.node)
        last = self.content.members if self.content is not None else ()
        order = [*(node for node in last if node in here), *(node for node in here if node not in last)]
        if self.cluster.rng.random() < 0.1:
            order.reverse()  # as ranks do that users ask for
        members = tuple(order[: self.most])
        before = self.content.electorate if self.content is not None else Electorate()
        number = (self.content.number if self.content is not None else 0) + 1
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
