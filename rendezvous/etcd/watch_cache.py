"""The keys below a prefix in etcd, kept up to date by a watch, and read again where the watch may lag.

A watch that ends is replaced after reading the keys anew, so that no change is missed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from itertools import takewhile
from typing import Protocol, TypeVar

from ..codec.limits import FEW_NODES
from ..store import StoreForeign
from .client import EtcdClient
from .errors import EtcdCompacted, EtcdWatchLost
from .keys import EtcdKeys
from .ops import Change, Item, Read
from .watch import Watch

GATHER_S = 0.05
"""For how long the changes of a large job's nodes gather: all of them change at once, at its start and each restart."""
SHORT_WAIT_S = 0.5
"""A wait no longer than this must return the current state, so it reads; a longer one relies on the watch."""
REREAD_S = 60.0
"""The keys are read anew after so long: a watch may be silent because it hangs. What it keeps back of announcements and
records is missed sooner, as heartbeats name the newest."""

T = TypeVar("T")


class View(Protocol):
    """What a `WatchCache` keeps up to date."""

    @property
    def watched(self) -> bytes:
        """The prefix of the keys."""
        ...

    def read(self, client: EtcdClient) -> int:
        """Read the keys as they are; returns the revision of that."""
        ...

    def apply(self, change: Change) -> None:
        """Apply one event of the watch."""
        ...

    @property
    def gather_s(self) -> float:
        """For how long to let changes gather at the server behind some that have come (s)."""
        ...


class WatchCache:
    """Keeps a view up to date, for one thread."""

    def __init__(self, client: EtcdClient, view: View) -> None:
        self._client = client
        self._view = view
        self._watch: Watch | None = None
        self._read_at = 0.0
        self._revision = 0
        """Of the view, until there is a watch; 0: it is to be read."""
        self._gathered_at = 0.0
        """No watch begins before (`time.monotonic`)."""

    def wait(self, ready: Callable[[], T | None], timeout_s: float) -> T | None:
        """Block until `ready` returns something other than None, and return it; None when `timeout_s` passed first.
        `ready` is called after each change of the view."""
        deadline = time.monotonic() + timeout_s
        if timeout_s <= SHORT_WAIT_S or time.monotonic() >= self._read_at + REREAD_S:
            self.close()
        while True:
            try:
                if self._watch is None and not self._revision:
                    self._read()
                    if time.monotonic() >= deadline:
                        return ready()
                if (found := ready()) is not None:
                    return found
                if self._watch is None:
                    if (gather_s := self._gathered_at - time.monotonic()) > 0:
                        self._client.pause(min(gather_s, deadline - time.monotonic()))
                        if time.monotonic() >= deadline:
                            return ready()
                    start = self._revision + 1
                    self._watch = self._client.watch(self._view.watched, prefix=True, start_revision=start)
                changes = self._watch.wait(max(0.0, deadline - time.monotonic()))
            except (EtcdWatchLost, EtcdCompacted):
                self.close()
                continue
            for change in changes:
                self._view.apply(change)
            if not changes:
                return ready()
            self._let_gather()

    def _let_gather(self) -> None:
        """A server sends each change alone to a watch that has all others, and at once; to one that begins behind them
        all in one answer, within 0.1 s (etcd's syncWatchers, 3.4 to 3.6). Where many nodes answer, that takes a
        fraction of the work at both ends."""
        if self._view.gather_s and self._watch is not None:
            self._revision = self._watch.next_revision - 1
            self._watch.close()
            self._watch = None
            self._gathered_at = time.monotonic() + self._view.gather_s

    def _read(self) -> None:
        self._revision = self._view.read(self._client)
        self._read_at = time.monotonic()

    def close(self) -> None:
        """End the watch; another `wait` reads anew, and begins another."""
        self._revision = 0
        if self._watch is not None:
            self._watch.close()
            self._watch = None


class NewestAnnouncement:
    """The newest announced version and its bytes."""

    gather_s = 0.0

    def __init__(self, keys: EtcdKeys, named: Callable[[], int]) -> None:
        """`named`: the newest version that this node has been told of; 0: none. It is looked for first."""
        self._keys = keys
        self._named = named
        self.watched = keys.rounds_prefix
        self.version = 0
        self.value = b""

    def read(self, client: EtcdClient) -> int:
        return self._read_named(client, self._named()) or self._read_newest(client)

    def _read_named(self, client: EtcdClient, version: int) -> int:
        """As `read`, with one request, if this version is the newest; else 0."""
        if version <= self.version:
            return 0
        done = client.txn([], [Read(self._keys.newest_round), Read(self._keys.round(version))], repeatable=True)
        newest, announced = (found.items for found in done.found)
        if not (newest and announced) or parse_version(self._keys, newest[0].value) != version:
            return 0
        self.version, self.value = version, announced[0].value
        return done.revision

    def _read_newest(self, client: EtcdClient) -> int:
        while True:
            found = client.read(Read(self._keys.newest_round))
            version = parse_version(self._keys, found.items[0].value) if found.items else 0
            if version <= self.version:
                return found.revision
            items = client.read(Read(self._keys.round(version))).items
            if items:  # else it was deleted between the two reads, as versions far behind the newest are
                self.version, self.value = version, items[0].value
                return found.revision

    def apply(self, change: Change) -> None:
        version = self._keys.version_of(change.item.key)
        if version is not None and version > self.version and not change.deleted:
            self.version, self.value = version, change.item.value


class NodeRecords:
    """The nodes' records, and the revision at which each node last changed: published its record, or had its lease
    granted or ended."""

    def __init__(self, keys: EtcdKeys) -> None:
        self._keys = keys
        self.watched = keys.nodes_prefix
        self._records: dict[str, bytes] = {}
        self._changed_at: dict[str, int] = {}
        """Node to the revision of its last change, the latest last: what is new is found without a look at the rest."""
        self._leased: set[str] = set()

    @property
    def gather_s(self) -> float:
        return GATHER_S if len(self._records) > FEW_NODES else 0.0

    def since(self, revision: int) -> tuple[int, dict[str, bytes]] | None:
        """The records of the nodes that changed after this revision, in the order of that, and the revision of the last
        such change; None: no node did."""
        changes = takewhile(lambda change: change[1] > revision, reversed(self._changed_at.items()))
        fresh = [(node, changed) for node, changed in changes if node in self._records]
        if not fresh:
            return None
        return fresh[0][1], {node: self._records[node] for node, _ in reversed(fresh)}

    def read(self, client: EtcdClient) -> int:
        found = client.read(Read(self._keys.nodes_prefix, prefix=True))
        leased_before, self._leased = self._leased, set()
        for item in sorted(found.items, key=lambda item: item.mod_revision):
            self._put(item.key, item.value, item.mod_revision)
        for node in leased_before - self._leased:
            self._mark(node, found.revision)
        return found.revision

    def apply(self, change: Change) -> None:
        item = change.item
        if not change.deleted:
            self._put(item.key, item.value, item.mod_revision)
        elif (parsed := self._keys.node_of(item.key)) is not None:
            node, is_record = parsed
            if is_record:
                self._records.pop(node, None)
            else:
                self._leased.discard(node)
                self._mark(node, item.mod_revision)

    def _put(self, key: bytes, value: bytes, revision: int) -> None:
        parsed = self._keys.node_of(key)
        if parsed is None:
            return
        node, is_record = parsed
        if revision > self._changed_at.get(node, 0):
            self._mark(node, revision)
        if is_record:
            self._records[node] = value
        else:
            self._leased.add(node)

    def _mark(self, node: str, revision: int) -> None:
        self._changed_at.pop(node, None)
        self._changed_at[node] = revision


class Values:
    """Those of some keys of one folder that exist, with their values."""

    gather_s = 0.0

    def __init__(self, keys: Collection[bytes]) -> None:
        self._keys = keys
        self.watched = next(iter(keys)).rpartition(b"/")[0] + b"/"
        self.found: dict[bytes, bytes] = {}

    def all(self) -> bool | None:
        """True if all exist, else None."""
        return True if len(self.found) == len(self._keys) else None

    def read(self, client: EtcdClient) -> int:
        found = client.read(Read(self.watched, prefix=True))
        self.found = {item.key: item.value for item in found.items if item.key in self._keys}
        return found.revision

    def apply(self, change: Change) -> None:
        if change.deleted:
            self.found.pop(change.item.key, None)
        elif change.item.key in self._keys:
            self.found[change.item.key] = change.item.value


def newest_record(keys: EtcdKeys, items: Iterable[Item]) -> int | None:
    """The revision of the newest node record among these keys, which is as far as `NodeRecords.since` gets; None: there
    is none."""
    newest_first = sorted(items, key=lambda item: item.mod_revision, reverse=True)
    return next((item.mod_revision for item in newest_first if (keys.node_of(item.key) or ("", False))[1]), None)


def parse_version(keys: EtcdKeys, value: bytes) -> int:
    """The version in the value of `keys.newest_round`. Raises StoreForeign if it holds no number."""
    if value.isdigit() and len(value) <= 16:
        return int(value)
    raise StoreForeign(
        f"etcd's key {keys.newest_round.decode()} holds {value[:40]!r} instead of a version number; "
        "another program writes there: choose another --rdzv-id or prefix"
    )
