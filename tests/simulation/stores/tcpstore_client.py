"""A model of `c10d.client.TcpStoreClient`: what a connection to the modelled TCPStore sends, awaits and loses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from elastic_agent.rendezvous.c10d.descriptors import PER_NODE
from elastic_agent.rendezvous.store import StoreUnreachable

from ..checks.invariants import FRUGAL
from .tcpstore import Request, Server, writes, writes_record
from .threads import TIMEOUT, Ticket, current

if TYPE_CHECKING:
    from .driver_link import DriverLink

RESET_S = 0.001
"""Until a client receives the reset of its connection, after the server ended."""
HOST_CONNECTIONS = 4
"""Of the host to its own store: its writer, watcher, reader and announcer."""


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
        self.has_asked, self.said = False, dict[str, bytes]()
        self._broken = ""
        self._dead = False
        """A message was lost on the way: so are all later ones on this connection."""
        self._queued: list[Request] = []
        self._ticket: Ticket | None = None
        self._sent_at = self._answered_at = 0.0

    @property
    def broken(self) -> bool:
        return bool(self._broken)

    def greet(self, asks: str, reads: Sequence[str]) -> None:
        """The first request, of one kind or the other. Raises StoreUnreachable."""
        if self.server.gone:
            raise StoreUnreachable("nothing listens there (connection refused)")
        if reads:
            self.said = self.get(reads)
        else:
            self.has_asked = self.have([asks] if asks else []) == [True]

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

    def enter(self, key: str, value: bytes) -> bytes:
        # In two messages, so that anything may happen between what the server takes one behind the other.
        holds: bytes = self._ask("compare_set", key, b"", value)
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
        if (link.losing and link.loses("request")) or (
            world.conditions.late_bytes is not None and self._delays(requests)
        ):
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
        if not writes_record(requests):
            return False
        written = writes(requests)
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
        elif self._broken and self.world.conditions.late_bytes is not None:
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


def connect(
    link: DriverLink, server: Server | None, call_timeout_s: float, asks: str = "", reads: Sequence[str] = ()
) -> Wire:
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
        wire.greet(asks, reads)
    except StoreUnreachable:
        wire.close()
        raise
    return wire
