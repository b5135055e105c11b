"""Leader election in etcd: the node that creates the leader key, on its own lease, coordinates. The revision that
created the key is the epoch of its term."""

from __future__ import annotations

import time

from .client import EtcdClient
from .errors import EtcdCompacted, EtcdWatchLost
from .keys import EtcdKeys
from .leases import Leases
from .ops import Compare, Found, Item, Outcome, Put, Read, is_absent


class Election:
    """The election of one incarnation, for one session. Deadlines are in `time.monotonic` seconds."""

    def __init__(self, client: EtcdClient, leases: Leases, keys: EtcdKeys) -> None:
        self._client = client
        self._leases = leases
        self._keys = keys
        self._key = keys.leader

    def is_term(self, epoch: int) -> Compare:
        """The condition that the term with this epoch has not ended."""
        return Compare(self._key, "create_revision", "=", epoch)

    def campaign(self, node: str, deadline: float, seen: Found | None = None) -> int | None:
        """Block until the node leads; returns the epoch of its term. None at the deadline. `seen`: what was found at
        the leader key before; read here if it is not given."""
        me = node.encode("utf-8", "surrogateescape")

        def claim() -> tuple[Outcome, int]:
            lease = self._leases.node(self._client, node)
            puts = [Put(self._key, me, lease), Put(self._keys.live(node), b"", lease)]
            return self._client.txn([is_absent(self._key)], puts, [Read(self._key)], repeatable=True), lease

        while True:
            # Read first: servers write a transaction with puts to their disks also if its compares fail.
            leaders, seen = seen or self._client.read(Read(self._key)), None
            lease = self._leases.node(self._client, node)
            if not leaders.items:
                done, lease = self._leases.with_leases(node, claim)
                if done.succeeded:
                    return done.revision
                leaders = done.found[0]
            for leader in leaders.items:
                # This node's id on another lease is an earlier term of it, which ends when that lease expires.
                if (leader.value, leader.lease) == (me, lease):
                    return leader.create_revision
                if not self._wait_deleted(leader.create_revision, leaders.revision, deadline):
                    return None

    def wait_term_over(self, epoch: int, deadline: float) -> bool:
        """Block until the term with this epoch has ended; False at the deadline."""
        found = self._client.read(Read(self._key))
        return not _has_epoch(found.items, epoch) or self._wait_deleted(epoch, found.revision, deadline)

    def _wait_deleted(self, epoch: int, revision: int, deadline: float) -> bool:
        """As `wait_term_over`, for a term that had not ended at this revision."""
        while time.monotonic() < deadline:
            watch = self._client.watch(self._key, start_revision=revision + 1)
            try:
                while changes := watch.wait(max(0.0, deadline - time.monotonic())):
                    if any(change.deleted for change in changes):
                        return True
            except (EtcdWatchLost, EtcdCompacted):
                found = self._client.read(Read(self._key))
                if not _has_epoch(found.items, epoch):
                    return True
                revision = found.revision
            finally:
                watch.close()
        return False


def _has_epoch(items: tuple[Item, ...], epoch: int) -> bool:
    return bool(items) and items[0].create_revision == epoch
