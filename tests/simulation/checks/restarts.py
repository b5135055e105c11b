"""What restarts cost and how soon they follow, compared with when each node received its failures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_agent.agent.exit_status import WORKER_FAILED
from elastic_agent.agent.lifecycle.state import Node

from .invariants import COUNTED, ENDED_ALONE, PACED

if TYPE_CHECKING:
    from ..world.node import SimNode
    from .checkers import Checkers

ROUNDING_S = 1e-6
"""Rounding errors of clocks far from 0."""


class Restarts:
    """When each agent took the failure by which a round failed on its node."""

    def __init__(self, truth: Checkers) -> None:
        self._truth = truth
        self._failed_at: dict[tuple[str, int], float] = {}

    def stepped(self, node: SimNode, before: Node, after: Node) -> None:
        if after is before:
            return
        if before.tally.failed_at is None and after.tally.failed_at is not None:
            self._failed_at[node.ident, after.round] = self._truth.world.now
        if (
            before.paused_until is not None
            and after.paused_until is None
            and after.restarts_used == before.restarts_used
        ):
            early = node.clock() < before.paused_until and after.verdict is None
            self._truth.world.reached.note("a pause was cut short" if early else "a pause was over")
        verdict = after.verdict
        if before.verdict is None and verdict is not None and verdict.outcome is None:
            alone = verdict.exit_code == WORKER_FAILED
            self._truth.need(not alone or node.ident in self._truth.ever_lost, ENDED_ALONE, f"{node.ident} ends")

    def _counted(self, charges: list[float], at: float) -> list[float]:
        window_s = self._truth.world.job.restarts.window_s
        return [each for each in charges if not window_s or at - each < window_s]

    def spent(self, ident: str, number: int) -> bool:
        """Whether a node had no restart left for its failure in this round, the last that was settled."""
        earlier = self._truth.announcements.charges(ident, number)
        charges = [self._failed_at[ident, each] for each in earlier if (ident, each) in self._failed_at]
        at = self._failed_at.get((ident, number), self._truth.world.now) - ROUNDING_S
        return len(self._counted(charges, at)) >= self._truth.world.job.restarts.max_restarts

    def starts(self, node: SimNode, number: int) -> None:
        """A node starts its workers: it had a restart left, and has paused."""
        charged = self._truth.announcements.charges(node.ident, number)
        failed_at = [self._failed_at[node.ident, each] for each in charged if (node.ident, each) in self._failed_at]
        if not failed_at:
            return
        rules, need = self._truth.world.job.restarts, self._truth.need
        last, earlier = failed_at[-1], failed_at[:-1]
        counted = self._counted(earlier, last + ROUNDING_S)
        spent = f"{node.ident} was charged {counted} and then {last} of {rules.max_restarts}"
        need(len(counted) < rules.max_restarts, COUNTED, spent)
        if len(counted) < len(earlier):
            self._truth.world.reached.note("an old charge was forgiven")
        if charged[-1] == number - 1 and earlier and last - earlier[-1] < rules.pause_max_s - ROUNDING_S:
            waited_s = self._truth.world.now - last
            but = f"{node.ident} starts round {number} {waited_s:.3f} s after its second failure in a row"
            need(waited_s >= rules.pause_min_s - ROUNDING_S, PACED, but)
