"""Faults that keep nodes apart: agents that do not reach each other, and hosts that stand still as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..world.node import SimNode
    from ..world.world import World
    from .faults import Fault
    from .scenario import Scenario


def suspend(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    """Its whole host stands still for a while, and does not notice."""
    node.suspend()
    world.fault_ends(fault.lasts_s, node.resume)


def cut_peers(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    """Agents reach each other no more, each way by itself: those of one node, or of some of the nodes, and the rest."""
    if world.shared_store is None:
        return
    world.reached.note("peers were cut")
    nodes = [each for each in world.nodes.values() if not each.done]
    most = 1 + int(fault.target * len(nodes)) if fault.variant > 0.5 else 1
    apart = [node, *(each for each in nodes if each is not node)][:most]
    ways = ("out", "in", "both")[int(fault.variant * 17) % 3]
    cuts = set[tuple[str, str]]()
    for each in apart:
        for other in nodes:
            if other not in apart:
                cuts |= {(each.ident, other.ident)} if ways != "in" else set()
                cuts |= {(other.ident, each.ident)} if ways != "out" else set()
    world.peers_cut |= cuts
    world.fault_ends(fault.lasts_s, world.peers_cut.difference_update, cuts)


KINDS: Mapping[str, Callable[[World, Scenario, Fault, SimNode], None]] = {
    act.__name__: act for act in (suspend, cut_peers)
}
