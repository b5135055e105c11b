"""What nodes receive of the coordinator's announcements, compared with what was announced, and when."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from elastic_agent.agent.lifecycle.state import Node
from elastic_agent.proto.frozen import replace
from elastic_agent.rendezvous.records import Round

from .invariants import ANNOUNCED, ENDS_PROMPTLY, FORWARD, NEWEST, OVERTAKEN

if TYPE_CHECKING:
    from ..stores.driver_link import DriverLink
    from ..world.node import SimNode
    from .checkers import Checkers

READ_S = 12.0
"""After an announcement, until no node receives the one before any more: calls that break, and one that is answered."""
QUEUED_S = 1.0
"""What a thread of the driver puts into the agent's queue is taken sooner."""
REPEATED = 4
"""Exchanges with the store in which the writer writes a record that a heartbeat has just written, over late bytes."""


class Announcements:
    """What the coordinator announced, and which node received what of it."""

    def __init__(self, truth: Checkers) -> None:
        self._truth = truth
        self.by_version: dict[int, Round] = {}
        """What the coordinator announced, by version."""
        self._cleared: set[Round] = set()
        """What it announced before the job's keys were removed, where the version was used again since. A node that was
        frozen meanwhile may hold it."""
        self._equal: dict[int, tuple[Round, Round]] = {}
        """By version: what was announced, and a round that was compared with it and equals it."""
        self._totals: _Totals | None = None
        """Of the announcement that a node received last."""
        self._announced_at: dict[int, float] = {}
        self._informed: set[tuple[str, int]] = set()
        """Node and round: the node has received how that round ended, after this was settled."""
        self._missed: set[tuple[str, int]] = set()
        """Node and round: the node can no longer receive that, as a later round has ended."""

    def announced(self, announcement: Round) -> None:
        version = announcement.version
        follows = self._truth.cleared or len(self.by_version) + 1 == version
        self._truth.need(follows, ANNOUNCED, f"version {version} follows {len(self.by_version)}")
        if self._truth.cleared and version in self.by_version:
            self._cleared.add(self.by_version[version])
        self.by_version[version] = announcement
        self._announced_at[version] = self._truth.world.now
        if self._truth.cleared:  # versions may begin anew: later ones are of an earlier count
            self._announced_at = {each: at for each, at in self._announced_at.items() if each <= version}

    def known(self, announcement: Round) -> bool:
        """Whether the coordinator announced this."""
        version = announcement.version
        held = self.by_version.get(version)
        announced, equal = self._equal.get(version, (None, None))
        if held is not None and announced is held and equal is announcement:
            return True
        if held is None or not _shows(announcement, held, self._totals_of(held)):
            return self._of_cleared(announcement) is not None
        self._equal[version] = (held, announcement)
        return True

    def _totals_of(self, announced: Round) -> _Totals:
        if self._totals is None or self._totals.announced is not announced:
            self._totals = _Totals(announced)
        return self._totals

    def whole(self, announcement: Round) -> Round:
        """The announcement with all members, as the coordinator announced it."""
        if announcement.crowd is None:
            return announcement
        return self._of_cleared(announcement) or self.by_version[announcement.version]

    def _of_cleared(self, announcement: Round) -> Round | None:
        """What was announced so before the job's keys were removed, where the version was used again since."""
        return next((each for each in self._cleared if _shows(announcement, each)), None)

    def received(self, node: SimNode, before: Node, newest: Round) -> None:
        """The agent takes an announcement."""
        need, version = self._truth.need, newest.version
        known = self.known(newest)
        if known and newest.crowd is not None:
            self._truth.world.reached.note("a node read its place from a page")
            known = newest.member(node.ident) == self.whole(newest).member(node.ident)
        need(known, ANNOUNCED, lambda: f"{node.ident} received {newest}")
        held = before.latest_round.version if before.latest_round is not None else 0
        need(version > held, FORWARD, lambda: f"{node.ident} went from version {held} to {version}")
        next_at, fault_at = self._announced_at.get(version + 1, float("inf")), self._truth.last_fault
        late_s = self._truth.world.now - max(next_at, fault_at)
        world = self._truth.world
        if fault_at <= node.joined_at:  # the node's own start is no excuse, but a server that stood still before is
            served_at = next_at if world.elects else max(next_at, world.host.thawed_at)
            late_s = max(late_s, node.joined_at - served_at)
        # Else what the host announces never gets to the store, or somebody has written over it there.
        reaches = (world.elects or world.host.attends) and not world.store.spoiled
        if late_s > READ_S and reaches:
            need(False, NEWEST, f"{node.ident} received version {version} {late_s:.1f} s after the next")

        if newest.ended is not None and newest.number > newest.ended.round:
            ended = newest.ended.round
            self._informed.add((node.ident, ended))
            earlier = {(node.ident, number) for number in self._truth.endings if number < ended}
            self._missed |= earlier - self._informed

    def announced_at(self, version: int) -> float | None:
        """When this version was announced; None: not yet."""
        return self._announced_at.get(version)

    def served_anew(self) -> None:
        """The store is an empty one from now on, in which nothing was announced."""
        self._announced_at.clear()

    def charges(self, ident: str, before: int) -> list[int]:
        """The rounds before this one that were charged to a node, without those of which it never received the end."""
        charged = (e.round for e in self._truth.endings.values() if e.charged == ident and e.round < before)
        return sorted(number for number in charged if (ident, number) not in self._missed)

    def taken(self, link: DriverLink, version: int) -> None:
        """The agent takes an announcement from its queue; a newer one may have entered the queue since."""
        newest = link.newest
        self._truth.need(
            version >= newest, OVERTAKEN, lambda: f"{link.node.ident} takes {version}, {newest} had arrived"
        )

    def concluded(self, node: SimNode) -> None:
        """An agent ends: without delay, unless it serves the store or clears it up."""
        written_at = node.link.last_record_written_at
        if written_at is None or node.host or node.state.leading:
            return
        world = self._truth.world
        lingered_s = world.now - max(written_at, self._truth.last_fault)
        most_s = QUEUED_S + REPEATED * 2 * world.delays.network_s
        self._truth.need(
            lingered_s <= most_s, ENDS_PROMPTLY, f"{node.ident} ends {lingered_s:.1f} s after its last record"
        )


class _Totals:
    """What all members of an announcement come to: counted once, not for each of a thousand nodes that read it."""

    def __init__(self, announced: Round) -> None:
        self.announced = announced
        self.members = frozenset(announced.members)
        self.workers = announced.world_size
        self.of_role = Counter[str]()
        for member in announced.members:
            self.of_role[member.role] += member.nproc


def _shows(received: Round, announced: Round, totals: _Totals | None = None) -> bool:
    """Whether a node received what was announced; of a large round, with the members of one page."""
    crowd = received.crowd
    if crowd is None:
        return received == announced
    totals = totals or _Totals(announced)
    counted = (crowd.nodes, crowd.workers) == (len(announced.members), totals.workers)
    roles = all(totals.of_role[role] == workers for role, workers in crowd.roles)
    rest = replace(announced, members=received.members, crowd=crowd)
    return counted and roles and totals.members.issuperset(received.members) and rest == received
