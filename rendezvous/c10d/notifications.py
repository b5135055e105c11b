"""Which nodes have published, in a TCPStore: a numbered list of node ids, so that one wait covers all nodes.

A notification takes two steps: take a number (`add` on log/head), create the entry with that number. A writer that
exits between them leaves a gap. A reader fills it with VOID after `GAP_GRACE_S`, and a writer that was only slow finds
its entry void and takes another number. So no notification is lost, and no reader waits for a writer that is gone. With
each heartbeat a node checks that its latest notification is still there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from .client import TcpStoreClient
from .keys import MAX_NOTIFICATIONS, VOID, Keys, foreign_count, node_ids

MAX_READ_AT_ONCE = 4096
"""Notifications that one call reads; the next call reads on."""
GAP_GRACE_S = 0.2
"""How long a reader waits for entries whose number is taken; the two steps are microseconds apart."""


class LatestNotification:
    """The latest notification of this node. The store accepts writes from every host on the network, so another program
    may overwrite the entry before the coordinator reads it."""

    def __init__(self) -> None:
        self._node_id = b""
        self._key = ""
        self._number = 0

    def publish(self, client: TcpStoreClient, where: str, keys: Keys, node_id: bytes) -> None:
        """Add a notification. Raises StoreForeign if log/head is not a count, is too large or went back: an entry whose
        number was read already is never read again."""
        while True:
            last = self._number
            number = client.add(keys.log_head, 1)
            if not last < number <= MAX_NOTIFICATIONS:
                raise foreign_count(where, keys.log_head, str(number).encode("ascii"), MAX_NOTIFICATIONS, last + 1)
            if client.create(keys.notification(number), node_id) == node_id:
                self._node_id, self._key, self._number = node_id, keys.notification(number), number
                return

    def keys_to_check(self, node_id: bytes) -> list[str]:
        """The key of this node's latest notification; empty if it has published none."""
        return [self._key] if node_id == self._node_id else []

    def restore(self, client: TcpStoreClient, where: str, keys: Keys, found: Mapping[str, bytes]) -> None:
        """Publish again if the value found at `keys_to_check` is not this node's id. Raises as `publish`."""
        if found.get(self._key) != self._node_id:
            self.publish(client, where, keys, self._node_id)


def read_published_records(client: TcpStoreClient, keys: Keys, cursor: int, upto: int) -> dict[str, bytes]:
    """The records of the nodes that the notifications `cursor + 1` to `upto` name, by node."""
    notifications = _read_notifications(client, keys, cursor, upto)
    found = _read_records(client, keys, node_ids(notifications))
    if {VOID, *(node.encode("utf-8") for node in found)}.issuperset(notifications):
        return found
    # Another program overwrote one, so its node is unknown: it may be any node that published before.
    return _read_records(
        client, keys, node_ids(_read_notifications(client, keys, max(upto - MAX_READ_AT_ONCE, 0), upto))
    )


def _read_notifications(client: TcpStoreClient, keys: Keys, cursor: int, upto: int) -> list[bytes]:
    """The entries `cursor + 1` to `upto`; those not written within `GAP_GRACE_S` are made void."""
    names = [keys.notification(number) for number in range(cursor + 1, upto + 1)]
    deadline = time.monotonic() + GAP_GRACE_S
    for name, written in zip(names, client.have(names), strict=True):
        if not written and not client.wait(name, deadline - time.monotonic()):
            client.create(name, VOID)  # create, not put: an entry written in the meantime stays
    return list(client.get(names).values())


def _read_records(client: TcpStoreClient, keys: Keys, nodes: Sequence[str]) -> dict[str, bytes]:
    names = {keys.node(node): node for node in nodes}
    return {names[name]: value for name, value in client.get(list(names)).items()}
