"""Faults of a job: each is data and has a number, so that a list of them can be shortened and replayed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_agent.agent.lifecycle.restart_policy import MAX_HOST_FAILURES
from elastic_agent.agent.lifecycle.state import Phase
from elastic_agent.proto.endings import PREEMPTED
from elastic_agent.rendezvous.driver.connection import patience_s
from elastic_agent.rendezvous.driver.term import READER_WAIT_S

from ..checks.liveness import RESIGNS_S, SLACK_S
from ..stores.driver_link import DriverLink
from ..stores.shared import SharedEtcd, SharedTcpStore
from . import apart, requests

if TYPE_CHECKING:
    from ..world.node import SimNode
    from ..world.world import World
    from .scenario import Founder, Scenario

ONE_BY_ONE = 50
"""So many nodes reach the store again after each other; the heals of a thousand would come long after the job's end."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `target` and `variant` are fractions of 1, so that they fit any number of choices."""

    number: int
    at_s: float
    """When it happens; with `after_version`, how long after that announcement."""
    kind: str
    target: float = 0.0
    """Which node or worker it happens to."""
    variant: float = 0.0
    """Which form of its kind it takes."""
    lasts_s: float = 0.0
    after_version: int = 0
    """It follows the announcement of this version by the coordinator, where most races are; 0: it happens at a time."""

    def __str__(self) -> str:
        when = f"{self.at_s:.3f} s" + (f" after announcement {self.after_version}" if self.after_version else "")
        choices = f"target {self.target:.2f}, variant {self.variant:.2f}, lasts {self.lasts_s:.2f} s"
        return f"fault {self.number}: {self.kind} at {when}, {choices}"


def schedule(world: World, scenario: Scenario, fault: Fault) -> None:
    """Make it happen at its time, or upon its announcement."""
    if fault.after_version:
        world.upon_version.setdefault(fault.after_version, []).append((fault.at_s, happen, (world, scenario, fault)))
    else:
        world.at(fault.at_s, happen, world, scenario, fault)


def happen(world: World, scenario: Scenario, fault: Fault) -> None:
    """It happens, unless every agent has ended."""
    alive = [node for node in world.nodes.values() if not node.done]
    if not alive:
        return
    index = int(fault.target * len(alive))
    node = alive[index]
    if node.host and fault.variant < 0.5:
        node = alive[(index + 1) % len(alive)]  # without the host most jobs end early
    leader = world.leader if world.elects and fault.variant < 0.4 else None
    if leader is not None and not leader.done:
        node = leader
    world.checkers.faults += 1
    world.checkers.last_fault = world.now
    world.reached.note(f"fault {fault.kind}")
    world.reached.note(_moment(node))
    if world.log is not None:
        world.log(world.now, f"fault {fault.number}: {fault.kind}, {node.ident}")
    {**KINDS, **RARE}[fault.kind](world, scenario, fault, node)


def _moment(node: SimNode) -> str:
    return f"a fault while {node.state.phase.value}"


def worker_fails(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    busy = [each for each in world.nodes.values() if each.nursery.live]
    if busy:
        nursery = busy[int(fault.target * len(busy))].nursery
        live = list(nursery.live.values())
        worker = live[int(fault.variant * len(live))]
        if not worker.unkillable:
            nursery.exit(worker, (1, 7, -9, -15, 93)[fault.number % 5])


def worker_preempts(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    """Workers ask for the end of the job: all of one node, or one of them."""
    busy = [each for each in world.nodes.values() if each.nursery.live]
    if busy:
        nursery = busy[int(fault.target * len(busy))].nursery
        live = [worker for worker in nursery.live.values() if not worker.unkillable]
        for worker in live if fault.variant < 0.7 else live[:1]:
            nursery.exit(worker, PREEMPTED)


def kill(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    if node.host:
        world.reached.note("the host was killed")
    if node.state.phase is Phase.STOPPING:
        world.reached.note("a node died while it stopped its workers")
    node.kill()


def restart(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    """Killed, and started again on the same host: a new agent, with a new identity."""
    kill(world, scenario, fault, node)
    if node.host and isinstance(world.store, SharedTcpStore):
        world.at(fault.lasts_s / 4, world.store.serve_anew, fault.lasts_s)
    else:
        world.at(fault.lasts_s / 4, arrives, world, scenario, fault, node.rules.preferred_rank)


def rerun(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    """Every agent is killed, and the same command started again on as many hosts, on a store that outlives them."""
    if not world.elects or world.checkers.closed:
        return
    for each in world.nodes.values():
        each.kill()
    for index, founder in enumerate(scenario.founders):
        world.coming += 1
        later_s = (fault.lasts_s + index * fault.variant) / 4
        world.at(later_s, _starts_again, world, scenario, f"again{fault.number}-{founder.name}", founder)


def _starts_again(world: World, scenario: Scenario, name: str, founder: Founder) -> None:
    world.coming -= 1
    world.checkers.last_fault = world.now
    world.join(name, founder.nproc, scenario.habit, founder.preferred_rank)


def freeze(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    node.freeze()
    world.fault_ends(fault.lasts_s, node.thaw)


def cut(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    """One way or both."""
    up, down = ((True, True), (True, False), (False, True))[int(fault.variant * 3)]
    if not node.host:
        world.reached.note("a cut both ways" if up and down else "a one-way cut")
        node.link.cut(up, down)
        world.fault_ends(fault.lasts_s, node.link.heal)


def partition(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    """Some of the nodes lose the store together, and reach it again one by one; of very many, several at a time."""
    guests = [each for each in world.nodes.values() if not each.done and not each.host]
    for index, each in enumerate(guests[: 1 + int(fault.variant * len(guests))]):
        each.link.cut(up=True, down=True)
        world.fault_ends(fault.lasts_s + index % ONE_BY_ONE * fault.variant, each.link.heal)


def signal(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    node.signal()
    if fault.variant < 0.3:
        world.at(fault.lasts_s / 5, node.signal)


def leave(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    node.leave("drained")


def replace(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    if fault.variant < 0.75:
        node.kill()
    else:
        node.signal()
    world.at(fault.lasts_s / 6, arrives, world, scenario, fault)


def arrive(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    arrives(world, scenario, fault)


def arrives(world: World, scenario: Scenario, fault: Fault, static_rank: int | None = None) -> None:
    """A node that is not among the founders. `static_rank`: that of the node that it comes for, in a static job."""
    world.checkers.last_fault = world.now
    nproc = 1 + int(fault.variant * 3) if scenario.unequal else 2
    preferred = int(fault.target * 4) if fault.number % 8 == 7 else None
    world.join(f"late{fault.number}", nproc, scenario.habit, static_rank if world.job.static else preferred)


def lose_nursery(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    """Once; or again and again, as on a host that is sick. Or only the process that serves the workers' store."""
    if fault.variant < 0.2:
        _lose_store(world, node)
        return
    _lose(world, node)
    if fault.variant > 0.7:
        for again in range(1, MAX_HOST_FAILURES):
            world.checkers.faults += 1
            world.at(again * fault.lasts_s / 3, _lose, world, node)


def _lose(world: World, node: SimNode) -> None:
    if node.link.opened and not node.nursery.dead and not node.done:
        world.checkers.last_fault = world.now
        node.nursery.lose()


def _lose_store(world: World, node: SimNode) -> None:
    if not node.done:
        world.checkers.last_fault = world.now
        node.nursery.lose_store()


def place_fails(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    """This node has no device left for the next round."""
    node.place_fails = True


def lose_requests(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    """For a while half of this node's requests are lost with their connection, before they reach the store."""
    node.link.lose("request", fault.lasts_s / 4)


def lose_replies(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    """For a while half of the store's replies to this node are lost: the request was applied, and is sent again."""
    node.link.lose("reply", fault.lasts_s / 4)


def stranger(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    """A client that is not part of the job writes random bytes over a key in the store."""
    if isinstance(world.store, SharedTcpStore):
        world.store.spoil(fault.target, random.Random(fault.variant).randbytes(int(fault.lasts_s)))


def liar(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    """A client that is not part of the job writes to a key what the job itself might write there."""
    if isinstance(world.store, SharedTcpStore):
        world.store.lie(fault.target, random.Random(fault.variant))


def occupant(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    """Clients that are not part of the job hold all descriptors that the host has left."""
    if isinstance(world.store, SharedTcpStore):
        world.store.occupy(fault.lasts_s / 3)


def server_hangs(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    """The server of the store stands still, and its host's agent does not."""
    if isinstance(world.store, SharedTcpStore):
        world.store.hang(fault.lasts_s / 3)


def store_stalls(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    """The store does not answer for a while: it elects another leader, or its host is frozen."""
    world.store.stall(fault.lasts_s / 3)


def store_full(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    """The store has no space for a while: it refuses writes, and renews leases. Meanwhile a worker fails, so that a
    node has something to write."""
    if isinstance(world.store, SharedEtcd):
        world.store.server.full = True
        _stays_full(world, world.store)
        world.at(fault.lasts_s / 3, _has_space, world, world.store)
        world.at(fault.target, worker_fails, world, scenario, fault, node)


def _stays_full(world: World, store: SharedEtcd) -> None:
    """What nodes have to write waits for space, so no time counts until then."""
    if store.server.full:
        world.checkers.last_fault = world.now
        world.at(1.0, _stays_full, world, store)


def _has_space(world: World, store: SharedEtcd) -> None:
    world.checkers.last_fault = world.now
    store.server.full = False


def stall(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    """A loop stands still while its threads live, as in a call on a dead file server, and while its workers go on."""
    node.stall()
    world.reached.note("a loop stood still")
    if node is world.leader and world.shared_store is not None:
        world.reached.note("the coordinator's loop stood still")
        _must_resign(world, node, world.job.lease_s)
    world.at(fault.lasts_s, _goes_on, world, node)


def _goes_on(world: World, node: SimNode) -> None:
    if node.stalled:
        world.checkers.last_fault = world.now
        node.go_on()


def deafen(world: World, scenario: Scenario, fault: Fault, node: SimNode) -> None:
    """The connections of one thread bring nothing any more, while those of the others live: of the watcher, or, where
    the node coordinates, of one that only a coordinator has."""
    leads = node is world.leader and world.shared_store is not None
    if node.host and not leads:
        return  # without drivers, nobody could find out
    role = ("watcher", "reader", "announcer")[int(fault.variant * 3)] if leads else "watcher"
    node.link.silence(role, broken=fault.target < 0.5)
    world.reached.note(f"{'an' if role == 'announcer' else 'a'} {role} received nothing")
    if role != "watcher":
        # Found out only by calls that take too long: the coordinator is as good as gone from then on.
        _stays_unknown(world, node, world.term, _found_out_at(world))
    world.at(fault.lasts_s, _speaks, world, node)


def _found_out_at(world: World) -> float:
    """When it is found out at the latest that a thread of the coordinator receives nothing from now on."""
    return world.now + patience_s(READER_WAIT_S, world.job.lease_s) + world.job.lease_s


def _stays_unknown(world: World, node: SimNode, term: int, until: float) -> None:
    """`until`: when it is found out at the latest that this node, in this term, receives nothing."""
    if not node.link.silent or node.done:
        return
    if world.leader is node and world.term != term:
        # Where no other node could, it coordinates again, with threads whose calls have not taken too long yet.
        world.reached.note("a coordinator that received nothing was elected again")
        term, until = world.term, _found_out_at(world)
    idle = isinstance(node.link, DriverLink) and "announcer" in node.link.silent and not node.link.announces
    if idle or node.link.away_since is not None:
        until = _found_out_at(world)  # no thread is judged while it asks nothing, or the store is away for all
    elif isinstance(node.link, DriverLink) and world.now - node.link.came_back_at <= 1.0:
        until = _found_out_at(world)  # it was away since the last look
    if world.now < until:
        world.checkers.last_fault = world.now
        if world.now + 1.0 >= until:
            world.at(until - world.now, _must_resign, world, node, 0.0, term)
    world.at(1.0, _stays_unknown, world, node, term, until)


def _must_resign(world: World, node: SimNode, found_s: float, term: int | None = None) -> None:
    """`found_s`: until it is found out that it does not do its part. `term`: this one must end; None: any."""
    if world.elects:
        bound_s = found_s + RESIGNS_S
    else:
        ends_s = world.job.store_grace_s + world.checkers.liveness.stopping_s
        bound_s = found_s + 2 * world.job.lease_s + ends_s + SLACK_S
    world.at(bound_s, world.checkers.liveness.coordinates, node, bound_s, term)


def _speaks(world: World, node: SimNode) -> None:
    if node.link.silent:
        world.checkers.last_fault = world.now
        node.link.speak()


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
RARE = {
    **{
        act.__name__: act
        for act in (stranger, liar, occupant, server_hangs, store_full, rerun, stall, deafen, worker_preempts)
    },
    **requests.KINDS,
    **apart.KINDS,
}
"""Kinds that `draw` does not choose from `KINDS`."""
