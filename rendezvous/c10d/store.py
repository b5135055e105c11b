"""The store on a torch TCPStore that the agent of one node serves (`server.py`); all agents use `client.py`.

`keys.py` lists the keys; `notifications.py` records which nodes have published. Any host that reaches the port can
write to the store.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress

from ...proto.frozen import dataclass
from ..endpoint import Address, Endpoint, parse_endpoint
from ..store import NO_BEAT, HostedLeadership, Join, StoreFenced, StoreForeign, StoreUnreachable
from .claim import PortTaken, claim, gave_up, several_hosts, taken_here
from .client import HandshakeTimeout, TcpStoreClient, connect, connect_any
from .descriptors import DescriptorWatch
from .keys import (
    MAX_COUNT,
    MAX_NODE_ID_BYTES,
    SERVED,
    Keys,
    checked_count,
    checked_log,
    create_keys,
    excerpt,
    foreign_count,
    host_count,
    mark_served,
    parse_count,
    verify,
)
from .notifications import MAX_READ_AT_ONCE, Compaction, GapGrace, Published, read_published_records
from .server import TorchServer, serve

CALL_TIMEOUT_S = 10.0
"""How long one request may take. The server answers in microseconds unless its node hangs."""
ATTEMPT_S = 5.0
"""How long one attempt to connect may take; more than `client.HANDSHAKE_S`."""
KEEP_VERSIONS = 64
"""Announced versions kept. Readers ask for the newest only; the others make repeated announcements idempotent."""
RETRY_FIRST_S = 0.05
RETRY_MOST_S = 0.5
"""Pause between attempts to connect; grows by half each time, from the first to the most."""


class C10dStore(HostedLeadership):
    """One session with the store of one job; implements `Store`. Made by `open_c10d`.

    Announced versions must follow each other without gaps; after a gap a reader notices only when its time has passed.
    """

    def __init__(
        self,
        client: TcpStoreClient,
        endpoint: Endpoint,
        keys: Keys,
        address: Address,
        server: TorchServer | None,
        token: bytes,
        made_from: C10dStore | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        """Use `open_c10d`. `client`: connected; `token`: identifies the server; `server`: set if this process serves.
        `made_from`: the session from which this one is made; `warn`: called with warnings about the server."""
        self._client = client
        self._endpoint = endpoint
        self._where = str(endpoint)
        """The endpoint in messages."""
        self._keys = keys
        self._address = address
        self._server = server
        self._token = token
        self._published: Published = made_from._published if made_from else Published()
        self._compaction: Compaction = made_from._compaction if made_from else Compaction()
        self._gap_grace = GapGrace()
        self._descriptors: DescriptorWatch = (
            made_from._descriptors if made_from else DescriptorWatch(warn or (lambda _: None))
        )
        # These counters only grow; one that went back was written by another program.
        self._log_seen = (0, 0)
        self._newest_version_seen = 0
        self._newest_received = -1
        """Of the announcements that this session has read."""
        self._host_count = NO_BEAT

    @property
    def hosted(self) -> bool:
        return self._server is not None

    @property
    def outlives_jobs(self) -> bool:
        return False

    @property
    def endpoint(self) -> Endpoint:
        """Where the store is served; with the actual port if 0 was given."""
        return self._endpoint

    def parts(self) -> tuple[TcpStoreClient, Address, TorchServer | None, bytes]:
        """Of what this session is made: for another kind of session with the same server."""
        return self._client, self._address, self._server, self._token

    def session(self) -> C10dStore:
        """As `Store.session`, at the same address, without name resolution. Also raises StoreForeign if the server was
        restarted in the meantime, and has lost the job's records."""
        limit_s = self._client.call_timeout_s
        client = connect(self._address, self._where, limit_s, limit_s)
        try:
            verify(client, self._where, self._keys, 0.0, self._token)
        except BaseException:
            client.close()
            raise
        return C10dStore(client, self._endpoint, self._keys, self._address, self._server, self._token, self)

    def close(self) -> None:
        """As `Store.close`: a call that blocks raises StoreUnreachable."""
        self._client.close()

    def close_host(self) -> None:
        """As `Store.close_host`: every session breaks and the port is free. Idempotent."""
        self.close()
        if self._server is not None:
            self._server.close()

    def write_job(self, value: bytes, over: bytes = b"") -> bytes:
        there = b"" if over else self._client.said.pop(self._keys.job, b"")
        stored = there or self._client.compare_set(self._keys.job, over, value)
        # For a key that does not exist, the server answers with `over`.
        return self._client.get([self._keys.job]).get(self._keys.job, b"") if over and stored == over else stored

    def use_incarnation(self, number: int) -> None:
        if number == self._keys.incarnation:
            return
        self._keys = self._keys.for_incarnation(number)
        self._published, self._compaction = Published(), Compaction()
        self._log_seen = (0, 0)
        self._newest_version_seen = 0
        self._newest_received = -1
        for counter in self._keys.counters:
            # Not create, which would set a counter again that others have incremented.
            self._client.compare_set(counter, b"", b"0")

    def publish_node(self, node: str, value: bytes) -> None:
        node_id = node.encode("utf-8")
        if not 0 < len(node_id) <= MAX_NODE_ID_BYTES:
            raise ValueError(f"node id {node[:40]!r} has {len(node_id)} bytes; it must have 1 to {MAX_NODE_ID_BYTES}")
        self._published.publish(self._client, self._where, self._keys, node, value)

    def beat(self, node: str, count: int) -> int:
        # The log's counters too: if another program overwrites them, this node notices as soon as the host does, and
        # ends as well. And this node's own record, over which late bytes of an abandoned connection may have written.
        where, keys = self._where, self._keys
        own = self._published.keys_to_check(keys, node)
        for key in (keys.beat(node), *((keys.host_beat,) if self.hosted else ())):
            self._client.put_later(key, str(count).encode("ascii"))
        found = self._client.get([*keys.counters, keys.host_beat, *own])
        head, compacted = self._log_seen
        self._log_seen = checked_log(where, keys, found, max(head, self._published.number), compacted)
        self._newest_version_seen = checked_count(where, keys.round_head, found, MAX_COUNT, self._newest_version_seen)
        self._host_count = host_count(found.get(keys.host_beat))
        if own:
            self._published.restore(self._client, where, keys, node, found, self._log_seen[1])
        return self._newest_version_seen

    @property
    def host_count(self) -> int | None:
        return self._host_count

    @property
    def newest_record(self) -> int | None:
        return self._log_seen[0]

    def wait_round(self, after: int, timeout_s: float) -> tuple[int, bytes] | None:
        deadline = time.monotonic() + timeout_s
        newest, value, asked = after, b"", after + 1  # where the newest is known to be another, that is asked for
        if after != self._newest_received:
            asked = max(asked, int(self._client.said.pop(self._keys.round_head, b"0")))
            newest, value = self._newest_round(asked)
        # Else the next one has hardly been announced already; if so, and deleted again, the wait ends in vain first.
        if newest <= after:
            announced = self._client.wait(self._keys.round(asked), deadline - time.monotonic())
            head, value = self._newest_round(asked)
            newest = max(head, after + announced)
            if newest <= after:
                return None
        while True:
            if newest != asked or not value:
                key = self._keys.round(newest)
                value = self._client.get([key]).get(key, b"")
            if value:
                self._newest_received = newest
                return newest, value
            # Else newer ones were announced, and this one deleted.
            tried, newest = newest, max(newest, self._count(self._keys.round_head))
            if tried == newest:
                raise foreign_count(self._where, self._keys.round_head, str(newest).encode("ascii"), newest - 1)

    def _newest_round(self, following: int) -> tuple[int, bytes]:
        """The newest announced version, and what is announced as the version `following`: mostly the same."""
        key, head = self._keys.round(following), self._keys.round_head
        found = self._client.get([head, key])
        return checked_count(self._where, head, found, MAX_COUNT), found.get(key, b"")

    def wait_nodes(self, cursor: int, timeout_s: float) -> tuple[int, Mapping[str, bytes]]:
        deadline = time.monotonic() + timeout_s
        if self._server is not None:
            # What the caller passes on was read in an earlier call, up to its cursor.
            self._compaction.run(self._client, self._where, self._keys, cursor)
            self._descriptors.check()
        while True:
            head, compacted = self._log()
            if head <= cursor:
                self._client.wait(self._keys.notification(cursor + 1), deadline - time.monotonic())
                head, compacted = self._log()
            upto = max(cursor, min(head, max(cursor, compacted) + MAX_READ_AT_ONCE))
            upto, fresh = read_published_records(self._client, self._keys, cursor, upto, compacted, self._gap_grace)
            if self._server is None and self._log()[1] > max(cursor, compacted):
                continue  # the host has compacted what was to be read
            if fresh or time.monotonic() >= deadline:
                return upto, fresh
            cursor = upto  # these were void, or written by other programs

    def read_beats(self, nodes: Sequence[str]) -> Mapping[str, int]:
        keys = {self._keys.beat(node): node for node in nodes}
        beats = {keys[key]: parse_count(value) for key, value in self._client.get(list(keys)).items()}
        return {node: count for node, count in beats.items() if count is not None}

    def announce(self, version: int, value: bytes, epoch: int) -> None:
        newest = self._count(self._keys.round_head)
        key = self._keys.round(version)
        stored = self._client.create(key, value) if version > newest else self._client.get([key]).get(key)
        if stored != value:
            raise StoreFenced(
                f"{self._endpoint}: version {version} is taken: key {key} holds {excerpt(stored)} (newest: {newest}); "
                "another coordinator or another program writes to this store: restart the job on another port"
            )
        if version > newest:
            self._advance_round_head(newest, version)
            first = max(newest - KEEP_VERSIONS, 0) + 1
            self._client.delete([self._keys.round(old) for old in range(first, version - KEEP_VERSIONS + 1)])

    def write_value(self, name: str, value: bytes, *, over: bool = False) -> bool:
        if over:
            self._client.put(self._keys.value(name), value)
        return over or self._client.create(self._keys.value(name), value) == value

    def wait_values(self, names: Sequence[str], timeout_s: float) -> Mapping[str, bytes]:
        deadline = time.monotonic() + timeout_s
        all(self._client.wait(self._keys.value(name), max(0.0, deadline - time.monotonic())) for name in names)
        return self.read_values(names)

    def write_values(self, values: Mapping[str, bytes]) -> None:
        self._client.put_all({self._keys.value(name): value for name, value in values.items()})

    def read_values(self, names: Sequence[str]) -> Mapping[str, bytes]:
        keys = {self._keys.value(name): name for name in names}
        return {keys[key]: value for key, value in self._client.get(list(keys)).items() if value}

    def delete_values(self, names: Sequence[str]) -> None:
        self._client.delete([self._keys.value(name) for name in names])

    def _advance_round_head(self, newest: int, version: int) -> None:
        key, before, after = self._keys.round_head, str(newest).encode("ascii"), str(version).encode("ascii")
        stored = self._client.compare_set(key, before, after)  # not put: that might arrive late, and go back
        if stored != after:
            raise foreign_count(self._where, key, stored, version, newest)

    def _count(self, key: str) -> int:
        return checked_count(self._where, key, self._client.get([key]), MAX_COUNT)

    def _log(self) -> tuple[int, int]:
        """The numbers of notifications begun, and of those compacted."""
        where, keys = self._where, self._keys
        head, compacted = checked_log(where, keys, self._client.get([keys.log_head, keys.log_compacted]))
        if self._server is not None:
            self._compaction.verify(where, keys, compacted)
        return head, compacted


@dataclass(frozen=True, slots=True)
class Hosting:
    """What the process that serves a store needs beside its endpoint."""

    shared: bool = False
    """Nodes on other hosts may join: a loopback endpoint is served on all addresses of this host."""
    warn: Callable[[str], None] = lambda _: None
    """Called with lines about what endangers the server."""


DEFAULT_HOSTING = Hosting()
Reach = Callable[[Endpoint, str, float, float, Join | None], C10dStore]
"""As `_reach`."""


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
    hosting: Hosting = DEFAULT_HOSTING,
    reach: Reach | None = None,
) -> C10dStore:
    """The store of job `run_id` at `endpoint` (HOST:PORT; port 29400 if none), hosted here if HOST is this node.

    is_host: True hosts whatever HOST resolves to, False never hosts, None hosts if the endpoint can be bound.
    connect_timeout_s: how long to wait for another node to serve the store. on_wait: called once, with one line, when
    the first attempt has failed. cancelled: ends the wait, with StoreUnreachable. join: called with the store, on the
    host before others are let in; its errors end the opening, but for StoreUnreachable. hosting: what matters only if
    this process serves. reach: makes one attempt to reach a store that another serves. Raises ValueError for a wrong
    endpoint; StoreUnreachable if the store was not served in time; StoreForeign if the server is not a TCPStore, or
    serves no job or another one; StoreError if it cannot be hosted here as asked.
    """
    where, reach = parse_endpoint(endpoint), reach or _reach
    stop, pause_s, deadline = cancelled or threading.Event(), RETRY_FIRST_S, time.monotonic() + connect_timeout_s
    while True:
        try:
            return _attempt(where, run_id, is_host, deadline - time.monotonic(), call_timeout_s, join, hosting, reach)
        except PortTaken:
            # If another agent of this run id has it, an error of `join` says more than the port.
            with suppress(StoreForeign, StoreUnreachable):
                reach(where, run_id, ATTEMPT_S, call_timeout_s, join).close()
            raise
        except HandshakeTimeout as why:
            raise StoreForeign(str(why)) from why
        except StoreUnreachable as why:
            reason = str(why)
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise gave_up(where, connect_timeout_s, reason)
        if on_wait is not None:
            on_wait(f"waiting for {where}: {reason}; giving up in {left_s:.0f} s")
            on_wait = None
        if stop.wait(min(pause_s, left_s)):
            raise StoreUnreachable(f"this node was asked to stop while it waited for the store at {where}; {reason}")
        pause_s = min(pause_s * 1.5, RETRY_MOST_S)


def _attempt(
    where: Endpoint, run_id: str, is_host: bool | None, left_s: float, call_timeout_s: float, join: Join | None,
    hosting: Hosting, reach: Reach,
) -> C10dStore:  # fmt: skip
    """Made each time: the name may resolve only later, and a port that was taken may become free."""
    hosted = "" if is_host is False else _host(where, run_id, is_host is True, call_timeout_s, join, hosting)
    if isinstance(hosted, C10dStore):
        return hosted
    try:
        return reach(where, run_id, left_s, call_timeout_s, join)
    except StoreUnreachable as why:
        if not hosted or isinstance(why, HandshakeTimeout):
            raise
        raise StoreUnreachable(f"{why}; {hosted}") from why


def _host(
    where: Endpoint, run_id: str, forced: bool, call_timeout_s: float, join: Join | None, hosting: Hosting
) -> C10dStore | str:
    """The store, served by this process; else by which process of this node it is to be served, for messages, and empty
    if another node is to serve it."""
    made = claim(where, forced=forced, shared=hosting.shared)
    server = None if made.socket is None else serve(made.socket, where, forced=forced)
    if server is None:
        return taken_here(where) if made.taken or made.socket is not None else ""
    if made.elsewhere and hosting.shared and not forced:
        hosting.warn(several_hosts(where, made))
    with ExitStack() as undo:
        undo.callback(server.close)
        actual, keys = Endpoint(where.host, server.address[1][1]), Keys(run_id)
        client = connect(server.address, str(actual), call_timeout_s, call_timeout_s)
        undo.callback(client.close)
        token = create_keys(client, keys)
        store = C10dStore(client, actual, keys, server.address, server, token, warn=hosting.warn)
        if join is not None:
            join(store)
        mark_served(client, keys)
        undo.pop_all()
    return store


def _reach(where: Endpoint, run_id: str, timeout_s: float, call_timeout_s: float, join: Join | None) -> C10dStore:
    """The store, served by another process. One attempt; raises as `client.connect_any`, `keys.verify` and `join`."""
    if where.port == 0:
        raise ValueError(f"endpoint {where}: port 0 is for the node that hosts; give the port that the host serves")
    timeout_s = max(min(timeout_s, ATTEMPT_S), 0.1)
    (client, address), keys = connect_any(where, timeout_s, call_timeout_s, SERVED), Keys(run_id)
    try:
        store = C10dStore(client, where, keys, address, None, verify(client, str(where), keys, timeout_s))
        if join is not None:
            join(store)
    except BaseException:
        client.close()
        raise
    return store
