"""Which nodes have a place in a round that begins, which place, and whether it may begin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_agent.agent.lifecycle.state import Phase
from elastic_agent.rendezvous.coordinator.state import Rendezvous
from elastic_agent.rendezvous.records import NodeState

from . import coverage
from .exits import gave_up
from .invariants import BOUNDED, DENSE, FENCED, FRESH, RETURNED, SIZED

if TYPE_CHECKING:
    from .checkers import Checkers


class Rounds:
    """The rounds that the coordinator began."""

    def __init__(self, truth: Checkers) -> None:
        self._truth = truth
        self._need = truth.need
        self._masters: set[tuple[str, int]] = set()
        self.newest = 0
        """The last round that began."""
        self.members: set[str] = set()
        """Nodes that have a place in it."""

    def begun(self, before: Rendezvous, after: Rendezvous) -> None:
        """The coordinator lets a round run."""
        self._returned(before, after)
        job, members = self._truth.world.job, after.members
        lost = {
            name for name, seen in after.nodes.items() if seen.lost
        }  # by the state that it announced, which is final
        # Even while it is on its way to a store that elects. Where fences keep rounds apart, a node that was lost
        # starts nothing that it read before that.
        behind = self._truth.ever_lost if self._truth.world.fences else set()
        for name in self.members - lost - behind:
            node = self._truth.world.nodes[name]
            unaware = not node.done and node.state.phase is Phase.JOINING and node.state.round < self.newest
            self._need(not unaware, FENCED, f"{name} may yet start round {self.newest}, {after.number} begins")
        self.newest = after.number
        self.members = {member.node for member in members}
        offset = 0
        for index, member in enumerate(members):
            right = member.group_rank == index and member.rank_offset == offset
            right = right and member.nproc == self._truth.world.nodes[member.node].nproc
            self._need(right, DENSE, lambda: f"round {after.number} has {members}")
            offset += member.nproc
        self._need(len({m.node for m in members}) == len(members), DENSE, lambda: f"a node is twice in {members}")
        self._need(job.min_nodes <= len(members) <= job.max_nodes, SIZED, f"round {after.number} has {len(members)}")
        for node in self._truth.world.nodes.values():
            if node.nursery.live and node.nursery.round < after.number and not gave_up(node.state.verdict):
                holds = node.ident in lost or node.done
                self._need(holds, FENCED, f"{node.ident} works on round {node.nursery.round}, {after.number} begins")
        self._mastered(after)
        coverage.begun(self._truth.world, after)
        bound = 2 + 2 * (self._truth.faults + self._truth.failures + len(self._truth.world.nodes))
        self._need(after.number <= bound, BOUNDED, f"round {after.number} began")

    def _mastered(self, after: Rendezvous) -> None:
        offered = after.nodes[after.members[0].node].record
        master = (after.placement.master_addr, after.placement.master_port)
        self._need(master == (offered.addr, offered.port), FRESH, f"round {after.number} has {master}")
        unaware = after.members[0].node in self._truth.ever_lost  # it may not have received that its port was used
        self._need(master not in self._masters or unaware, FRESH, f"round {after.number} has {master} again")
        self._masters.add(master)

    def _returned(self, before: Rendezvous, after: Rendezvous) -> None:
        placed = after.last_ranks()
        waited = (after.nodes[seen.record.node] for seen in before.ready())
        here = {seen.record.node for seen in waited if not seen.lost and seen.record.state is NodeState.WAITING}
        ready = here & before.last_ranks().keys()
        fresh = placed.keys() - before.last_ranks()
        self._need(
            not fresh or ready <= placed.keys(), RETURNED, f"{sorted(fresh)} have places, {sorted(ready)} waited"
        )
