"""A store on torch's TCPStore, which one node serves from its agent (`server.py`) and all reach by `client.py`.

`keys.py` lists the keys, `notifications.py` has who published, and both are open to whoever reaches the port.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress

from ..endpoint import Address, Endpoint, parse_endpoint, resolve
from ..store import HostLeads, Join, StoreFenced, StoreForeign, StoreUnreachable
from .claim import PortTaken, claim
from .client import StoreSilent, Wire, connect
from .keys import (
    MAX_COUNT,
    MAX_NODE_ID_BYTES,
    MAX_NOTES,
    Keys,
    check,
    count_in,
    count_of,
    foreign_count,
    invite,
    lay_out,
    shown,
)
from .notifications import AT_ONCE, Notice, records_told_of
from .server import TorchServer, serve

CALL_TIMEOUT_S = 10.0
"""How long one request may take; the server answers in microseconds unless its node hangs."""
ATTEMPT_S = 5.0
"""How long one attempt to connect may take; more than `wire.HANDSHAKE_S`."""
KEEP_VERSIONS = 64
"""Announced versions kept. A reader only ever asks for the newest; the rest serve idempotent repeats."""
RETRY_FIRST_S = 0.05
RETRY_MOST_S = 0.5
"""Pause between attempts to connect; grows by half each time."""


class C10dStore(HostLeads):
    """One session with the store of one job; implements `Store`. Made by `open_c10d`.

    Versions announced must follow each other without gaps, or waiters notice only when their time has passed.
    """

    def __init__(
        self,
        wire: Wire,
        endpoint: Endpoint,
        keys: Keys,
        address: Address,
        server: TorchServer | None,
        token: bytes,
        notice: Notice | None = None,
    ) -> None:
        """Use `open_c10d`. `wire` is connected; `token` is of its server's life, `server` it if it is this process.
        `notice`: of another session that this one goes on from."""
        self._wire = wire
        self._endpoint = endpoint
        self._keys = keys
        self._address = address
        self._server = server
        self._token = token
        self._notice = notice or Notice()
        # Both only ever grow; one that went back was written by somebody else.
        self._notes_seen = self._newest_seen = 0

    @property
    def hosted(self) -> bool:
        return self._server is not None

    @property
    def outlives_jobs(self) -> bool:
        return False

    @property
    def endpoint(self) -> Endpoint:
        """Where the store is; with the port that was found if 0 was asked for."""
        return self._endpoint

    def session(self) -> C10dStore:
        """As `Store.session`. Goes where this one went, with no look-up of names.
        Raises StoreForeign also if the server was restarted since, and so has lost the job's records."""
        limit_s = self._wire.call_timeout_s
        wire = connect(self._address, str(self._endpoint), limit_s, limit_s)
        try:
            check(wire, str(self._endpoint), self._keys, 0.0, self._token)
        except BaseException:
            wire.close()
            raise
        return C10dStore(wire, self._endpoint, self._keys, self._address, self._server, self._token, self._notice)

    def close(self) -> None:
        """As `Store.close`. May come from another thread: a call that blocks then raises StoreUnreachable."""
        self._wire.close()

    def close_host(self) -> None:
        """Stop serving, if this process does: every session breaks and the port is free. Idempotent."""
        self.close()
        if self._server is not None:
            self._server.close()

    def write_job(self, value: bytes, over: bytes = b"") -> bytes:
        holds = self._wire.swap(self._keys.job, over, value)
        # A key that is not there is answered with what was expected of it.
        return self._wire.get([self._keys.job]).get(self._keys.job, b"") if over and holds == over else holds

    def use_incarnation(self, number: int) -> None:
        if number == self._keys.incarnation:
            return
        self._keys = self._keys.of(number)
        self._notice = Notice()
        self._notes_seen = self._newest_seen = 0
        for counter in (self._keys.log_head, self._keys.round_head):
            self._wire.swap(counter, b"", b"0")  # not create, which sets again what others may have counted up by then

    def publish_node(self, node: str, value: bytes) -> None:
        name = node.encode("utf-8")
        if not 0 < len(name) <= MAX_NODE_ID_BYTES:
            raise ValueError(f"node id {node[:40]!r} has {len(name)} bytes; it must have 1 to {MAX_NODE_ID_BYTES}")
        self._wire.put_later(self._keys.node(node), value)
        self._notice.give(self._wire, str(self._endpoint), self._keys, name)

    def beat(self, node: str, count: int) -> int:
        # Also the counter that this node does not need now: whoever spoils it ends the job here as soon as on the host.
        where, keys = str(self._endpoint), self._keys
        told = self._notice.key_of(node.encode("utf-8"))
        self._wire.put_later(keys.beat(node), str(count).encode("ascii"))
        found = self._wire.get([keys.log_head, keys.round_head, *told])
        self._notes_seen = count_of(where, keys.log_head, found, MAX_NOTES, self._notes_seen)
        self._newest_seen = count_of(where, keys.round_head, found, MAX_COUNT, self._newest_seen)
        if told:
            self._notice.repair(self._wire, where, keys, found)
        return self._newest_seen

    def wait_round(self, after: int, timeout_s: float) -> tuple[int, bytes] | None:
        deadline = time.monotonic() + timeout_s
        while True:
            newest = self._count(self._keys.round_head)
            if newest <= after:
                arrived = self._wire.wait(self._keys.round(after + 1), deadline - time.monotonic())
                newest = max(self._count(self._keys.round_head), after + arrived)
                if newest <= after:
                    return None
            key = self._keys.round(newest)
            value = self._wire.get([key]).get(key)
            if value is not None:
                return newest, value
            if self._count(self._keys.round_head) == newest:  # else it was deleted, far behind a newer one
                raise foreign_count(str(self._endpoint), self._keys.round_head, str(newest).encode("ascii"), newest - 1)

    def wait_nodes(self, cursor: int, timeout_s: float) -> tuple[int, Mapping[str, bytes]]:
        deadline = time.monotonic() + timeout_s
        while True:
            head = self._count(self._keys.log_head, MAX_NOTES)
            if head <= cursor:
                self._wire.wait(self._keys.note(cursor + 1), deadline - time.monotonic())
                head = self._count(self._keys.log_head, MAX_NOTES)
            upto = max(cursor, min(head, cursor + AT_ONCE))
            fresh = records_told_of(self._wire, self._keys, cursor, upto)
            if fresh or time.monotonic() >= deadline:
                return upto, fresh
            cursor = upto  # only void notifications, or strangers'

    def read_beats(self, nodes: Sequence[str]) -> Mapping[str, int]:
        keys = {self._keys.beat(node): node for node in nodes}
        beats = {keys[key]: count_in(value) for key, value in self._wire.get(list(keys)).items()}
        return {node: count for node, count in beats.items() if count is not None}

    def announce(self, version: int, value: bytes, epoch: int) -> None:
        newest = self._count(self._keys.round_head)
        key = self._keys.round(version)
        holds = self._wire.create(key, value) if version > newest else self._wire.get([key]).get(key)
        if holds != value:
            raise StoreFenced(
                f"{self._endpoint}: version {version} is taken: key {key} holds {shown(holds)} (newest: {newest}); "
                "another coordinator, or somebody else, writes to this store: start the job anew on another port"
            )
        if version > newest:
            self._wire.put(self._keys.round_head, str(version).encode("ascii"))
            first = max(newest - KEEP_VERSIONS, 0) + 1
            self._wire.delete([self._keys.round(old) for old in range(first, version - KEEP_VERSIONS + 1)])

    def _count(self, key: str, most: int = MAX_COUNT) -> int:
        return count_of(str(self._endpoint), key, self._wire.get([key]), most)


def open_c10d(
    endpoint: str,
    run_id: str,
    *,
    is_host: bool | None = None,
    connect_timeout_s: float = 60.0,
    call_timeout_s: float = CALL_TIMEOUT_S,
    on_wait: Callable[[str], None] | None = None,
    cancelled: threading.Event | None = None,
    join: Join | None = None,
) -> C10dStore:
    """The store of job `run_id` at `endpoint` (HOST:PORT; port 29400 if none), hosted here if HOST is this node.

    is_host: True hosts whatever HOST resolves to, False never hosts, None finds out by binding.
    connect_timeout_s: how long to wait for somebody to serve it. on_wait: called once, with one line, if it comes to
    that. cancelled: set it, and the wait ends with StoreUnreachable. join: called with the store, on the host before
    others are let in; what it raises ends the opening, but for StoreUnreachable, after which it is tried anew.

    Raises ValueError for a malformed endpoint; StoreUnreachable if nobody served it in time; StoreForeign if what
    answers is no TCPStore, or serves no job or another; StoreError if it cannot be hosted here as asked.
    """
    where = parse_endpoint(endpoint)
    stop, pause_s = cancelled or threading.Event(), RETRY_FIRST_S
    deadline = time.monotonic() + connect_timeout_s
    while True:
        try:
            # Tried anew each time: the name may resolve only later, a port that was taken may be free again.
            store = None if is_host is False else _host(where, run_id, is_host is True, call_timeout_s, join)
            return store or _reach(where, run_id, deadline - time.monotonic(), call_timeout_s, join)
        except PortTaken:
            # By a job of this run id, perhaps, which then says more than the port does.
            with suppress(StoreForeign, StoreUnreachable):
                _reach(where, run_id, ATTEMPT_S, call_timeout_s, join).close()
            raise
        except StoreSilent as why:
            raise StoreForeign(str(why)) from why
        except StoreUnreachable as why:
            reason = str(why)
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise StoreUnreachable(
                f"gave up on the store at {where} after {connect_timeout_s:g} s: {reason}; check that "
                "elastic-agent runs on that node and that --rdzv-endpoint names it"
            )
        if on_wait is not None:
            on_wait(f"waiting for {where}: {reason}; giving up in {left_s:.0f} s")
            on_wait = None
        if stop.wait(min(pause_s, left_s)):
            raise StoreUnreachable(f"stopped waiting for the store at {where} on request; last: {reason}")
        pause_s = min(pause_s * 1.5, RETRY_MOST_S)


def _host(where: Endpoint, run_id: str, forced: bool, call_timeout_s: float, join: Join | None) -> C10dStore | None:
    """The store, served from here; None if that is another process's part."""
    bound = claim(where, forced=forced).socket
    server = None if bound is None else serve(bound, where, forced=forced)
    if server is None:
        return None
    with ExitStack() as undo:
        undo.callback(server.close)
        here, keys = Endpoint(where.host, server.address[1][1]), Keys(run_id)
        wire = connect(server.address, str(here), call_timeout_s, call_timeout_s)
        undo.callback(wire.close)
        store = C10dStore(wire, here, keys, server.address, server, lay_out(wire, keys))
        if join is not None:
            join(store)
        invite(wire, keys)
        undo.pop_all()
    return store


def _reach(where: Endpoint, run_id: str, timeout_s: float, call_timeout_s: float, join: Join | None) -> C10dStore:
    """The store, served elsewhere. One attempt; raises as `client.connect`, `keys.check` and `join`."""
    if where.port == 0:
        raise ValueError(f"endpoint {where}: port 0 means that this node hosts; give the port that the host serves")
    timeout_s = max(min(timeout_s, ATTEMPT_S), 0.1)
    unreachable = StoreUnreachable(f"{where.host} has no address")
    for address in resolve(where):
        try:
            wire = connect(address, str(where), timeout_s, call_timeout_s)
        except StoreSilent:
            raise
        except StoreUnreachable as why:
            unreachable = why
            continue
        keys = Keys(run_id)
        try:
            store = C10dStore(wire, where, keys, address, None, check(wire, str(where), keys, timeout_s))
            if join is not None:
                join(store)
        except BaseException:
            wire.close()
            raise
        return store
    raise unreachable
