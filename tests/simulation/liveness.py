"""What must happen in time, once faults have stopped for a while. Bounds in seconds of the simulated clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_agent.agent.ladder import GIVE_UP_S, LEFTOVER_S
from elastic_agent.agent.moves import LAST_WORD_S
from elastic_agent.agent.state import Phase, Verdict
from elastic_agent.rendezvous.records import Outcome, RoundPhase
from elastic_agent.rendezvous.state import Rendezvous

from .invariants import BARRED, BEGUN, GIVEN_UP, IMPATIENT, OBEYED, PROMOTED, PROMPT, TOLD

if TYPE_CHECKING:
    from .checkers import Checkers
    from .node import SimNode

SLACK_S = 12.0
"""Messages that are under way, a call that must break first, a heartbeat or two."""


class Liveness:
    """Since when something could happen that has not happened yet."""

    def __init__(self, truth: Checkers) -> None:
        self._truth = truth
        self._job = truth.world.job
        self._ripe: float | None = None
        self._room: float | None = None
        self._closed_at: float | None = None
        self._stale: dict[str, float] = {}
        self.stopping_s = LEFTOVER_S + self._job.grace_s + GIVE_UP_S + LAST_WORD_S
        """How long it may take to be rid of workers that nothing kills, and to say so."""

    def look(self, after: Rendezvous) -> None:
        """After every event of the coordinator."""
        running = after.phase is RoundPhase.RUNNING
        if after.phase is RoundPhase.CLOSED:
            self._ripe = self._room = None
        else:
            waiting = [n for n in self._truth.world.nodes.values() if _waits(n) and self._truth.fit(n)]
            self._ripe = self._since(self._ripe, not running and self._enough(waiting))
            room = running and len(after.members) < self._job.max_nodes and not after.finishing
            self._room = self._since(self._room, room and bool(waiting))
        if running and after.finishing and self._truth.first_finish is not None:
            bound = self._job.exit_barrier_s + self.stopping_s + SLACK_S
            self._need(self._truth.first_finish, bound, BARRED, f"round {after.number} still runs")
        bound = 2 * self._job.lease_s + self._job.last_call_timeout_s + SLACK_S
        self._need(self._ripe, bound, BEGUN, f"round {after.number} is {after.phase.value}: {after.because}")
        bound = self._job.last_call_timeout_s + self._job.quiet_s + SLACK_S
        self._need(self._room, bound, PROMOTED, f"round {after.number} has {len(after.members)} nodes")
        self._forgotten(after)
        if self._truth.asked:
            self._disobeyed()

    def _enough(self, waiting: list[SimNode]) -> bool:
        return len(waiting) >= self._job.min_nodes and not any(n.nursery.busy for n in self._truth.world.nodes.values())

    def _disobeyed(self) -> None:
        for name, since in self._truth.asked.items():
            node = self._truth.world.nodes[name]
            if not (node.done or node.frozen or node.host):
                self._need(since, self.stopping_s + SLACK_S, OBEYED, f"{name} is {node.state.phase.value}")

    def _forgotten(self, after: Rendezvous) -> None:
        for node in self._truth.world.nodes.values():
            if node.state.is_spare and not node.host and self._truth.fit(node):
                until = (node.state.spare_until or 0.0) - node.skew_s
                self._need(until, SLACK_S, IMPATIENT, f"{node.ident} still waits")
            if node.state.phase is not Phase.WORKING:
                if self._stale:
                    self._stale.pop(node.ident, None)
                continue
            current = after.phase is RoundPhase.RUNNING and node.state.round == after.number
            if current or not self._truth.fit(node):
                self._stale.pop(node.ident, None)
                continue
            since = self._stale.setdefault(node.ident, self._truth.world.now)
            self._need(since, SLACK_S, TOLD, f"{node.ident} works on round {node.state.round}")

    def closed(self, after: Rendezvous) -> None:
        now = self._truth.world.now
        self._closed_at = now
        first = self._truth.first_finish
        if after.outcome is Outcome.UNFINISHED and first is not None:
            bound = self._job.exit_barrier_s + self.stopping_s + SLACK_S
            self._need(first, bound, BARRED, f"it closed {now - first:.1f} s after the first finished")

    def concluded(self, node: SimNode, verdict: Verdict) -> None:
        if node.host:
            return
        if self._closed_at is not None and self._truth.fit(node):
            self._need(self._closed_at, self.stopping_s + SLACK_S, PROMPT, f"{node.ident} only ends now")
        if node.link.away_since is not None:
            bound = self._job.store_grace_s + self.stopping_s + SLACK_S
            self._need(node.link.away_since, bound, GIVEN_UP, f"{node.ident} only ends now: {verdict.because}")

    def _since(self, since: float | None, holds: bool) -> float | None:
        if not holds:
            return None
        return self._truth.world.now if since is None else since

    def _need(self, since: float | None, bound_s: float, invariant: str, but: str) -> None:
        if since is not None:
            waited = self._truth.world.now - max(since, self._truth.last_fault)
            self._truth.need(waited <= bound_s, invariant, f"after {waited:.1f} s {but}")


def _waits(node: SimNode) -> bool:
    return node.state.place_ready and node.state.phase is Phase.JOINING
