"""What people and schedulers ask of all ranks, by files that nodes see and by what they send to one agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from elastic_agent.rendezvous.agreements import Act

if TYPE_CHECKING:
    from ..world.node import SimNode
    from ..world.world import World
    from .faults import Fault
    from .scenario import Scenario

LOOK_S = 0.5
"""After a switch was made, until a node that looks at it has seen it."""


def kill_switch(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    """A file is made that one node sees, or all, one after the other."""
    seen_by = [each for each in world.nodes.values() if not each.done] if fault.variant < 0.5 else [node]
    for each in seen_by:
        world.at(world.rng.random() * LOOK_S, _asks, each, Act.KILL, "")


def save_switch(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    """A file is made: one node takes it; or, where it cannot be removed, each that sees it."""
    label = f"label {fault.number}"
    if fault.variant < 0.7:
        _asks(node, Act.SAVE, label)
        return
    for each in [each for each in world.nodes.values() if not each.done]:
        world.at(world.rng.random() * LOOK_S, _asks, each, Act.SAVE, label)


def preemption(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    """A node learns that the job is to end."""
    _asks(node, Act.PREEMPT, "")


def planned_restart(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    """A watch of a node wants all workers to start anew."""
    _asks(node, Act.RESTART, "")


def many_saves(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    """More requests than a record holds. Without drivers a node's records are written one by one, which takes long."""
    if world.shared_store is None:
        save_switch(world, scenario, fault, node)
        return
    for index in range(3 + int(fault.variant * 9)):
        world.at(index * fault.lasts_s / 100, _asks, node, Act.SAVE, f"label {fault.number}-{index}")


def drain(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    """A node is asked to leave the job in order; some twice."""
    node.leave("drained")
    if fault.variant < 0.2:
        world.at(fault.lasts_s / 5, node.leave, "drained again")


def _asks(node: SimNode, act: Act, label: str) -> None:
    if not node.done:
        node.world.checkers.last_fault = node.world.now
        node.asks(act, label)


KINDS: Mapping[str, Callable[[World, Scenario, Fault, SimNode], None]] = {
    act.__name__: act for act in (kill_switch, save_switch, preemption, planned_restart, many_saves, drain)
}
