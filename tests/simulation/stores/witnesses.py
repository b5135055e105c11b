"""The channel between agents and the memory that each shares with its nursery, as the production drivers use them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from elastic_agent.rendezvous.records import Witness

from .threads import TIMEOUT, ticket

if TYPE_CHECKING:
    from ..world.node import SimNode

PORT = 4711


class SimPage:
    """As `agent.processes.fence_page.FencePage`."""

    fd = -1

    def __init__(self, node: SimNode) -> None:
        self._node = node

    def now(self) -> float:
        return self._node.clock()

    def move(self, until: float, generation: int) -> None:
        self._node.nursery.fence.move(until, generation)


class SimChannel:
    """As `rendezvous.driver.channel.TcpChannel`: questions and answers take their time, and are lost where agents do
    not reach each other."""

    def __init__(self, node: SimNode) -> None:
        self._node = node
        self.permits: Callable[[int], bool] | None = None

    def open(self, node: str, secret: bytes, answer: Callable[[int], bool]) -> int:
        self.permits = answer
        return PORT

    def close(self) -> None:
        self.permits = None

    def prepare(self, witnesses: tuple[Witness, ...]) -> None:
        """There are no names here."""

    def ask(self, number: int, witnesses: tuple[Witness, ...], timeout_s: float) -> bool:
        if not witnesses:
            return True
        mine, world = ticket(), self._node.world
        yes: list[str] = []

        def answered(witness: str) -> None:
            yes.append(witness)
            if len(yes) == len(witnesses):
                mine.wake_now(True)

        world.reached.note("witnesses were asked")
        for witness in witnesses:
            world.at(world.delays.network(), self._arrives, witness.node, number, answered)
        return mine.process.block(mine, timeout_s) is not TIMEOUT

    def _arrives(self, witness: str, number: int, answered: Callable[[str], None]) -> None:
        world = self._node.world
        if (self._node.ident, witness) not in world.peers_cut:
            other = world.nodes[witness]
            other.deliver(self._answer, other, number, answered)

    def _answer(self, other: SimNode, number: int, answered: Callable[[str], None]) -> None:
        world = self._node.world
        channel = getattr(other.link, "channel", None)
        if other.done or channel is None or channel.permits is None or not channel.permits(number):
            return
        if (other.ident, self._node.ident) not in world.peers_cut:
            world.reached.note("a witness let workers run on")
            world.at(world.delays.network(), answered, other.ident)


SEEN = {"other hosts": False}
"""Whether an agent says of others on whatever host that no process of them is left, where it sees none on its own."""

LOOK_S, AGAIN_S = 0.001, 0.1
"""How long a look takes, and after which time what still lives is looked at again. Not drawn, as seeds that were found
must go on to mean the same."""


class SimNeighbours:
    """As `agent.processes.neighbours.Neighbours`."""

    fd = -1

    def __init__(self, node: SimNode) -> None:
        self._node = node
        self.presence = node.ident
        self._found: dict[str, str] = {}
        self._closed = False

    def look(self, found: Callable[[Mapping[str, str]], None]) -> None:
        if not self._closed:
            self._node.world.at(LOOK_S, self._node.deliver, self._survey, found)

    def _survey(self, found: Callable[[Mapping[str, str]], None]) -> None:
        world, known = self._node.world, len(self._found)
        if self._closed or self._node.done:
            return
        waits = False
        for other in world.nodes.values() if SEEN["other hosts"] else world.on_host[self._node.on_host]:
            here = other.on_host == self._node.on_host
            if here and other.killed and (other.nursery.live or other.nursery.leftovers):
                waits = True
            elif (here and other.killed) or (SEEN["other hosts"] and not here and other is not self._node):
                self._found[other.ident] = other.ident
        if len(self._found) > known:
            world.reached.note("an agent saw that no process of another was left")
            found(dict(self._found))
        if waits:
            world.at(AGAIN_S, self._node.deliver, self._survey, found)

    def close(self) -> None:
        self._closed = True
