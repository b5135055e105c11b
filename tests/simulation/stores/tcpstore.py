"""A model of TCPStore: what torch's server does with each request, and a client as `c10d.client.TcpStoreClient`.

compare_set on a missing key writes only if the expected value is empty, and otherwise answers with the expected value,
although the key does not exist. set has no answer. A frozen server keeps no deadline, and a broken connection stays so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from elastic_agent.rendezvous.c10d import notifications
from elastic_agent.rendezvous.c10d.descriptors import PER_NODE
from elastic_agent.rendezvous.codec import records as codec
from elastic_agent.rendezvous.records import NodeState
from elastic_agent.rendezvous.store import StoreUnreachable

from ..checks.invariants import COMPACT, FRUGAL, MISTAKEN
from .threads import TIMEOUT, Ticket, current

if TYPE_CHECKING:
    from ..world.world import World
    from .driver_link import DriverLink

Request = tuple[str, tuple[Any, ...]]

_LIES = ("node/", "beat/", "log/head", "log/compacted", "log/", "round/head")
"""Keys where a stranger may write what the job itself might write; below round/ nobody could tell it from the truth."""

RESET_S = 0.001
"""Until a client receives the reset of its connection, after the server ended."""
LATE_S = 20.0
"""Until bytes of an abandoned connection arrive, at most, where they do not arrive at the worst of moments."""
HOST_CONNECTIONS = 4
"""Of the host to its own store: its writer, watcher, reader and announcer."""


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
        random = self.world.late_bytes
        if random is None or not _written(requests):
            return
        if _writes_record(requests):
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
        the records of nodes: one that is overwritten before it was read is lost, and its node waits."""
        keys = sorted(key for key in self.keys if "/node/" not in key)
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
        """The host has read all notifications before the one that it waits for; of void ones it may have read as many
        as there are nodes since it compacted."""
        log, _, number = awaited.rpartition("/")
        compacted = self.keys.get(f"{log}/compacted", b"0")
        if wire.link.shared_store.spoiled or not compacted.isdigit():
            return
        length = int(number) - 1 - int(compacted)
        most = 2 * notifications.KEEP + len(self.world.nodes)
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


class Wire:
    """A connection to it, as `c10d.client.TcpStoreClient`: each call ends with an answer or raises StoreUnreachable."""

    def __init__(self, link: DriverLink, server: Server, call_timeout_s: float) -> None:
        self.link = link
        self.world = link.world
        self.server = server
        self.call_timeout_s = call_timeout_s
        self.role = current().role
        """Of the thread that uses it."""
        self.number = 0
        """Of the request under way; an answer to an earlier one is dropped."""
        self.waits_for = ""
        self._waited = 0
        self._wrote = b""
        """The record that was sent; it counts as written once its notification is."""
        self._broken = ""
        self._dead = False
        """A message was lost on the way: so are all later ones on this connection."""
        self._queued: list[Request] = []
        self._ticket: Ticket | None = None
        self._sent_at = self._answered_at = 0.0

    @property
    def broken(self) -> bool:
        return bool(self._broken)

    def greet(self) -> None:
        """The first request. Raises StoreUnreachable."""
        if self.server.gone:
            raise StoreUnreachable("nothing listens there (connection refused)")
        self.have([])

    # -- as client.TcpStoreClient -------------------------------------------------------------------------------------

    def close(self) -> None:
        self._break("this connection was closed here")

    def put_later(self, key: str, value: bytes) -> None:
        self._queued.append(("set", (key, value)))

    def put(self, key: str, value: bytes) -> None:
        self.put_later(key, value)
        self.have([key])

    def put_all(self, values: Mapping[str, bytes]) -> None:
        for key, value in values.items():
            self.put_later(key, value)
        self.have(list(values)[-1:])

    def have(self, keys: Sequence[str]) -> list[bool]:
        found: list[bool] = self._ask("have", keys)
        return found

    def get(self, keys: Sequence[str]) -> dict[str, bytes]:
        found: dict[str, bytes] = self._ask("get", keys)
        return found

    def create(self, key: str, value: bytes) -> bytes:
        holds: bytes = self._ask("compare_set", key, b"", value)
        if holds == value:
            self.put(key, value)
        return holds

    def compare_set(self, key: str, expected: bytes, value: bytes) -> bytes:
        holds: bytes = self._ask("compare_set", key, expected, value)
        return holds

    def create_each(self, keys: Sequence[str], value: bytes) -> None:
        if keys:
            self._ask("create_each", keys, value)

    def add(self, key: str, amount: int) -> int:
        total: int = self._ask("add", key, amount)
        return total

    def delete(self, keys: Sequence[str]) -> None:
        if keys:
            self._ask("delete", keys)

    def wait(self, key: str, timeout_s: float) -> bool:
        answer = self._exchange("wait", (key,), max(timeout_s, 0.0))
        if answer is TIMEOUT:
            # A key that was set just before is the answer to the wait; the answer to the cancellation is then dropped.
            self._waited = self.number
            answer = self._ask("cancel_wait")
            self._waited = 0
        return answer is True

    # -- requests and answers on their way -----------------------------------------------------------------------------

    def _ask(self, name: str, *arguments: object) -> Any:
        answer = self._exchange(name, arguments, self.call_timeout_s)
        if answer is TIMEOUT:
            self._break(f"no answer for {self.call_timeout_s:g} s")
            raise StoreUnreachable(f"the store is gone: {self._broken}")
        return answer

    def _exchange(self, name: str, arguments: tuple[object, ...], timeout_s: float) -> object:
        if self._broken:
            raise StoreUnreachable(f"the store is gone: {self._broken}")
        self.number += 1
        requests = [(name, arguments)]
        if self._queued:
            requests, self._queued = [*self._queued, *requests], []
        thread = current()
        self._ticket = mine = Ticket(thread.process, thread)
        world, link, asked_at = self.world, self.link, self.world.now
        if (link.losing and link.loses("request")) or (world.late_bytes is not None and self._delays(requests)):
            self._dead = True
            self.server.abandon(self, requests)
            world.at(RESET_S, self._break, "the request was lost")
        else:
            arrives_at = world.now + world.delays.network()
            if arrives_at > self._sent_at:
                self._sent_at = arrives_at
            world.when(self._sent_at, self._arrive, self.number, requests)
        answer = thread.process.block(mine, timeout_s)
        self._ticket = None
        if self._broken:
            raise StoreUnreachable(f"the store is gone: {self._broken}")
        if answer is not TIMEOUT and len(requests) > 1:
            self._note(requests, asked_at)
        return answer

    def _delays(self, requests: list[Request]) -> bool:
        """Whether the connection breaks here, so that a record, sent for the first time, arrives late."""
        if not _writes_record(requests):
            return False
        written = _written(requests)
        first, self.link.sent = self.link.sent != written, written
        return first and not self.link.node.host and self.world.delays_record()

    def _note(self, answered: list[Request], asked_at: float) -> None:
        """Notes for the checks which calls of the writer were answered. A write has no answer of its own."""
        for name, arguments in answered:
            if name != "set":
                continue
            key = arguments[0]
            if "/beat/" in key:
                self.link.answered(b"", asked_at)
            elif "/log/" in key and self._wrote:
                # Without a record before it, the coordinator's reader has filled a gap that a dead node left.
                self.link.answered(self._wrote, asked_at)
            elif "/node/" in key:
                self._wrote = arguments[1]

    def _arrive(self, number: int, requests: list[Request]) -> None:
        if self._dead:
            return
        if self.link.up_cut:
            # TCP sends it again until it arrives, even for a process that has given up on the connection.
            self.link.unsent.append((self._arrive, (number, requests)))
        elif self._broken and self.world.late_bytes is not None:
            self.server.abandon(self, requests)
        else:
            self.server.receive(self, number, requests)

    def reply(self, number: int, answer: object) -> None:
        world, link = self.world, self.link
        if link.losing and link.loses("reply"):
            self._dead = True
            world.at(RESET_S, self._break, "the reply was lost")
            return
        arrives_at = world.now + world.delays.network()
        if arrives_at > self._answered_at:
            self._answered_at = arrives_at
        world.when(self._answered_at, self._answered, number, answer)

    def _answered(self, number: int, answer: object) -> None:
        if self._dead:
            return
        link = self.link
        if link.down_cut or self.role in link.silent:
            link.unsent.append((self._answered, (number, answer)))
        elif number in (self.number, self._waited) and self._ticket is not None:
            self._ticket.wake_now(answer)

    def reset_later(self) -> None:
        self.world.at(RESET_S, self._break, "the server closed the connection")

    def _break(self, why: str) -> None:
        self._broken = self._broken or why
        if self._ticket is not None:
            self._ticket.wake()


class Serving:
    """In the place of `c10d.server.TorchServer`."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.address = server.address

    def close(self) -> None:
        self.server.close()


def connect(link: DriverLink, server: Server | None, call_timeout_s: float) -> Wire:
    """A connection of this link's process. Raises StoreUnreachable."""
    if server is None:
        raise StoreUnreachable("nothing listens there yet (connection refused)")
    if server.full:
        raise StoreUnreachable("the server closed the connection before it answered")
    wire = Wire(link, server, call_timeout_s)
    link.wires = [each for each in link.wires if not each.broken] + [wire]
    most = HOST_CONNECTIONS if link.node.host else PER_NODE
    # Outside of the driver's thread, which would take a violation for an error of its own.
    link.world.at(0.0, link.world.checkers.need, len(link.wires) <= most, FRUGAL, f"{link.node.ident} has too many")
    try:
        wire.greet()
    except StoreUnreachable:
        wire.close()
        raise
    return wire


def _writes_record(requests: list[Request]) -> bool:
    return any(name in ("set", "compare_set") and "/node/" in arguments[0] for name, arguments in requests)


def _states(requests: list[Request]) -> list[NodeState]:
    """Of the records that these requests write."""
    return [codec.decode_node(value).state for key, value in _written(requests).items() if "/node/" in key]


def _written(requests: list[Request]) -> dict[str, bytes]:
    return {arguments[0]: arguments[-1] for name, arguments in requests if name in ("set", "compare_set")}
