"""What lies under a prefix in etcd, kept up to date by a watch; and looked at again where a watch may lag.

A watch that ends, for whatever reason, is replaced after reading anew, so that nothing stays unseen.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from ..store import StoreForeign
from .client import EtcdClient
from .errors import EtcdCompacted, EtcdWatchLost
from .keys import EtcdKeys
from .ops import Change, Read
from .watch import Watch

LOOK_S = 0.5
"""Who waits no longer than this wants to know how things stand, so it is read; else the watch will tell."""
RECHECK_S = 30.0
"""A watch that has said nothing for so long is not believed without reading."""

T = TypeVar("T")


class View(Protocol):
    """What is followed."""

    @property
    def watched(self) -> bytes:
        """The prefix."""
        ...

    def read(self, client: EtcdClient) -> int:
        """Take in how things stand; returns the revision of that."""
        ...

    def change(self, change: Change) -> None:
        """Take in what has changed."""
        ...


class Follower:
    """Keeps a view up to date for one thread."""

    def __init__(self, client: EtcdClient, view: View) -> None:
        self._client = client
        self._view = view
        self._watch: Watch | None = None
        self._looked_at = 0.0

    def wait(self, ready: Callable[[], T | None], timeout_s: float) -> T | None:
        """What `ready` makes of the view as soon as that is something; None when `timeout_s` passed first."""
        deadline = time.monotonic() + timeout_s
        if timeout_s <= LOOK_S or time.monotonic() >= self._looked_at + RECHECK_S:
            self._drop()
        while True:
            try:
                if self._watch is None:
                    revision = self._look()
                    if (found := ready()) is not None or time.monotonic() >= deadline:
                        return found
                    self._watch = self._client.watch(self._view.watched, prefix=True, start_revision=revision + 1)
                elif (found := ready()) is not None:
                    return found
                changes = self._watch.wait(max(0.0, deadline - time.monotonic()))
            except (EtcdWatchLost, EtcdCompacted):
                self._drop()
                continue
            for change in changes:
                self._view.change(change)
            if not changes:
                return ready()

    def _look(self) -> int:
        revision = self._view.read(self._client)
        self._looked_at = time.monotonic()
        return revision

    def _drop(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None


class Announced:
    """The newest announcement."""

    def __init__(self, keys: EtcdKeys) -> None:
        self._keys = keys
        self.watched = keys.rounds
        self.version = 0
        self.value = b""

    def read(self, client: EtcdClient) -> int:
        while True:
            found = client.read(Read(self._keys.newest))
            version = newest_of(self._keys, found.items[0].value) if found.items else 0
            if version <= self.version:
                return found.revision
            there = client.read(Read(self._keys.round(version))).items
            if there:  # else it was deleted meanwhile, far behind a newer one
                self.version, self.value = version, there[0].value
                return found.revision

    def change(self, change: Change) -> None:
        version = self._keys.version_of(change.item.key)
        if version is not None and version > self.version and not change.deleted:
            self.version, self.value = version, change.item.value


class Nodes:
    """The nodes' records, and which were touched last: published, or with a lease that began or ended."""

    def __init__(self, keys: EtcdKeys) -> None:
        self._keys = keys
        self.watched = keys.nodes
        self._records: dict[str, bytes] = {}
        self._touched: dict[str, int] = {}
        """Node to the revision that did."""
        self._living: set[str] = set()

    def since(self, revision: int) -> tuple[int, dict[str, bytes]] | None:
        """Records of nodes touched after this revision, and the last revision that did; None: there are none."""
        fresh = [node for node, touched in self._touched.items() if touched > revision and node in self._records]
        if not fresh:
            return None
        return max(self._touched[node] for node in fresh), {node: self._records[node] for node in fresh}

    def read(self, client: EtcdClient) -> int:
        found = client.read(Read(self._keys.nodes, prefix=True))
        lived, self._living = self._living, set()
        for item in found.items:
            self._take_in(item.key, item.value, item.mod_revision)
        for node in lived - self._living:
            self._touched[node] = found.revision
        return found.revision

    def change(self, change: Change) -> None:
        item = change.item
        if not change.deleted:
            self._take_in(item.key, item.value, item.mod_revision)
        elif (whose := self._keys.node_of(item.key)) is not None:
            node, is_record = whose
            if is_record:
                self._records.pop(node, None)
            else:
                self._living.discard(node)
                self._touched[node] = item.mod_revision

    def _take_in(self, key: bytes, value: bytes, revision: int) -> None:
        whose = self._keys.node_of(key)
        if whose is None:
            return
        node, is_record = whose
        self._touched[node] = max(revision, self._touched.get(node, 0))
        if is_record:
            self._records[node] = value
        else:
            self._living.add(node)


def newest_of(keys: EtcdKeys, value: bytes) -> int:
    """The version in the key that counts them. Raises StoreForeign if there is none."""
    if value.isdigit() and len(value) <= 16:
        return int(value)
    raise StoreForeign(
        f"etcd's key {keys.newest.decode()} holds {value[:40]!r}, where a count belongs; "
        "somebody else writes there: choose another --rdzv-id or prefix"
    )
