"""What must happen in time, once faults have stopped for a while. Bounds in seconds of the simulated clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from elastic_agent.agent.lifecycle.state import Phase, Verdict
from elastic_agent.agent.lifecycle.stop_ladder import GIVE_UP_S
from elastic_agent.agent.lifecycle.transitions import LAST_RECORD_S
from elastic_agent.rendezvous.agreements import STOPS
from elastic_agent.rendezvous.coordinator.deadlines import REPORT_MARGIN_S
from elastic_agent.rendezvous.coordinator.state import CLOSED, DEFAULT_SETTLE_S, OVER, RUNNING, Rendezvous
from elastic_agent.rendezvous.records import NodeState

from .invariants import (
    ANSWERED,
    BARRED,
    BEGUN,
    DEPARTED,
    GIVEN_UP,
    IMPATIENT,
    INFORMED,
    LED,
    OBEYED,
    PROMOTED,
    PROMPT,
    RESIGNED,
    STOPPED,
    VOUCHED,
)

if TYPE_CHECKING:
    from ..stores.driver_link import DriverLink
    from ..world.node import SimNode
    from .checkers import Checkers

SLACK_S = 12.0
"""Messages that are under way, a call that has to break first, a heartbeat or two."""

RESIGNS_S = 3.5
"""From when its writer knows that a coordinator does not do its part until its term is over: the next heartbeat, and a
call or two. Less than a lease, which would end the term too."""

NEXT_LOOK_S = 2.0
"""Until the coordinator's next event, at most."""

OWN_LOOK_S = 6.0
"""Until the store has answered what the coordinator asked for since: after an announcement (five calls of up to 0.6 s)
and a reading (0.9 s) that are still under way, its own."""


AGREED_S = 3.0
"""Announcing a stage of an agreement meanwhile: five calls of up to 0.6 s."""

JOINING, WORKING, STOPPING = Phase.JOINING, Phase.WORKING, Phase.STOPPING


class Liveness:
    """Since when something could happen that has not happened yet."""

    def __init__(self, truth: Checkers) -> None:
        self._truth = truth
        self._job = truth.world.job
        self._enough: float | None = None
        self._room: float | None = None
        self._finishing: float | None = None
        self._unreported: float | None = None
        self._epoch = 0
        self._over: float | None = None
        self._closed_at: float | None = None
        self._stale: dict[str, float] = {}
        self._departed: dict[str, float] = {}
        self._stopping: dict[str, float] = {}
        self.held_s = 0.0
        """How long workers may first end by themselves, once one has asked for the end of the job."""

    @property
    def stopping_s(self) -> float:
        """How long it may take to give up on workers that nothing kills, and to write that."""
        return self.held_s + self._job.leftover_s + self._job.grace_s + GIVE_UP_S + LAST_RECORD_S

    @property
    def _fenced_s(self) -> float:
        """How long a round may wait for workers of nodes that are dead or cut off, from when that was found out; a
        successor finds it out anew."""
        return self._job.alone_s + 3 * self._job.lease_s if self._truth.world.fences else 0.0

    def look(self, after: Rendezvous) -> None:
        """After every event of the coordinator."""
        if after.epoch != self._epoch:  # a successor counts the barrier anew, from its election
            self._epoch, self._finishing = after.epoch, None
            if self._truth.world.fences:  # and, anew, which nodes are cut off, and since when
                self._enough = self._over = None
        self._finishing = self._since(self._finishing, after.finishing)
        if after.phase is CLOSED:
            self._enough = self._room = self._over = None
        elif after.phase is RUNNING:
            self._running(after)
        else:
            self._gathering(after)
        self._each_node(after)
        self._need(self._unreported, SLACK_S, BARRED, "the coordinator does not know that a node has finished")
        for name, since in self._stopping.items():
            self._need(since, self.stopping_s + NEXT_LOOK_S, STOPPED, f"{name} still stops its workers")
        if self._truth.asked:
            self._slow_to_stop()

    def _gathering(self, after: Rendezvous) -> None:
        self._room = None
        unanswered = after.phase is OVER and not any(seen.pauses for seen in after.nodes.values())
        self._over = self._since(self._over, unanswered)
        bound = self.held_s + self._job.grace_s + max(REPORT_MARGIN_S, self._job.lease_s) + self._job.lease_s + SLACK_S
        bound += self._fenced_s
        self._need(self._over, bound, ANSWERED, lambda: f"round {after.number} is over: {after.because}")
        self._enough = self._since(self._enough, not self._busy(after) and self._waiting(self._job.min_nodes))
        bound = 2 * self._job.lease_s + self._job.last_call_timeout_s + SLACK_S + self._fenced_s
        self._need(self._enough, bound, BEGUN, lambda: f"round {after.number} is {after.phase.value}: {after.because}")

    def _busy(self, after: Rendezvous) -> bool:
        """Workers run, or a node stands still whose workers may."""
        world = self._truth.world
        for node in world.nodes.values():
            if node.nursery.busy:
                return True
        # Only what it does not report shows that a node stands still, if no driver looks at its loop.
        return world.shared_store is None and not all(n.attends or n.done for n in world.nodes.values())

    def _running(self, after: Rendezvous) -> None:
        self._enough = self._over = None
        room = len(after.members) < self._job.max_nodes and not after.finishing
        self._room = self._since(self._room, room and self._waiting(1))
        # What is agreed on has two stages.
        bound = self._job.last_call_timeout_s + self._job.quiet_s + 2 * self._job.settle_s + SLACK_S
        self._need(self._room, bound, PROMOTED, lambda: f"round {after.number} has {len(after.members)} nodes")
        nodes = self._truth.world.nodes
        members = [nodes[member.node] for member in after.members]
        self._departed = self._still(self._departed, [n.ident for n in members if n.done and not n.state.finished])
        for name, since in self._departed.items():
            self._need(since, self._job.lease_s + SLACK_S, DEPARTED, f"round {after.number} runs without {name}")
        if self._truth.world.shared_store is not None:  # else no thread looks whether the loop turns
            for node in members:
                if node.stalled and node.link.opened:
                    stands_since = node.stalled_since + self._job.lease_s
                    self._need(stands_since, self._job.lease_s + SLACK_S, DEPARTED, f"{node.ident} stands still")
        self._need(self._finishing, self._barred_s(after), BARRED, lambda: f"round {after.number} still runs")

    def _barred_s(self, after: Rendezvous) -> float:
        """Workers that are to exit by an agreement get as long as that allows instead."""
        bound_s = self._job.exit_barrier_s + OWN_LOOK_S
        leader = self._truth.world.leader
        if self._truth.world.elects and leader is not None and leader.link.down_cut:
            # What it sends arrives, so it leads until it gives up on a store that does not answer it.
            bound_s += self._job.store_grace_s + self._job.lease_s
        if after.agreement is None:
            return bound_s
        settle_s = (self._job.settle_s or DEFAULT_SETTLE_S) if after.agreement.act in STOPS else 0.0
        return max(bound_s, settle_s + OWN_LOOK_S) + AGREED_S

    def _reports_finish(self, node: SimNode) -> bool:
        """It finished, its record says so, and it reaches the store. One that has ended stands for its run no more."""
        record = node.state.record
        if record is None or not record.finished or record.state is NodeState.ENDED:
            return False
        return self._truth.fit(node)

    def _waiting(self, least: int) -> bool:
        """At least so many nodes wait for a place."""
        fit = self._truth.fit
        for node in self._truth.world.nodes.values():
            if least > 0 and node.state.phase is JOINING and node.state.place.ready and fit(node):
                least -= 1
        return least <= 0

    def _slow_to_stop(self) -> None:
        for name, since in self._truth.asked.items():
            node = self._truth.world.nodes[name]
            if not (node.done or node.frozen or node.stalled or node.host):
                self._need(since, self._job.settle_s + self.stopping_s + SLACK_S, OBEYED, f"{name} is still here")

    def _each_node(self, after: Rendezvous) -> None:
        """Looks at each node once: whether it missed an announcement, stops its workers, or finished."""
        running = after.number if after.phase is RUNNING else 0
        known = after.finishing or after.phase is CLOSED
        unreported = False
        stale: dict[str, float] = {}
        busy: list[str] = []
        for node in self._truth.world.nodes.values():
            state = node.state
            phase = state.phase
            if phase is WORKING:
                if state.tally.round != running and self._truth.fit(node):
                    stale[node.ident] = since = self._stale.get(node.ident, self._truth.world.now)
                    self._need(since, SLACK_S, INFORMED, f"{node.ident} works on round {state.round}")
            elif phase is STOPPING:
                if not (node.done or node.frozen or node.stalled):
                    busy.append(node.ident)
            elif phase is JOINING and state.spare_until is not None and not node.host and self._truth.fit(node):
                self._need(state.spare_until - node.skew_s, SLACK_S, IMPATIENT, f"{node.ident} still waits")
            if not (known or unreported):
                unreported = self._reports_finish(node)
        self._stale = stale
        self._stopping = self._still(self._stopping, busy)
        self._unreported = self._since(self._unreported, unreported)

    # -- nodes that live but do not do their part ----------------------------------------------------------------------

    def vouched(self, node: SimNode, link: DriverLink) -> None:
        """A heartbeat of this node has reached the store."""
        since = node.stalled_since if node.stalled else None
        unread_at = self._truth.announcements.announced_at(link.newest + 1)
        if since is None and "watcher" in link.silent and unread_at is not None:
            since = max(link.silent_since, unread_at)
        self._need(since, self._job.lease_s + SLACK_S, VOUCHED, f"{node.ident} still sends heartbeats")

    def coordinates(self, node: SimNode, bound_s: float, term: int | None) -> None:
        """A coordinator that does not do its part has had `bound_s` to resign, or the other nodes to end; counted anew
        from each fault. `term`: the one in which that could be found out; None: it can be in any."""
        world = self._truth.world
        if node.attends or node.done or node.frozen:
            return
        if world.now < self._truth.last_fault + bound_s:
            world.when(self._truth.last_fault + bound_s, self.coordinates, node, bound_s, term)
            return
        away = world.elects and world.shared_store is not None and not world.shared_store.answers
        if away or node.link.up_cut or node.link.down_cut:  # each of its calls takes as long as it may
            world.at(bound_s, self.coordinates, node, bound_s, term)
            return
        if world.elects:
            leads = world.leader is node and term in (None, world.term)
            self._truth.need(not leads, RESIGNED, f"{node.ident} still coordinates")
            return
        still = [n.ident for n in world.nodes.values() if n is not node and n.link.opened and not (n.done or n.frozen)]
        self._truth.need(not still, LED, f"{still} are still there")

    def closed(self, after: Rendezvous) -> None:
        self._closed_at = self._truth.world.now
        self._need(self._finishing, self._barred_s(after), BARRED, "it closed only then")

    def concluded(self, node: SimNode, verdict: Verdict) -> None:
        if node.host:
            return
        if self._closed_at is not None and self._truth.fit(node):
            self._need(self._closed_at, self.stopping_s + SLACK_S, PROMPT, f"{node.ident} only ends now")
        if node.link.away_since is not None:
            bound = self._job.store_grace_s + self.stopping_s + SLACK_S
            self._need(node.link.away_since, bound, GIVEN_UP, f"{node.ident} only ends now: {verdict.because}")

    def _still(self, since: dict[str, float], now: list[str]) -> dict[str, float]:
        return {name: since.get(name, self._truth.world.now) for name in now} if now else {}

    def _since(self, since: float | None, holds: bool) -> float | None:
        if not holds:
            return None
        return self._truth.world.now if since is None else since

    def _need(self, since: float | None, bound_s: float, invariant: str, but: str | Callable[[], str]) -> None:
        if since is None:
            return
        waited_s = self._truth.world.now - max(since, self._truth.last_fault)
        if waited_s > bound_s:
            self._truth.need(False, invariant, f"after {waited_s:.1f} s {but if isinstance(but, str) else but()}")
