"""A session with a store that another node may host next: it finds the job where that is hosted by then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ...proto.frozen import dataclass, field
from ..endpoint import Address, Endpoint, parse_endpoint, resolve
from ..store import (
    FIRST_EPOCH,
    JobMismatch,
    Join,
    StoreError,
    StoreForeign,
    StoreOutvoted,
    StoreSpoiled,
    StoreUnreachable,
)
from .client import TcpStoreClient, connect
from .keys import SERVED, connect_again, create_keys, mark_served, verify
from .listed import NO_HOST, Listed, Pointer, Reserve, Server, first_answer, read_pointer
from .notifications import Compaction, Published
from .opening import RETRY_FIRST_S, RETRY_MOST_S
from .store import CALL_TIMEOUT_S, C10dStore

TELL_MOST_S = 1.0
"""From one attempt to tell a server who hosts to the next, at most."""
STAYS_S = 24 * 3600.0
"""Length of one wait for something that may never come."""
SILENT_S = 0.5
"""How long a host that was silent for a lease may take to answer, each time that no other one was found."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the store is hosted. Another host is another place."""

    pointer: Pointer
    address: Address
    token: bytes
    server: Server | None = None
    """Set if this process serves it."""
    published: Published = field(default_factory=Published)
    compaction: Compaction = field(default_factory=Compaction)

    @property
    def endpoint(self) -> Endpoint:
        return parse_endpoint(self.pointer.endpoint)


class Home:
    """The place of the store, for all sessions of this node. For any thread."""

    def __init__(self, listed: Listed, place: Place, warn: Callable[[str], None]) -> None:
        self.listed, self.place, self.warn = listed, place, warn
        self.on_moved: Callable[[Pointer], None] = lambda _: None
        """Called when this node has found another host."""
        self._looking = threading.Lock()
        """Held while one thread asks at all endpoints, which may take seconds."""
        self._lock = threading.Lock()
        """Held while the place changes."""
        self._given_up = False
        self._old: set[Endpoint] = set()
        """Where others hosted before, and may still believe that they do."""
        self._news = threading.Event()
        self._closing = threading.Event()

    def connect(self, limit_s: float, newest: int = 0) -> tuple[TcpStoreClient, Place]:
        """A connection to the store, wherever it is hosted; `newest` as with `keys.connect_again`. Raises
        StoreUnreachable, and StoreSpoiled: it is the job's own server that answers so, and the host ends as well."""
        if self.listed.silent is not None and self.place.server is None:
            self._look_around(self.place)
        found = self._connect(limit_s, newest)
        self.listed.silent = None
        return found

    def _connect(self, limit_s: float, newest: int) -> tuple[TcpStoreClient, Place]:
        place = self.place
        try:
            return self._at(place, limit_s, newest), place
        except (StoreUnreachable, StoreForeign) as error:
            # A server without the job, or with another one, is that of a node that was restarted.
            if place.server is not None or isinstance(error, StoreSpoiled):
                raise
            found = self._follow(place)
            if found is None:
                raise self._lost(place, error) from error
        return self._at(found, limit_s, newest), found

    def _at(self, place: Place, limit_s: float, newest: int) -> TcpStoreClient:
        return connect_again(place.address, place.pointer.endpoint, self.listed.keys, place.token, limit_s, newest)

    def suspect(self, given_up: bool) -> None:
        """As `driver.movable.Movable.suspect`."""
        self.listed.silent, self._given_up = self.place.endpoint, given_up

    def _look_around(self, silent: Place) -> None:
        """Find the host behind this one, or that this one answers after all. Raises StoreUnreachable."""
        if self._follow(silent) is None:
            if self._given_up:
                raise self._lost(silent, StoreUnreachable("it was silent for a lease, and another node is to host"))
            try:
                connect(silent.address, silent.pointer.endpoint, SILENT_S, SILENT_S).close()
            except StoreUnreachable as error:
                raise self._lost(silent, error) from error

    def _lost(self, place: Place, error: StoreError) -> StoreError:
        """What to raise where this place has no store of the job, and no other one was found."""
        return StoreUnreachable(f"{place.endpoint}: {error}")

    def _follow(self, last: Place) -> Place | None:
        """The place after this one, if there is one by now."""
        with self._looking:
            if self.place is last:
                found = self.listed.look(last.pointer.epoch)
                if found.hosted is None or found.address is None or self.place is not last:
                    return None if self.place is last else self.place
                place = Place(found.hosted, found.address, b"", published=last.published.elsewhere())
                client = connect(found.address, found.hosted.endpoint, CALL_TIMEOUT_S, CALL_TIMEOUT_S)
                try:
                    token = verify(client, found.hosted.endpoint, self.listed.keys, 0.0)
                finally:
                    client.close()
                with self._lock:
                    if self.place is last:  # else this node hosts by now
                        self._move(Place(place.pointer, place.address, token, None, place.published, place.compaction))
            return self.place

    def _move(self, place: Place) -> None:
        self._succeed(self.place)
        self.listed.point(place.pointer)
        self.on_moved(place.pointer)  # before any session is at the new host, and reads what it announces
        self.place = place

    def host(self, epoch: int, node: str, job: bytes, announced: tuple[int, bytes], at: str) -> None:
        """Serve the store here from now on, in this epoch. `announced`: the newest announcement, and its version; `at`:
        where others reach it, if this node has none of the endpoints."""
        version, value = announced
        keys, listed = self.listed.keys, self.listed
        if listed.server is None:
            raise StoreError("this node was elected to host the store, and has none of the endpoints")
        pointer = Pointer(epoch, node, str(listed.own), self.place.pointer.job)
        client = listed.client()
        token = create_keys(client, keys)
        client.put_all(
            {
                keys.job: job,
                keys.round(version): value,
                keys.round_head: str(version).encode("ascii"),
                keys.pointer: pointer.encode(),
            }
        )
        mark_served(client, keys)
        client.close()
        with self._lock:
            self._succeed(self.place)
            published = self.place.published.elsewhere()
            self.place = Place(pointer, listed.server.address, token, listed.server, published)

    # -- the hosts before, which may live -----------------------------------------------------------------------------

    def _succeed(self, old: Place) -> None:
        self._old.add(old.endpoint)
        self._news.set()

    def tell_old(self) -> None:
        """As `driver.movable.Movable.tell_old`."""
        while not self._closing.is_set():
            self._news.wait(TELL_MOST_S if self._old else STAYS_S)
            self._news.clear()
            for endpoint in tuple(self._old):
                if self._knows(endpoint):
                    self._old.discard(endpoint)

    def _knows(self, endpoint: Endpoint) -> bool:
        """Tell the server there, if there is one. Whether it knows, or nobody is there who would."""
        mine, key = self.place.pointer, self.listed.keys.pointer

        def tell(client: TcpStoreClient, _: Address) -> bool:
            there = read_pointer(client.get([key]).get(key, b""))
            if there is None or there.job != mine.job or there.epoch >= mine.epoch:
                return True
            client.compare_set(key, there.encode(), mine.encode())
            return False

        if endpoint in (self.listed.own, self.place.endpoint):
            return True
        try:
            return first_answer(endpoint, tell) is not False
        except StoreUnreachable:
            return False

    def heed(self, written: bytes) -> None:
        """What stands as the pointer in the server of this node, which hosts. Raises StoreOutvoted if another does."""
        there = read_pointer(written)
        if there is not None and there.job == self.place.pointer.job and there.epoch > self.place.pointer.epoch:
            raise StoreOutvoted(
                f"{there.endpoint} hosts the job now (epoch {there.epoch}), as this node, which hosted it, was silent"
            )

    def close(self) -> None:
        """End `tell_old`."""
        self._closing.set()
        self._news.set()


class MovingStore(C10dStore):
    """One session with the store, made by `open_listed`. A later one may be with another host."""

    def __init__(self, client: TcpStoreClient, home: Home, place: Place) -> None:
        super().__init__(client, place.endpoint, home.listed.keys, place.address, None, place.token, warn=home.warn)
        self.home = home
        self.epoch = place.pointer.epoch
        """Of the host that this session is with."""
        self._published, self._compaction = place.published, place.compaction
        self._server = place.server  # type: ignore[assignment]  # is asked only whether there is one

    @property
    def hosted(self) -> bool:
        return self.home.place.server is not None

    @property
    def endpoint(self) -> Endpoint:
        return self.home.place.endpoint

    def session(self) -> MovingStore:
        client, place = self.home.connect(self._client.call_timeout_s, self._newest_version_seen)
        return MovingStore(client, self.home, place)

    @property
    def reserved(self) -> str:
        """Where this node could host the store; empty: nowhere."""
        return "" if self.home.listed.own is None else str(self.home.listed.own)

    def notify_moves(self, moved: Callable[[str, int], None]) -> None:
        """Call this, from any thread, with each other host that this node finds, and its epoch."""
        self.home.on_moved = lambda pointer: moved(pointer.node, pointer.epoch)

    def host(self, epoch: int, node: str, job: bytes, announced: tuple[int, bytes], at: str = "") -> None:
        """As `driver.movable.Movable.host`."""
        self.home.host(epoch, node, job, announced, at)

    def close_host(self) -> None:
        """Also where another node hosts: who looks for the job gets no answer here any more."""
        self.close()
        self.home.close()
        self.home.listed.close()

    def suspect(self, given_up: bool) -> None:
        """As `driver.movable.Movable.suspect`."""
        self.home.suspect(given_up)

    def tell_old(self) -> None:
        """As `driver.movable.Movable.tell_old`."""
        self.home.tell_old()

    def beat(self, node: str, count: int) -> int:
        self._published.republish(self._client, self._where, self._keys, node)
        newest = super().beat(node, count)
        if self._server is not None:
            key = self._keys.pointer
            self.home.heed(self._client.get([key]).get(key, b""))
        return newest


def open_listed(
    listed: Listed,
    node: str,
    reserve: Reserve,
    *,
    connect_timeout_s: float,
    silence_s: float,
    on_wait: Callable[[str], None] | None,
    cancelled: threading.Event,
    join: Join,
    warn: Callable[[str], None],
) -> MovingStore:
    """The store of the job at these endpoints: that of the node that hosts it; where there is no job yet, hosted here
    if this node has the first of them. `node`: this agent. `silence_s`: for how long a node that does not answer may
    host a job, as one that is frozen for a moment does; then one begins without it. The rest, and what it raises, as
    with `open_c10d`."""
    names = ", ".join(map(str, listed.endpoints))
    began = time.monotonic()
    deadline, pause_s = began + connect_timeout_s, RETRY_FIRST_S
    try:
        while True:
            try:
                found = _attempt(listed, node, reserve, join, warn, min(began + silence_s, deadline))
            except StoreUnreachable as error:
                found = str(error)
            if isinstance(found, MovingStore):
                return found
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise StoreUnreachable(
                    f"gave up on the store at {names} after {connect_timeout_s:g} s: {found or _no_job_yet(listed)}; "
                    "check that elastic-agent runs on these nodes"
                )
            if on_wait is not None and pause_s > RETRY_FIRST_S:
                on_wait(f"waiting for {names}: {found or _no_job_yet(listed)}; giving up in {left_s:.0f} s")
                on_wait = None
            if cancelled.wait(min(pause_s, left_s)):
                raise StoreUnreachable(f"this node was asked to stop while it waited for the store at {names}")
            pause_s = min(pause_s * 1.5, RETRY_MOST_S)
    except BaseException:
        listed.close()
        raise


def _attempt(
    listed: Listed, node: str, reserve: Reserve, join: Join, warn: Callable[[str], None], silent_until: float
) -> MovingStore | str:
    """The store, if a node hosts it, or this one begins the job; else why it does not, yet; empty: it is not the first.
    Raises StoreError."""
    listed.reserve(reserve)
    found = listed.look()
    if found.hosted is not None and found.address is not None:
        return _joined(listed, Place(found.hosted, found.address, b""), join, warn)
    if found.exists:
        return NO_HOST
    if not listed.first:
        return ""
    if found.differs:
        raise JobMismatch(
            f"this node has --rdzv-endpoint {listed.text}, and {found.differs}: each would "
            "begin a job of its own; give all nodes the same list in the same order"
        )
    if found.silent and time.monotonic() < silent_until:
        return f"{found.silent} does not answer, and may host the job"
    return _begun(listed, node, join, warn)


def _no_job_yet(listed: Listed) -> str:
    """Who begins the job, and why that may never happen, for people."""
    first = listed.endpoints[0]
    reason = f"no agent hosts the job yet; {first} begins it"
    try:
        resolve(first)
    except StoreUnreachable as error:
        return f"{reason}, but {error}"
    return reason


def _joined(listed: Listed, found: Place, join: Join, warn: Callable[[str], None]) -> MovingStore:
    keys = listed.keys
    client = connect(found.address, found.pointer.endpoint, CALL_TIMEOUT_S, CALL_TIMEOUT_S, SERVED)
    try:
        token = verify(client, found.pointer.endpoint, keys, CALL_TIMEOUT_S)
        place = Place(found.pointer, found.address, token)
        store = MovingStore(client, Home(listed, place, warn), place)
        join(store)
        listed.point(found.pointer)
    except BaseException:
        client.close()
        raise
    return store


def _begun(listed: Listed, node: str, join: Join, warn: Callable[[str], None]) -> MovingStore:
    """The store of a new job, hosted here."""
    if listed.server is None:
        raise StoreError("this node has none of the endpoints")
    client, keys = listed.client(), listed.keys
    try:
        pointer = Pointer(FIRST_EPOCH, node, str(listed.own))
        token = create_keys(client, keys)
        client.put(keys.pointer, pointer.encode())
        place = Place(pointer, listed.server.address, token, listed.server)
        store = MovingStore(client, Home(listed, place, warn), place)
        join(store)
        mark_served(client, keys)
    except BaseException:
        client.close()
        raise
    return store
