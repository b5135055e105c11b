"""A session with the store of a job whose --rdzv-endpoint names one node, and how such a store is opened.

`one_endpoint.py` says where the store may be. A node that begins a job at the endpoint does so in torch's server; one
that is told there that its job goes on elsewhere (`StoreElsewhere`) opens the store once more, and serves the pointer.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress

from ...proto.frozen import dataclass
from ..endpoint import Address, Endpoint, parse_endpoint, resolve
from ..store import FIRST_EPOCH, Join, StoreError, StoreForeign, StoreReplaced, StoreUnreachable
from .claim import claim, port_taken
from .client import TcpStoreClient, connect, connect_any
from .keys import SERVED, create_keys, excerpt, mark_served, verify
from .listed import NO_HOST, Pointer, Reserve, Server, read_pointer
from .moving import STAYS_S, TELL_MOST_S, Home, MovingStore, Place
from .one_endpoint import OneEndpoint, elsewhere, unreachable
from .opening import ATTEMPT_S, RETRY_FIRST_S, RETRY_MOST_S, Hosting, open_c10d
from .store import CALL_TIMEOUT_S, C10dStore

TELL_FIRST_S = 0.05
"""From one attempt to tell the server at the endpoint to the next; doubles to `TELL_MOST_S`."""
PROBE_S, PROBES = 1, 3
"""How often the kernel asks whether its other end is still there. A host that has booted waits `quiet`, 3 s by default,
before it begins a job of its own."""


class AddressedHome(Home):
    """The place of the store, and whether its job has begun."""

    def __init__(self, listed: OneEndpoint, place: Place, warn: Callable[[str], None], told: list[Pointer]) -> None:
        """`told`: gets the pointer to the job that goes on in the place of this one."""
        super().__init__(listed, place, warn)
        self.one, self._told = listed, told
        listed.newest = place.pointer
        self.begun = place.pointer.epoch > FIRST_EPOCH
        """Whether a round has begun. Known where this node hosts; a job that has a second host has begun."""
        self._telling: TcpStoreClient | None = None
        self._warned = False
        """Where a host was looked for in vain was said."""

    def connect(self, limit_s: float, newest: int = 0) -> tuple[TcpStoreClient, Place]:
        found = super().connect(limit_s, newest)
        self.one.lost_at, self._warned = None, False
        return found

    def _follow(self, last: Place) -> Place | None:
        if self.one.lost_at is None:
            self.one.lost_at = time.monotonic()
        return super()._follow(last)

    def _lost(self, place: Place, error: StoreError) -> StoreError:
        if (replaced := self.one.replaced) is not None:
            return replaced
        foreign = isinstance(error, StoreForeign) and not isinstance(error, StoreReplaced)
        if foreign and self.one.is_late:  # till then another node may follow, while a stranger has the port
            return error
        reason = f"{place.endpoint}: {error}{self.one.asked}"
        if place.pointer.epoch > FIRST_EPOCH:
            reason = unreachable(place.pointer.endpoint, error)
        if self.one.is_late and not self._warned and (self.one.asked or place.pointer.epoch > FIRST_EPOCH):
            self._warned = True
            self.warn(reason)
        return StoreUnreachable(reason)

    def _move(self, place: Place) -> None:
        self.one.newest = place.pointer
        super()._move(place)
        self._tell_anew()

    def host(self, epoch: int, node: str, job: bytes, announced: tuple[int, bytes], at: str) -> None:
        self.one.serve(at)
        super().host(epoch, node, job, announced, at)
        self.one.newest, self.begun = self.place.pointer, True
        self._tell_anew()

    # -- the server of this node, while it hosts ----------------------------------------------------------------------

    def found(self, client: TcpStoreClient) -> None:
        """The first round is about to begin: from now on who comes from another job finds this one. Raises
        StoreElsewhere if that came first."""
        if self.begun or self.place.server is None:
            return
        mine = self.place.pointer.encode()
        self.heed(client.compare_set(self.one.keys.pointer, b"", mine))
        self.begun = True

    def heed(self, written: bytes) -> None:
        """What stands as the pointer in the server of this node. Raises StoreElsewhere if the job goes on elsewhere:
        StoreOutvoted if this node hosted it."""
        if not written or written == self.place.pointer.encode():
            return
        there = read_pointer(written)
        if there is None:
            raise StoreForeign(
                f"{self.place.endpoint}: key {self.one.keys.pointer} holds {excerpt(written)}; another program writes "
                "to this store: restart the job on another port"
            )
        if there.job != self.place.pointer.job and not self.begun:
            self._told[:] = [there]
            raise elsewhere(self.place.endpoint, there)
        self._told[:] = [there]
        super().heed(written)
        self._told.clear()

    # -- the server at the endpoint, while this node is a member ------------------------------------------------------

    def tell(self) -> None:
        """Tell what serves at the endpoint who hosts the job, now and whenever that changes, or it is another server,
        until `close`. Raises StoreReplaced if another job has begun there."""
        pause_s = TELL_FIRST_S
        while not self._closing.is_set():
            if self.one.own != self.one.first_endpoint and self._tell_once():
                pause_s = TELL_FIRST_S
            if (replaced := self.one.replaced) is not None:
                raise replaced
            self._closing.wait(pause_s)
            pause_s = min(2 * pause_s, TELL_MOST_S)

    def _tell_once(self) -> bool:
        """Whether a server was told. Returns once its connection ends, or there is something else to tell."""
        self.one.replaced = None
        with suppress(StoreError):
            client, _ = connect_any(self.one.first_endpoint, ATTEMPT_S, CALL_TIMEOUT_S)
            with closing(client):
                client.probe(PROBE_S, PROBES)
                told, there = self.one.newest, self.one.tell(client)
                if told is None or there is None or there.job != told.job:
                    return False
                self._telling = client
                if told is not self.one.newest or self._closing.is_set():
                    return True
                with suppress(StoreError):
                    client.wait(self.one.keys.gone, STAYS_S)
                return True
        return False

    def _tell_anew(self) -> None:
        if (telling := self._telling) is not None:
            telling.close()

    def close(self) -> None:
        """End `tell` as well."""
        super().close()
        self._tell_anew()


class AddressedStore(MovingStore):
    """One session with the store, made by `open_addressed`. A later one may be with another host."""

    home: AddressedHome

    def session(self) -> AddressedStore:
        client, place = self.home.connect(self._client.call_timeout_s, self._newest_version_seen)
        return AddressedStore(client, self.home, place)

    @property
    def reserved(self) -> str:
        return self.home.one.reserved

    def expect(self, places: tuple[str, ...]) -> None:
        """Other members of the last round could host at these endpoints."""
        self.home.one.expect(places)

    def tell(self) -> None:
        """As `AddressedHome.tell`."""
        self.home.tell()

    def found(self) -> None:
        """Before the first round begins. Raises StoreElsewhere if the job of this run id goes on elsewhere."""
        self.home.found(self._client)


@dataclass(frozen=True, slots=True)
class Opening:
    """What opening such a store takes beside the endpoint."""

    node: str
    """This agent."""
    start: Reserve
    """Starts the small server."""
    told: list[Pointer]
    """Kept from one opening of this agent to the next: where the job goes on, if this node was told."""
    is_host: bool | None
    connect_timeout_s: float
    cancelled: threading.Event
    join: Join
    on_wait: Callable[[str], None] | None
    hosting: Hosting
    """These as with `open_c10d`."""


def open_addressed(listed: OneEndpoint, run_id: str, opening: Opening) -> AddressedStore:
    """The store of this job, hosted here if HOST is this node and the job goes on nowhere else. What it raises, as with
    `open_c10d`."""
    try:
        if opening.told and (back := _returned(listed, opening)) is not None:
            return back
        guests: list[AddressedStore] = []

        def reach(where: Endpoint, _: str, timeout_s: float, call_timeout_s: float, join: Join | None) -> C10dStore:
            guests[:] = [_reach(listed, opening, max(min(timeout_s, ATTEMPT_S), 0.1))]
            return guests[0]

        made = open_c10d(
            str(listed.first_endpoint),
            run_id,
            is_host=opening.is_host,
            connect_timeout_s=opening.connect_timeout_s,
            on_wait=opening.on_wait,
            cancelled=opening.cancelled,
            join=opening.join,
            hosting=opening.hosting,
            reach=reach,
        )
        if guests:
            listed.reserve(opening.start)
            return guests[0]
        return _hosted(listed, opening, made)
    except BaseException:
        listed.close()
        raise


def _hosted(listed: OneEndpoint, opening: Opening, made: C10dStore) -> AddressedStore:
    """The session of the node that begins a job in this store, which it hosts."""
    client, address, server, token = made.parts()
    listed.server, listed.own = server, listed.first_endpoint
    pointer = Pointer(FIRST_EPOCH, opening.node, str(listed.first_endpoint), token.decode("ascii"))
    place = Place(pointer, address, token, server)
    return AddressedStore(client, AddressedHome(listed, place, opening.hosting.warn, opening.told), place)


def _reach(listed: OneEndpoint, opening: Opening, timeout_s: float) -> AddressedStore:
    """The store, served by another process: at the endpoint, or where the server there points to. One attempt."""
    where = listed.first_endpoint
    client, address = connect_any(where, timeout_s, CALL_TIMEOUT_S, SERVED)
    try:
        served, there = (True, None) if client.has_asked else _read(listed, client)
        if not served and there is None and not client.wait(SERVED, timeout_s):
            served, there = _read(listed, client)
        if there is None or served:
            return _joined(listed, opening, where, address, client)
    except BaseException:
        client.close()
        raise
    client.close()
    return _followed(listed, opening, there)


def _read(listed: OneEndpoint, client: TcpStoreClient) -> tuple[bool, Pointer | None]:
    """Whether this server serves a job, and the pointer in it."""
    served, points = client.have([SERVED, listed.keys.pointer])
    found = client.get([listed.keys.pointer]) if points else {}
    return served, read_pointer(found.get(listed.keys.pointer, b""))


def _followed(listed: OneEndpoint, opening: Opening, there: Pointer) -> AddressedStore:
    """The store to which this pointer points."""
    if there.endpoint == str(listed.first_endpoint):
        raise StoreUnreachable(NO_HOST)
    last: StoreError = StoreUnreachable("it has no address")
    for address in resolve(parse_endpoint(there.endpoint)):
        try:
            client = connect(address, there.endpoint, ATTEMPT_S, CALL_TIMEOUT_S, SERVED)
            try:
                return _joined(listed, opening, parse_endpoint(there.endpoint), address, client)
            except BaseException:
                client.close()
                raise
        except (StoreUnreachable, StoreForeign) as error:
            last = error  # foreign: another process has the port of a host that is gone
    raise StoreUnreachable(unreachable(there.endpoint, last)) from last


def _joined(
    listed: OneEndpoint, opening: Opening, where: Endpoint, address: Address, client: TcpStoreClient
) -> AddressedStore:
    """The store that the server at the other end of this connection serves."""
    token = verify(client, str(where), listed.keys, ATTEMPT_S)
    there = read_pointer(client.said.get(listed.keys.pointer, b""))
    own = token.decode("ascii", "replace")
    if there is None:  # no round has begun
        there = Pointer(FIRST_EPOCH, "", str(where), own)
    elif there.job != own and not _is_at(address, there):
        raise StoreUnreachable(f"{where} is about to leave its own job for the one at {there.endpoint}")
    place = Place(Pointer(there.epoch, there.node, str(where), there.job), address, token)
    store = AddressedStore(client, AddressedHome(listed, place, opening.hosting.warn, opening.told), place)
    opening.join(store)
    listed.point(place.pointer)
    return store


def _is_at(address: Address, there: Pointer) -> bool:
    """Whether the server that this points to is the one at this address."""
    with suppress(StoreError):
        return address in resolve(parse_endpoint(there.endpoint))
    return False


# -- the node of the endpoint, back while its job goes on elsewhere ---------------------------------------------------


def _returned(listed: OneEndpoint, opening: Opening) -> AddressedStore | None:
    """Serve the pointer that this node was told, and join the job there. Begins a job where no host has followed in
    time. None: another node, or agent on this host, has the endpoint, and no host is where this one was told."""
    where, told_at = listed.first_endpoint, time.monotonic()
    server = _reserved(where, opening)
    if server is None:
        try:
            store = _followed(listed, opening, opening.told[0])
        except StoreUnreachable:
            opening.told.clear()
            return None
        listed.reserve(opening.start)
        return store
    listed.server, listed.own = server, where
    listed.point(opening.told[0])
    waits_s, pause_s = max(opening.connect_timeout_s, listed.hopes_s), RETRY_FIRST_S
    while True:
        is_last = time.monotonic() >= told_at + waits_s  # asked first: the last look begins a job
        with closing(listed.client()) as client:
            there = _read(listed, client)[1] or opening.told[0]
            late = there.endpoint == str(where) and time.monotonic() >= told_at + listed.hopes_s
            if late and (begun := _begun(listed, opening, client, listed.server, there)) is not None:
                return begun
        try:
            return _followed(listed, opening, there)
        except StoreUnreachable as error:
            reason = str(error)
        if is_last:
            raise StoreUnreachable(f"gave up on the job at {where} after {waits_s:g} s: {reason}")
        if opening.cancelled.wait(pause_s):
            raise StoreUnreachable(f"this node was asked to stop while it waited for the job at {where}; {reason}")
        pause_s = min(pause_s * 1.5, RETRY_MOST_S)


def _reserved(where: Endpoint, opening: Opening) -> Server | None:
    """The small server of this node at the endpoint. None: another node, or agent on this host, has it. Raises OSError
    if this process has too few descriptors left."""
    bound = claim(where, forced=opening.is_host is True, shared=opening.hosting.shared).socket
    if bound is None:
        return None
    try:
        return opening.start(bound)
    except OSError as error:
        bound.close()
        if error.errno != errno.EADDRINUSE:
            raise
        if opening.is_host is True:
            raise port_taken(where) from error
        return None


def _begun(
    listed: OneEndpoint, opening: Opening, client: TcpStoreClient, server: Server, told: Pointer
) -> AddressedStore | None:
    """The store of a new job, in the small server: nobody hosts the one that this node was told of. None: somebody
    does, as the server holds another pointer by now."""
    keys = listed.keys
    token = create_keys(client, keys)
    pointer = Pointer(FIRST_EPOCH, opening.node, str(listed.own), token.decode("ascii"))
    if client.compare_set(keys.pointer, told.encode(), pointer.encode()) != pointer.encode():
        return None
    session = connect(server.address, str(listed.own), CALL_TIMEOUT_S, CALL_TIMEOUT_S)
    place = Place(pointer, server.address, token, server)
    home = AddressedHome(listed, place, opening.hosting.warn, opening.told)
    home.begun = True
    store = AddressedStore(session, home, place)
    opening.join(store)
    mark_served(session, keys)
    return store
