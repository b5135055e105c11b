"""What may befall a job, as data: every fault has a number, so that a list of them can be shortened and replayed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_agent.agent.lifecycle.restart_policy import MAX_HOST_FAILURES
from elastic_agent.agent.lifecycle.state import Phase

from .faces import C10dFace

if TYPE_CHECKING:
    from .node import SimNode
    from .plan import Scenario
    from .world import World


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. Times in seconds; `whom` and `how` are fractions of 1, so that they fit any number of choices."""

    ident: int
    at: float
    """When it happens; with `after`, how long after that announcement."""
    kind: str
    whom: float = 0.0
    how: float = 0.0
    lasts: float = 0.0
    after: int = 0
    """It happens when the coordinator announces this version, where most races are; 0: at a time."""

    def __str__(self) -> str:
        when = f"{self.at:.3f} s" + (f" after announcement {self.after}" if self.after else "")
        choices = f"whom {self.whom:.2f}, how {self.how:.2f}, lasts {self.lasts:.2f} s"
        return f"fault {self.ident}: {self.kind} at {when}, {choices}"


def schedule(world: World, scenario: Scenario, fault: Fault) -> None:
    """Let it happen when its time comes."""
    if fault.after:
        world.upon.setdefault(fault.after, []).append((fault.at, befall, (world, scenario, fault)))
    else:
        world.at(fault.at, befall, world, scenario, fault)


def befall(world: World, scenario: Scenario, fault: Fault) -> None:
    """It happens, unless there is nobody left to whom it could."""
    alive = [node for node in world.nodes.values() if not node.done]
    if not alive:
        return
    index = int(fault.whom * len(alive))
    node = alive[index]
    if node.host and fault.how < 0.5:
        node = alive[(index + 1) % len(alive)]  # losing the host ends most stories early
    leader = world.leader if world.elects and fault.how < 0.4 else None
    if leader is not None and not leader.done:
        node = leader
    world.checkers.faults += 1
    world.checkers.last_fault = world.now
    world.reached.note(f"fault {fault.kind}")
    world.reached.note(_moment(node))
    if world.log is not None:
        world.log(world.now, f"fault {fault.ident}: {fault.kind}, {node.ident}")
    {**KINDS, **RARE}[fault.kind](world, scenario, fault, node)


def _moment(node: SimNode) -> str:
    return f"a fault while {node.state.phase.value}"


def worker_fails(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    busy = [each for each in world.nodes.values() if each.nursery.live]
    if busy:
        nursery = busy[int(fault.whom * len(busy))].nursery
        live = list(nursery.live.values())
        worker = live[int(fault.how * len(live))]
        if not worker.unkillable:
            nursery.exit(worker, (1, 7, -9, -15, 93)[fault.ident % 5])


def kill(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    if node.host:
        world.reached.note("the host was killed")
    if node.state.phase is Phase.STOPPING:
        world.reached.note("a node died while it stopped its workers")
    node.kill()


def restart(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    """Killed, and started again on the same machine: a new agent, with a new identity."""
    kill(world, scenario, fault, node)
    if node.host and isinstance(world.store, C10dFace):
        world.at(fault.lasts / 4, world.store.serve_anew, fault.lasts)
    else:
        world.at(fault.lasts / 4, comes, world, scenario, fault)


def freeze(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    node.freeze()
    world.at(fault.lasts, _thaw, world, node)


def _thaw(world: World, node: SimNode) -> None:
    world.checkers.last_fault = world.now
    node.thaw()


def cut(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    """One way or both."""
    up, down = ((True, True), (True, False), (False, True))[int(fault.how * 3)]
    if not node.host:
        world.reached.note("a cut both ways" if up and down else "a one-way cut")
        node.link.cut(up, down)
        world.at(fault.lasts, _heal, world, node)


def _heal(world: World, node: SimNode) -> None:
    world.checkers.last_fault = world.now
    node.link.heal()


def partition(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    """Some of the nodes lose the store together, and get it back one by one."""
    guests = [each for each in world.nodes.values() if not each.done and not each.host]
    for index, each in enumerate(guests[: 1 + int(fault.how * len(guests))]):
        each.link.cut(up=True, down=True)
        world.at(fault.lasts + index * fault.how, _heal, world, each)


def signal(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    node.signal()
    if fault.how < 0.3:
        world.at(fault.lasts / 5, node.signal)


def leave(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    node.leave("drained")


def replace(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    if fault.how < 0.75:
        node.kill()
    else:
        node.signal()
    world.at(fault.lasts / 6, comes, world, scenario, fault)


def arrive(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    comes(world, scenario, fault)


def comes(world: World, scenario: Scenario, fault: Fault) -> None:
    """A node that is not among the founders."""
    world.checkers.last_fault = world.now
    nproc = 1 + int(fault.how * 3) if scenario.unequal else 2
    world.join(f"late{fault.ident}", nproc, scenario.habit, int(fault.whom * 4) if fault.ident % 8 == 7 else None)


def lose_nursery(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    """Once; or again and again, where the machine is sick."""
    _lose(world, node)
    if fault.how > 0.7:
        for again in range(1, MAX_HOST_FAILURES):
            world.checkers.faults += 1
            world.at(again * fault.lasts / 3, _lose, world, node)


def _lose(world: World, node: SimNode) -> None:
    if node.link.opened and not node.nursery.dead and not node.done:
        world.checkers.last_fault = world.now
        node.nursery.lose()


def place_fails(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    """The next round finds no device on this node."""
    node.place_fails = True


def lose_requests(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    """For a while half of what this node asks breaks its connection before the store has seen it."""
    node.link.lose("request", fault.lasts / 4)


def lose_replies(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    """The store has done it, and the node will never know: it says the same again."""
    node.link.lose("reply", fault.lasts / 4)


def stranger(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    """Somebody writes bytes of no meaning over something in the store."""
    if isinstance(world.store, C10dFace):
        world.store.spoil(fault.whom, random.Random(fault.how).randbytes(int(fault.lasts)))


def store_stalls(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    """The store's own trouble: other leaders, or its host standing still."""
    world.store.stall(fault.lasts / 3)


KINDS: Mapping[str, Callable[[World, Scenario, Fault, SimNode], None]] = {
    act.__name__: act
    for act in (
        worker_fails,
        kill,
        restart,
        freeze,
        cut,
        partition,
        signal,
        leave,
        replace,
        arrive,
        lose_nursery,
        place_fails,
        lose_requests,
        lose_replies,
        store_stalls,
    )
}
RARE = {stranger.__name__: stranger}
"""Not among those that every seed may draw."""
