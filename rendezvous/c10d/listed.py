"""The endpoints of a job whose store several nodes may host, one after the other (docs/adr/0049).

Each node that has the address of one listens there from its start, with a small server that holds the pointer: who
hosts the store, in which epoch, and where. So whoever knows the list finds the job, and the node whose agent hosted
the store and died, when it is back, finds that the job goes on. It also holds the list itself: of two nodes that each
come first in their own, neither begins a job beside the other's.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import Protocol, TypeVar

from ...proto.frozen import dataclass
from ..endpoint import Address, Endpoint, parse_endpoint, resolve
from ..store import StoreError, StoreUnreachable
from .claim import claim
from .client import Refused, TcpStoreClient, connect
from .keys import SERVED, Keys
from .store import CALL_TIMEOUT_S

LOOK_S = 1.0
"""How long the server at one endpoint may take to answer."""
MAX_POINTER_BYTES, MAX_LIST_BYTES = 1024, 1024
NO_HOST = "the job's host is gone, and no other node hosts it yet"

Answer = TypeVar("Answer")


class Server(Protocol):
    """A TCPStore server in this process."""

    address: Address
    """At which this process connects to it."""

    def close(self) -> None: ...


Reserve = Callable[[socket.socket], Server]
"""Starts an empty server on a bound socket. Raises OSError if another process listens on its port."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """Who hosts the store."""

    epoch: int
    node: str
    endpoint: str
    """As the list gives it."""
    job: str = "-"
    """Of which job of its run id; "-" where the list tells."""

    def encode(self) -> bytes:
        return f"{self.epoch} {self.node} {self.endpoint} {self.job}".encode()


def read_pointer(value: bytes) -> Pointer | None:
    """The pointer in these bytes; None if another program wrote them."""
    try:
        epoch, node, endpoint, job = value[:MAX_POINTER_BYTES].decode("utf-8").split(" ")
        parse_endpoint(endpoint)
        return Pointer(int(epoch), node, endpoint, job)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Found:
    """What the servers at the endpoints say."""

    hosted: Pointer | None
    """The store that is served, in the greatest epoch."""
    address: Address | None
    """Of its server."""
    exists: bool
    """Some node is in the job, whether its store is served now or not."""
    silent: str = ""
    """An endpoint that gave no answer, not even that nothing listens there; empty: there is none."""
    differs: str = ""
    """Of a node that was given another first endpoint: where it is, and its list, for people; empty: there is none."""


class Listed:
    """The endpoints of one job, and this node's server at one of them."""

    def __init__(self, endpoints: Sequence[Endpoint], keys: Keys) -> None:
        self.endpoints = tuple(endpoints)
        self.keys = keys
        self.own: Endpoint | None = None
        """Where this node could host the store; None: nowhere."""
        self.server: Server | None = None
        self.silent: Endpoint | None = None
        """Where the host was silent for a lease: the next one is looked for elsewhere."""

    def reserve(self, start: Reserve) -> None:
        """Listen at the first endpoint that this node has and no other process has taken. Tried again each time, as its
        name may resolve only later."""
        if self.server is not None:
            return
        for endpoint in self.endpoints:
            with suppress(StoreError):  # a name that does not resolve yet, or a port that is forbidden: not this node's
                bound = claim(endpoint, shared=True).socket
                if bound is None:
                    continue
                try:
                    self.server = start(bound)
                except OSError:  # another agent on this host was faster
                    bound.close()
                    continue
                self.own = endpoint
                with closing(self.client()) as client:
                    client.put(self.keys.list, self.text.encode())
                return

    @property
    def text(self) -> str:
        """As given to this node."""
        return ",".join(map(str, self.endpoints))

    @property
    def first(self) -> bool:
        """Whether this node hosts the store of a job that has not begun."""
        return self.own is not None and self.own == self.endpoints[0]

    def point(self, pointer: Pointer) -> None:
        """Answer who looks for the job with this."""
        if self.server is not None:
            client = self.client()
            client.put(self.keys.pointer, pointer.encode())
            client.close()

    def client(self) -> TcpStoreClient:
        """Of this node's own server."""
        if self.server is None:
            raise StoreError("this node has none of the endpoints")
        return connect(self.server.address, str(self.own), CALL_TIMEOUT_S, CALL_TIMEOUT_S)

    def look(self, after: int = 0) -> Found:
        """Ask at all other endpoints. `after`: only stores of a greater epoch count as hosted."""
        return self.look_at([endpoint for endpoint in self.endpoints if endpoint != self.silent], after)

    def look_at(self, endpoints: Sequence[Endpoint], after: int) -> Found:
        """The same, at these of them."""
        hosted, address, exists, silent, differs = None, None, False, "", ""
        for endpoint in endpoints:
            if endpoint == self.own:
                continue
            try:
                answer = first_answer(endpoint, self._asked)
            except StoreUnreachable:
                silent = silent or str(endpoint)
                continue
            if answer is None:
                continue
            at, pointer, served, given = answer
            exists = exists or pointer is not None
            if given and given.partition(b",")[0] != str(self.endpoints[0]).encode():
                differs = f"{endpoint} has {given.decode('utf-8', 'replace')}"
            if pointer is None or not served or pointer.endpoint != str(endpoint) or pointer.epoch <= after:
                continue
            if hosted is None or pointer.epoch > hosted.epoch:
                hosted, address = pointer, at
        return Found(hosted, address, exists, silent, differs)

    def _asked(self, client: TcpStoreClient, address: Address) -> tuple[Address, Pointer | None, bool, bytes]:
        """What this server holds: the pointer, whether it serves the job, and the list of its node."""
        found = client.get([SERVED, self.keys.pointer, self.keys.list])
        pointer, served = read_pointer(found.get(self.keys.pointer, b"")), found.get(SERVED) == self.keys.served
        return address, pointer, served, found.get(self.keys.list, b"")[:MAX_LIST_BYTES]

    def close(self) -> None:
        """Free the port. Idempotent."""
        if self.server is not None:
            self.server.close()


def first_answer(endpoint: Endpoint, ask: Callable[[TcpStoreClient, Address], Answer]) -> Answer | None:
    """What `ask` returns of the server at the first of this endpoint's addresses where it raises no StoreError. None:
    nothing listens there, or another program. Raises StoreUnreachable where one of the addresses is silent, as those of
    a host that is frozen or cut off are."""
    addresses: list[Address] = []
    with suppress(StoreUnreachable):  # a name that does not resolve, as that of a pod that has not begun
        addresses = resolve(endpoint)
    silent: StoreUnreachable | None = None
    for address in addresses:
        try:
            with closing(connect(address, str(endpoint), LOOK_S, LOOK_S)) as client:
                return ask(client, address)
        except Refused:
            continue  # nothing listens there
        except StoreUnreachable as why:
            silent = silent or why
        except StoreError:
            continue  # another program does
    if silent is not None:
        raise silent
    return None
