"""How a node says in etcd that it lives: each time it renews its lease, and now and then it looks whether what hangs on
the lease is there."""

from __future__ import annotations

import time
from collections.abc import Sequence

from .client import EtcdClient
from .keys import EtcdKeys
from .leases import Leases
from .ops import Compare, Put, Read
from .watch_cache import newest_of

CONFIRMED = 0.25
"""Part of the time for which a node may be silent, for which it must have been without a lease to count as gone. A
server that led, was stopped and goes on revokes leases that were renewed elsewhere meanwhile (seen with etcd 3.5.1); a
node that lives has another one at its next heartbeat."""


class Life:
    """What all sessions of one agent share of it. A renewal tells that the lease holds, and what hangs on it goes only
    with it; so a look is due when the lease is another, or as long ago as a lease lasts."""

    def __init__(self, leases: Leases, look_every_s: float) -> None:
        self._leases = leases
        self._look_every_s = look_every_s
        self._looked_at: dict[str, tuple[int, float]] = {}
        """Node to the lease on which it was seen to live, and when."""
        self._gone: dict[str, float] = {}
        """Nodes that had no lease when we looked last, and since when."""
        self._newest: int | None = None
        """The newest version that any session heard of; None: none listens."""

    def alive(self, nodes: Sequence[str], living: set[str]) -> dict[str, int]:
        """Of these nodes those that live, given those that have a lease now."""
        now, late_s = time.monotonic(), CONFIRMED * self._look_every_s
        self._gone = {node: self._gone.get(node, now) for node in nodes if node not in living}
        return {node: 0 for node in nodes if node in living or now < self._gone[node] + late_s}

    def heard(self, version: int) -> None:
        """A session listens, and this is the newest version that it knows."""
        self._newest = max(version, self._newest or 0)

    def sign(self, client: EtcdClient, keys: EtcdKeys, node: str) -> int:
        """Say that the node lives; returns the newest version known. Raises EtcdLeaseGone if its lease has run out."""
        lease, now = self._leases.renew(client, node), time.monotonic()
        self._leases.job(client)
        on, at = self._looked_at.get(node, (0, 0.0))
        if self._newest is not None and on == lease and now < at + self._look_every_s:
            return self._newest
        # What cannot write is answered without a word in the servers' log, and where space has run out.
        live, newest = keys.live(node), Read(keys.newest)
        done = client.txn([Compare(live, "lease", "=", lease)], [newest], [newest], repeatable=True)
        if not done.succeeded:
            done = client.txn([], [newest, Put(live, b"", lease)], repeatable=True)
        self._looked_at[node] = lease, now
        items = done.found[0].items
        return newest_of(keys, items[0].value) if items else 0
