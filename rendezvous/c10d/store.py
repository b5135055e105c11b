"""The store on a torch TCPStore that the agent of one node serves (`server.py`); all agents use `client.py`.

`keys.py` lists the keys; `notifications.py` records which nodes have published. Any host that reaches the port can
write to the store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from ..endpoint import Address, Endpoint
from ..store import NO_BEAT, HostedLeadership, StoreFenced
from .client import TcpStoreClient
from .descriptors import DescriptorWatch
from .keys import (
    MAX_COUNT,
    MAX_NODE_ID_BYTES,
    Keys,
    checked_count,
    checked_log,
    connect_again,
    excerpt,
    foreign_count,
    host_count,
    mark_over,
    parse_count,
)
from .notifications import MAX_READ_AT_ONCE, Compaction, GapGrace, Published, read_published_records
from .server import TorchServer

CALL_TIMEOUT_S = 10.0
"""How long one request may take. The server answers in microseconds unless its node hangs."""
KEEP_VERSIONS = 64
"""Announced versions kept. Readers ask for the newest only; the others make repeated announcements idempotent."""


class C10dStore(HostedLeadership):
    """One session with the store of one job; implements `Store`. Made by `opening.open_c10d`.

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
        limit_s, newest = self._client.call_timeout_s, self._newest_version_seen
        client = connect_again(self._address, self._where, self._keys, self._token, limit_s, newest)
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
            said = self._client.said.pop(self._keys.round_head, b"")
            newest = max(after, int(said or b"0"))
            asked = max(asked, newest)
            value = self._client.said.pop(self._keys.round(asked), value)
            if not said or (newest > after and not value):
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

    def announce_end(self, version: int, value: bytes, epoch: int, job: bytes, over: bytes) -> bool:
        mark_over(self._client)  # first: a node that has received the announcement may begin the next job at once
        return super().announce_end(version, value, epoch, job, over)

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
