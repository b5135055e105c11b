"""Which nodes have published, in a TCPStore: a numbered list of node ids, so that one wait covers all nodes.

A notification takes two steps: take a number (`add` on log/head), create the entry with that number. A writer that
exits between them leaves a gap. A reader fills it with VOID after a while (`GapGrace`), and a writer that was only
slow finds its entry void and takes another number. So no notification is lost, and no reader waits for a writer that is
gone.

The host deletes what its reader has read, but for the last `KEEP` entries, and keeps the ids of the nodes in other keys
(`Compaction`). A reader that lags behind the deleted part reads the records of all these nodes anew.

Any host on the network may write to the store, and bytes of a connection that was given up may arrive late. So with
each heartbeat a node verifies that its record, and its latest notification unless it was compacted, are still there
(`Published`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile

from .client import TcpStoreClient
from .keys import MAX_UNCOMPACTED, SEPARATOR, VOID, Keys, checked_log, foreign_count, node_ids

MAX_READ_AT_ONCE = 4096
"""Notifications that one call reads; the next call reads on."""
KEEP = 4096
"""Newest notifications that the host does not compact; it compacts as many at once."""
NODES_PER_KEY = 512
"""Node ids in one key: at most 256 KiB, as an id has at most `keys.MAX_NODE_ID_BYTES`."""
GAP_GRACE_S = 0.2
"""How long a reader waits at first for entries whose number is taken; the two steps are one round trip apart."""
GAP_GRACE_MOST_S = 1.6
"""The same after several calls in a row that filled gaps: writers with longer round trips, or starved of a processor,
would find their entries void each time, and publish for ever."""
MOST_SLOW = 1024
"""More gaps at once are no slow writers, one a node: another program has overwritten log/head."""


class Published:
    """What this node published last: its record, and the notification of it. Shared by the sessions of one node, of
    which one publishes."""

    def __init__(self) -> None:
        self._node_id = b""
        self._record = b""
        self._key = ""
        self.number = 0
        """Of the newest notification of this node; `log/head` is never less."""
        self._compacted = 0
        """The newest compacted notification that is known here."""

    def publish(self, client: TcpStoreClient, where: str, keys: Keys, node: str, record: bytes) -> None:
        """Write the node's record, then a notification. Raises StoreForeign if log/head is not a count, is too far
        ahead of what the host has read, or went back: an entry whose number was read already is never read again."""
        self._node_id, self._record = node.encode("utf-8"), record
        client.put_later(keys.node(node), record)
        while True:
            last = self.number
            number = client.add(keys.log_head, 1)
            if number > self._compacted + MAX_UNCOMPACTED:
                self._compacted = checked_log(where, keys, client.get([keys.log_head, keys.log_compacted]))[1]
            if number <= last:
                most = self._compacted + MAX_UNCOMPACTED
                raise foreign_count(where, keys.log_head, str(number).encode("ascii"), most, last + 1)
            # A void entry is replaced: the reader is past it, and a reader that begins anew reads more, not less.
            if client.enter(keys.notification(number), self._node_id) == self._node_id:
                self._key, self.number = keys.notification(number), number
                return

    def elsewhere(self) -> Published:
        """The same record, for the server of another host, which has nothing of this node yet."""
        found = Published()
        found._node_id, found._record = self._node_id, self._record
        return found

    def republish(self, client: TcpStoreClient, where: str, keys: Keys, node: str) -> None:
        """Publish the record if this server never got it."""
        if not self._key and node.encode("utf-8") == self._node_id:
            self.publish(client, where, keys, node, self._record)

    def keys_to_check(self, keys: Keys, node: str) -> list[str]:
        """The keys whose values `restore` needs; empty if this node has published nothing."""
        return [self._key, keys.node(node)] if self._key and node.encode("utf-8") == self._node_id else []

    def restore(
        self, client: TcpStoreClient, where: str, keys: Keys, node: str, found: Mapping[str, bytes], compacted: int
    ) -> None:
        """Publish again if the values found at `keys_to_check` are not what this node wrote. `compacted`: the newest
        compacted notification, as the same request found it. Raises as `publish`."""
        self._compacted = compacted
        notified = found.get(self._key) == self._node_id or self.number <= compacted
        if not notified or found.get(keys.node(node)) != self._record:
            self.publish(client, where, keys, node, self._record)


class Compaction:
    """On the host: deletes notifications that its reader has read. Shared by the sessions of the host, of which one
    reads. A compaction that a broken connection ends is finished by the next call."""

    def __init__(self) -> None:
        self._done = 0
        self._target = 0
        """Notifications up to this one are compacted, or about to be."""
        self._nodes: set[str] = set()
        """The nodes that are in the keys `compacted_nodes`."""
        self._keys_written = 0

    def run(self, client: TcpStoreClient, where: str, keys: Keys, cursor: int) -> None:
        """Compact if there is enough to do. `cursor`: up to which the reader has passed the records on. Raises
        StoreForeign if another program has written where the host alone writes."""
        if self._done == self._target:
            if cursor - self._done < 2 * KEEP:
                return
            self._target = cursor - KEEP
        # First who was notified of, then that the entries do not count any more, and only then they go.
        entries = [keys.notification(number) for number in range(self._done + 1, self._target + 1)]
        self._keep_nodes(client, keys, node_ids(client.get(entries).values()))
        before, after = (str(number).encode("ascii") for number in (self._done, self._target))
        stored = client.compare_set(keys.log_compacted, before, after)  # not put: that might arrive late, and go back
        if stored != after:
            raise foreign_count(where, keys.log_compacted, stored, self._target, self._target)
        client.delete(entries)
        self._done = self._target

    def verify(self, where: str, keys: Keys, compacted: int) -> None:
        """Raises StoreForeign if the store says that more is compacted than this host has compacted: the reader would
        take notifications for read that it has not read."""
        if compacted > self._target:
            value = str(compacted).encode("ascii")
            raise foreign_count(where, keys.log_compacted, value, self._target, self._done)

    def _keep_nodes(self, client: TcpStoreClient, keys: Keys, named: Iterable[str]) -> None:
        fresh = [node for node in named if node not in self._nodes]
        for start in range(0, len(fresh), NODES_PER_KEY):
            part = fresh[start : start + NODES_PER_KEY]
            value = SEPARATOR.join(node.encode("utf-8") for node in part)
            client.put(keys.compacted_nodes(self._keys_written + 1), value)
            self._keys_written += 1
            self._nodes.update(part)


class GapGrace:
    """How long a reader waits for entries whose number is taken, in seconds: twice as long after each call that filled
    gaps, up to `GAP_GRACE_MOST_S`, and again `GAP_GRACE_S` after one that waited for none."""

    def __init__(self) -> None:
        self.s = GAP_GRACE_S

    def filled(self) -> None:
        """A call waited for entries, and then filled gaps."""
        self.s = min(2 * self.s, GAP_GRACE_MOST_S)

    def not_needed(self) -> None:
        """A call found all entries written."""
        self.s = GAP_GRACE_S


def read_published_records(
    client: TcpStoreClient, keys: Keys, cursor: int, upto: int, compacted: int, grace: GapGrace
) -> tuple[int, dict[str, bytes]]:
    """Up to which notification this call has read, `upto` at most, and the records of the nodes that the notifications
    from `cursor + 1` to there name, by node. Those up to `compacted` are gone, so if there are any among them, all
    nodes count that compacted ones named."""
    first = max(cursor, compacted) + 1
    notifications = _read_notifications(client, keys, first, upto, grace)
    upto = max(cursor, first + len(notifications) - 1)
    nodes = node_ids([*_compacted_nodes(client, keys), *notifications] if cursor < compacted else notifications)
    found = _read_records(client, keys, nodes)
    if {VOID, *(node.encode("utf-8") for node in found)}.issuperset(notifications):
        return upto, found
    # Another program overwrote one, so its node is unknown: it may be any node that published before.
    written = client.get([keys.notification(number) for number in range(compacted + 1, upto + 1)])
    return upto, _read_records(client, keys, node_ids([*_compacted_nodes(client, keys), *written.values()]))


def _read_notifications(client: TcpStoreClient, keys: Keys, first: int, upto: int, grace: GapGrace) -> list[bytes]:
    """The entries `first` to `upto`, or those before the first gap. If the first one is a gap, those of all that are
    not written within the grace are made void."""
    names = [keys.notification(number) for number in range(first, upto + 1)]
    deadline = time.monotonic() + grace.s
    found = client.get(names)
    gaps = [name for name in names if name not in found]
    if not gaps:
        if names:
            grace.not_needed()
        return [found[name] for name in names]
    if before := list(takewhile(lambda name: name in found, names)):
        return [found[name] for name in before]  # a slow writer holds up no record that was published before its own
    if not all(client.wait(name, deadline - time.monotonic()) for name in gaps):
        # All at once, as there may be thousands: log/head may have been overwritten. An entry that is written in the
        # meantime stays.
        client.create_each(_missing(client, gaps), VOID)
        if len(gaps) <= MOST_SLOW:
            grace.filled()
    found = client.get(names)
    return [found.get(name, b"") for name in names]  # empty: another program overwrote it


def _missing(client: TcpStoreClient, names: Sequence[str]) -> list[str]:
    return [name for name, written in zip(names, client.have(names), strict=True) if not written]


def _compacted_nodes(client: TcpStoreClient, keys: Keys) -> Iterator[bytes]:
    """The ids of the nodes that compacted notifications named."""
    number = 1
    while value := client.get([name := keys.compacted_nodes(number)]).get(name):
        yield from value.split(SEPARATOR)
        number += 1


def _read_records(client: TcpStoreClient, keys: Keys, nodes: Sequence[str]) -> dict[str, bytes]:
    names = {keys.node(node): node for node in nodes}
    return {names[name]: value for name, value in client.get(list(names)).items()}
