"""A model of TCPStore: what torch's server does with each request; its client is in `tcpstore_client`.

compare_set on a missing key writes only if the expected value is empty, and otherwise answers with the expected value,
although the key does not exist. set has no answer. A frozen server keeps no deadline, and a broken connection stays so.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from elastic_agent.rendezvous.c10d import notifications
from elastic_agent.rendezvous.c10d.keys import OVER
from elastic_agent.rendezvous.codec import records as codec
from elastic_agent.rendezvous.records import NodeState

from ..checks.invariants import COMPACT, MISTAKEN

if TYPE_CHECKING:
    from ..world.world import World
    from .driver_link import DriverLink
    from .tcpstore_client import Wire

Request = tuple[str, tuple[Any, ...]]

_LIES = ("node/", "beat/", "log/head", "log/compacted", "log/", "round/head")
"""Keys where a stranger may write what the job itself might write; below round/ nobody could tell it from the truth."""

LATE_S = 20.0
"""Until bytes of an abandoned connection arrive, at most, where they do not arrive at the worst of moments."""


class Server:
    """One TCPStore. Requests of one connection are taken in their order; nothing is, while it is frozen."""

    def __init__(self, world: World, earlier: frozenset[DriverLink] = frozenset()) -> None:
        """`earlier`: links of nodes that were on another store, served at this address before."""
        self.world = world
        self._earlier = earlier
        self.keys: dict[str, bytes] = {}
        self.frozen = False
        self.gone = False
        self.full = False
        """The process has no descriptor left, and closes each new connection."""
        self._abandoned: list[tuple[Wire, list[Request]]] = []
        """Requests on connections that were given up, which arrive after the next ones about the same keys."""
        self._overwrites_next = b""
        """A stranger waits for the next notification, to write this over it before it is read."""
        self._first: dict[str, bytes] = {}
        """The first value of each key."""
        self._waiting: dict[str, list[Wire]] = {}
        self._held: list[tuple[Wire, int, list[Request]]] = []
        self.address = (2, ("10.0.0.1", 29400))

    def receive(self, wire: Wire, number: int, requests: list[Request]) -> None:
        if self.gone:
            wire.reset_later()
        elif self.frozen:
            self._held.append((wire, number, requests))
        else:
            answer: object = NotImplemented
            for name, arguments in requests:
                answer = getattr(self, name)(wire, *arguments)
            self._overwrite(requests)
            if answer is not NotImplemented:
                wire.reply(number, answer)
            if self._abandoned:
                self._overtaken(wire.link, requests)

    def abandon(self, wire: Wire, requests: list[Request]) -> None:
        """The client gave up this connection, on which the requests were sent: they may arrive at any later time."""
        random = self.world.conditions.late_bytes
        if random is None or not writes(requests):
            return
        if writes_record(requests):
            self._abandoned.append((wire, requests))
        else:
            self.world.at(random.uniform(0.0, LATE_S), self._arrive_late, wire, requests)

    def _overtaken(self, link: DriverLink, requests: list[Request]) -> None:
        """Of all later times, the worst for a record is just after one that says something else."""
        states = _states(requests)
        for late in [*self._abandoned] if states else ():
            wire, earlier = late
            if wire.link is link and _states(earlier) != states:
                self._abandoned.remove(late)
                self._arrive_late(wire, earlier)

    def _arrive_late(self, wire: Wire, requests: list[Request]) -> None:
        if self.gone or self.frozen:
            return
        self.world.checkers.last_fault = self.world.now
        self.world.reached.note("bytes of an abandoned connection arrived late")
        for name, arguments in requests:
            if name not in ("wait", "cancel_wait"):
                getattr(self, name)(wire, *arguments)

    def thaw(self) -> None:
        """Takes what arrived meanwhile, one connection after the other, in any order of connections."""
        self.frozen = False
        held, self._held = self._held, []
        wires = list(dict.fromkeys(wire for wire, _, _ in held))
        self.world.rng.shuffle(wires)
        for wire in wires:
            for each, number, requests in held:
                if each is wire:
                    self.receive(each, number, requests)

    def close(self) -> None:
        self.gone = True

    def spoil(self, target: float, value: bytes) -> str:
        """A client from outside the job writes over a key, which is returned. `target`: a fraction of all keys but for
        the records of nodes: one that is overwritten before it was read is lost, and its node waits; and for what
        only other jobs read."""
        keys = sorted(key for key in self.keys if "/node/" not in key and key != OVER)
        key = keys[int(target * len(keys))]
        self.keys[key] = value
        self._wake(key)
        return key

    def lie(self, target: float, random: Random) -> str:
        """As `spoil`, with a value such as the job itself writes there; returns the key. `target`: what kind of key."""
        keys = sorted(key for key in self.keys if f"/{_LIES[int(target * len(_LIES))]}" in key)
        key = random.choice(keys) if keys else ""
        if "/node/" in key:
            self.keys[key] = self._first[key]
        elif key.endswith(("head", "compacted")):
            count = int(self.keys[key]) if self.keys[key].isdigit() else 0  # else a stranger has written there before
            self.keys[key] = b"%d" % max(0, count + random.choice((-2, -1, 1, 2, 1000)))
        elif "/beat/" in key:
            self.keys[key] = b"%d" % random.randrange(1000)
        elif key:
            self.keys[key] = random.choice([*self.world.nodes]).encode()
            self._overwrites_next = self.keys[key]
        self._wake(key)
        return key

    def _overwrite(self, requests: list[Request]) -> None:
        """Only what is written over a notification before the reader has read it does harm. Its writer does not see it:
        it has compared already, and sets the key again to wake the reader."""
        for name, arguments in requests if self._overwrites_next else ():
            if (
                name == "set"
                and arguments[0].rpartition("/log/")[2].isdigit()
                and arguments[1] != self._overwrites_next
            ):
                self.keys[arguments[0]], self._overwrites_next = self._overwrites_next, b""
                self.world.checkers.last_fault = self.world.now
                self.world.reached.note("a notification was overwritten before it was read")
                return

    # -- requests ------------------------------------------------------------------------------------------------

    def set(self, wire: Wire, key: str, value: bytes) -> None:
        if wire.link in self._earlier:
            self.world.checkers.need(False, MISTAKEN, f"{wire.link.node.ident} writes {key}")
        if "/beat/" in key and self.keys.get(key) != value:
            wire.link.beat_arrived()
            wire.link.vouched()
        elif "/node/" in key:
            self.world.checkers.costs.recorded(len(value))
        elif "/round/" in key:
            self.world.checkers.costs.announced(len(value))
        self.keys[key] = value
        self._first.setdefault(key, value)
        self._wake(key)

    def have(self, wire: Wire, keys: Sequence[str]) -> list[bool]:
        return [key in self.keys for key in keys]

    def get(self, wire: Wire, keys: Sequence[str]) -> dict[str, bytes]:
        if keys and "/beat/" in keys[0]:
            wire.link.shared_store.beats_read()
        held = self.keys
        return {key: held[key] for key in keys if held.get(key)}

    def compare_set(self, wire: Wire, key: str, expected: bytes, value: bytes) -> bytes:
        if key not in self.keys and expected:
            return expected
        if self.keys.get(key, b"") == expected:
            self.set(wire, key, value)
        return self.keys[key]

    def add(self, wire: Wire, key: str, amount: int) -> object:
        try:
            total = int(self.keys.get(key, b"0")) + amount
        except ValueError:  # torch's server closes the connection
            wire.reset_later()
            return NotImplemented
        self.set(wire, key, str(total).encode("ascii"))
        return total

    def create_each(self, wire: Wire, keys: Sequence[str], value: bytes) -> None:
        for key in keys:
            self.compare_set(wire, key, b"", value)

    def delete(self, wire: Wire, keys: Sequence[str]) -> None:
        for key in keys:
            self.keys.pop(key, None)

    def wait(self, wire: Wire, key: str) -> object:
        if wire.link.node.host and "/log/" in key:
            self._read_up_to(wire, key)
        if key in self.keys:
            return True
        self._waiting.setdefault(key, []).append(wire)
        wire.waits_for = key
        return NotImplemented

    def _read_up_to(self, wire: Wire, awaited: str) -> None:
        """The host has read all notifications before the one that it waits for. It compacts up to what it had read
        before, and several of each node may have come at once since, as in a restart."""
        log, _, number = awaited.rpartition("/")
        compacted = self.keys.get(f"{log}/compacted", b"0")
        if wire.link.shared_store.spoiled or not compacted.isdigit():
            return
        length = int(number) - 1 - int(compacted)
        most = 2 * notifications.KEEP + 4 * len(self.world.nodes)
        self.world.checkers.need(length <= most, COMPACT, f"{length} notifications that the host has read are kept")

    def cancel_wait(self, wire: Wire) -> object:
        self._waiting[wire.waits_for].remove(wire) if wire.waits_for else None
        wire.waits_for = ""
        return False

    def _wake(self, key: str) -> None:
        if key in self._waiting:
            for wire in self._waiting.pop(key):
                wire.waits_for = ""
                wire.reply(wire.number, True)


class Serving:
    """In the place of `c10d.server.TorchServer`."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.address = server.address

    def close(self) -> None:
        self.server.close()


def writes_record(requests: list[Request]) -> bool:
    return any(name in ("set", "compare_set") and "/node/" in arguments[0] for name, arguments in requests)


def _states(requests: list[Request]) -> list[NodeState]:
    """Of the records that these requests write."""
    return [codec.decode_node(value).state for key, value in writes(requests).items() if "/node/" in key]


def writes(requests: list[Request]) -> dict[str, bytes]:
    return {arguments[0]: arguments[-1] for name, arguments in requests if name in ("set", "compare_set")}
