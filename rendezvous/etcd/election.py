"""Who coordinates, in etcd: whoever creates the leader's key, on its node's lease. That revision is the epoch."""

from __future__ import annotations

import time

from .client import EtcdClient
from .errors import EtcdCompacted, EtcdWatchLost
from .keys import EtcdKeys
from .leases import Leases
from .ops import Compare, Item, Outcome, Put, Read, is_absent


class Election:
    """One session's part in it. Deadlines are of `time.monotonic`."""

    def __init__(self, client: EtcdClient, leases: Leases, keys: EtcdKeys) -> None:
        self._client = client
        self._leases = leases
        self._keys = keys
        self._key = keys.leader

    def leads(self, epoch: int) -> Compare:
        """The term with this epoch is not over."""
        return Compare(self._key, "create_revision", "=", epoch)

    def win(self, node: str, deadline: float) -> int | None:
        """Stand until the node leads; the epoch of its term. None at the deadline."""
        me = node.encode("utf-8", "surrogateescape")

        def stand() -> tuple[Outcome, int]:
            lease = self._leases.node(self._client, node)
            puts = [Put(self._key, me, lease), Put(self._keys.live(node), b"", lease)]
            return self._client.txn([is_absent(self._key)], puts, [Read(self._key)], repeatable=True), lease

        while True:
            done, lease = self._leases.held(node, stand)
            if done.succeeded:
                return done.revision
            for leader in done.found[0].items:
                # With another lease it is an earlier term of this node, about to end with that lease.
                if (leader.value, leader.lease) == (me, lease):
                    return leader.create_revision
                if not self._wait_gone(leader.create_revision, done.revision, deadline):
                    return None

    def wait_over(self, epoch: int, deadline: float) -> bool:
        """Wait until this term is over; False at the deadline."""
        found = self._client.read(Read(self._key))
        return not _of_term(found.items, epoch) or self._wait_gone(epoch, found.revision, deadline)

    def _wait_gone(self, epoch: int, revision: int, deadline: float) -> bool:
        """The same, of a term that was not over at this revision."""
        while time.monotonic() < deadline:
            watch = self._client.watch(self._key, start_revision=revision + 1)
            try:
                while changes := watch.wait(max(0.0, deadline - time.monotonic())):
                    if any(change.deleted for change in changes):
                        return True
            except (EtcdWatchLost, EtcdCompacted):
                found = self._client.read(Read(self._key))
                if not _of_term(found.items, epoch):
                    return True
                revision = found.revision
            finally:
                watch.close()
        return False


def _of_term(items: tuple[Item, ...], epoch: int) -> bool:
    return bool(items) and items[0].create_revision == epoch
