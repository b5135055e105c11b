"""A node's heartbeat in etcd: it renews the node's lease, and now and then verifies the node-live/ key."""

from __future__ import annotations

import time
from collections.abc import Sequence

from .client import EtcdClient
from .keys import EtcdKeys
from .leases import Leases
from .ops import Compare, Put, Read
from .watch_cache import parse_version

CONFIRM_FRACTION = 0.25
"""Fraction of the job's `lease` for which a node must have been without a lease in etcd before it counts as lost. A
server that led, was stopped and resumes revokes leases that were renewed elsewhere meanwhile (seen with etcd 3.5.1); a
live node has a new one at its next heartbeat."""


class Keepalive:
    """The heartbeats of one agent, shared by its sessions. A renewal proves that the lease exists, and its keys are
    deleted only with it; so the key is verified only when the lease is a new one or a whole lease has passed."""

    def __init__(self, leases: Leases, verify_every_s: float) -> None:
        self._leases = leases
        self._verify_every_s = verify_every_s
        self._verified: dict[str, tuple[int, float]] = {}
        """Node to the lease on which its key was verified, and when."""
        self._unleased_since: dict[str, float] = {}
        """Nodes that had no lease at the last call of `alive`, and since when."""
        self._newest: int | None = None
        """The newest version that any session has received; None: no session waits for announcements."""
        self._found: int | None = None
        """The newest version, if it was read since the last heartbeat."""
        self.announced = 0
        """The newest version that was read beside the node's key."""

    def alive(self, nodes: Sequence[str], leased: set[str]) -> dict[str, int]:
        """Those of `nodes` that are alive, given the ones that have a lease now: a node without one stays alive for
        CONFIRM_FRACTION more. The values are all 0."""
        now, confirm_s = time.monotonic(), CONFIRM_FRACTION * self._verify_every_s
        self._unleased_since = {node: self._unleased_since.get(node, now) for node in nodes if node not in leased}
        return {node: 0 for node in nodes if node in leased or now < self._unleased_since[node] + confirm_s}

    def update_newest(self, version: int) -> None:
        """A session waits for announcements; `version` is the newest that it has received."""
        self._newest = max(version, self._newest or 0)

    def has_key(self, node: str, lease: int) -> bool:
        """Whether the node's key was last found, or written, with this lease."""
        return self._verified.get(node, (0, 0.0))[0] == lease

    def published(self, node: str, lease: int, version: int) -> None:
        """The node's key was found, or written, with this lease, while `version` was the newest."""
        self._verified[node] = lease, time.monotonic()
        self._found = self.announced = version

    def forget_key(self, node: str) -> None:
        """The node's key may be gone: the next record is written with it."""
        self._verified.pop(node, None)

    def renew(self, client: EtcdClient, keys: EtcdKeys, node: str) -> int:
        """Renew the node's lease, and the job's when due; returns the newest version known. Raises EtcdLeaseGone if the
        node's lease has expired."""
        lease, now = self._leases.renew(client, node), time.monotonic()
        self._leases.job(client)
        on, at = self._verified.get(node, (0, 0.0))
        known = [version for version in (self._newest, self._found) if version is not None]
        self._found = None
        if known and on == lease and now < at + self._verify_every_s:
            return max(known)
        # A transaction that only reads first: it passes under the no space alarm, and leaves no line in the server's
        # log. The key is written only where it is missing.
        live, newest = keys.live(node), Read(keys.newest_round)
        done = client.txn([Compare(live, "lease", "=", lease)], [newest], [newest], repeatable=True)
        if not done.succeeded:
            done = client.txn([], [newest, Put(live, b"", lease)], repeatable=True)
        self._verified[node] = lease, now
        items = done.found[0].items
        return parse_version(keys, items[0].value) if items else 0
