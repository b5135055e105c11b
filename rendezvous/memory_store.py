"""A store in the memory of one process: jobs on one host, tests, several agents as threads.

`MemoryStore` holds the state. `host()` returns the session of the node that coordinates, `guest()` a session for any
other node. With a lease the store elects its coordinator, as etcd does, and has guests only. Sessions implement
`Store`. Unlike a session over a network, one may be shared between threads: every call takes the same lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from .store import NO_BEAT, HostedLeadership, StoreFenced, StoreUnreachable

KEEP_VERSIONS = 64
"""Announced versions kept. Readers ask for the newest only; the others make repeated announcements idempotent."""

T = TypeVar("T")


class _Incarnation:
    """The state of one incarnation of the job."""

    def __init__(self) -> None:
        self.records: dict[str, tuple[int, bytes]] = {}
        """Node to (notification number, value), oldest notification first."""
        self.notifications = 0
        self.beats: dict[str, int] = {}
        self.host_count = NO_BEAT
        self.versions: dict[int, bytes] = {}
        self.newest = 0
        self.leases: dict[str, float] = {}
        """Node to the time at which its lease ends, for nodes that lead or have a record."""
        self.leader = ""
        self.epoch = 0
        """Of the newest term, whether it is over or not."""
        self.values: dict[str, bytes] = {}

    def notify(self, node: str, value: bytes) -> None:
        """Store the node's record under the next notification, so that `wait_nodes` returns it."""
        self.notifications += 1
        self.records.pop(node, None)  # so that it is appended at the end
        self.records[node] = (self.notifications, value)

    def expire_leases(self, now: float) -> None:
        """End the leases that have run out."""
        for node in [node for node, ends in self.leases.items() if ends <= now]:
            del self.leases[node]
            if node in self.records:
                self.notify(node, self.records[node][1])
            if node == self.leader:
                self.leader = ""

    def leads(self, epoch: int) -> bool:
        return self.epoch == epoch and self.leader != ""


class _Shared:
    """The state that all sessions share; `changed` guards every field, including those of the incarnations."""

    def __init__(self, lease_s: float | None) -> None:
        self.lease_s = lease_s
        self.changed = threading.Condition()
        self.job = b""
        self.incarnations = {1: _Incarnation()}
        self.terms = 0
        self.closed = False


class MemoryStore:
    """The store of one run id. Exists as long as it or one of its sessions is referenced, or until `close()`."""

    def __init__(self, lease_s: float | None = None) -> None:
        """`lease_s`: length of a node's lease in seconds, which makes an electing store; None: a hosted one."""
        self._shared = _Shared(lease_s)

    def host(self) -> MemorySession:
        """A session for the node that coordinates. Raises ValueError on an electing store."""
        if self._shared.lease_s is not None:
            raise ValueError("a memory store that elects its coordinator has no host; give each node a guest() session")
        return MemorySession(self._shared, hosted=True)

    def guest(self) -> MemorySession:
        """A session for a node that does not host the store."""
        if self._shared.lease_s is not None:
            return ElectingSession(self._shared, hosted=False)
        return MemorySession(self._shared, hosted=False)

    def close(self) -> None:
        """Close the store: every call on every session, also one that blocks, raises StoreUnreachable."""
        with self._shared.changed:
            self._shared.closed = True
            self._shared.changed.notify_all()


class MemorySession(HostedLeadership):
    """One session of a `MemoryStore`; implements `Store`. Raises StoreUnreachable once it or the store is closed."""

    def __init__(self, shared: _Shared, *, hosted: bool, state: _Incarnation | None = None) -> None:
        self._shared = shared
        self._hosted = hosted
        self._state = state or shared.incarnations.setdefault(1, _Incarnation())
        self._closed = False

    @property
    def hosted(self) -> bool:
        return self._hosted

    @property
    def outlives_jobs(self) -> bool:
        return True

    def session(self) -> MemorySession:
        if self._shared.closed:
            raise _is_closed("the memory store")
        return type(self)(self._shared, hosted=self._hosted, state=self._state)

    def close(self) -> None:
        """Close this session; a call that blocks on it raises StoreUnreachable. Idempotent."""
        with self._shared.changed:
            self._closed = True
            self._shared.changed.notify_all()

    def close_host(self) -> None:
        """No effect: there is no server to stop."""

    def write_job(self, value: bytes, over: bytes = b"") -> bytes:
        with self._shared.changed:
            self._check()
            if self._shared.job == over:
                self._shared.job = bytes(value)
            return self._shared.job

    def use_incarnation(self, number: int) -> None:
        with self._shared.changed:
            self._check()
            incarnations = self._shared.incarnations
            self._state = incarnations.setdefault(number, _Incarnation())
            for old in [earlier for earlier in incarnations if earlier < number]:
                del incarnations[old]  # sessions that still use it have a reference of their own

    def publish_node(self, node: str, value: bytes) -> None:
        with self._shared.changed:
            self._check()
            self._state.notify(node, bytes(value))
            self._shared.changed.notify_all()

    def beat(self, node: str, count: int) -> int:
        with self._shared.changed:
            self._check()
            self._state.beats[node] = count
            if self._hosted:
                self._state.host_count = count
            return self._state.newest

    @property
    def host_count(self) -> int | None:
        return self._state.host_count

    @property
    def newest_record(self) -> int | None:
        return self._state.notifications

    def wait_round(self, after: int, timeout_s: float) -> tuple[int, bytes] | None:
        state = self._state
        return self._await(
            lambda: (state.newest, state.versions[state.newest]) if state.newest > after else None, timeout_s
        )

    def wait_nodes(self, cursor: int, timeout_s: float) -> tuple[int, Mapping[str, bytes]]:
        state = self._state

        def published() -> tuple[int, Mapping[str, bytes]] | None:
            if state.notifications <= cursor:
                return None
            fresh: dict[str, bytes] = {}
            for node, (notification, value) in reversed(state.records.items()):
                if notification <= cursor:
                    break
                fresh[node] = value
            return state.notifications, dict(reversed(fresh.items()))

        return self._await(published, timeout_s) or (cursor, {})

    def read_beats(self, nodes: Sequence[str]) -> Mapping[str, int]:
        with self._shared.changed:
            self._check()
            return {node: self._state.beats[node] for node in nodes if node in self._state.beats}

    def announce(self, version: int, value: bytes, epoch: int) -> None:
        shared, state = self._shared, self._state
        with shared.changed:
            self._check()
            if state.versions.get(version) == value:
                return
            if version <= state.newest:
                raise StoreFenced(
                    f"version {version} is taken: another coordinator announced up to {state.newest}; stop announcing"
                )
            self._fence(epoch)
            state.versions[version] = bytes(value)
            state.newest = version
            for old in [kept for kept in state.versions if kept <= version - KEEP_VERSIONS]:
                del state.versions[old]
            shared.changed.notify_all()

    def announce_end(self, version: int, value: bytes, epoch: int, job: bytes, over: bytes) -> bool:
        with self._shared.changed:  # one step: no other session sees the announcement without the record
            self.announce(version, value, epoch)
            return self.write_job(job, over) == job

    def write_value(self, name: str, value: bytes, *, over: bool = False) -> bool:
        with self._shared.changed:
            self._check()
            values = self._state.values
            values[name] = bytes(value) if over else values.get(name, bytes(value))
            self._shared.changed.notify_all()
            return values[name] == value

    def wait_values(self, names: Sequence[str], timeout_s: float) -> Mapping[str, bytes]:
        values = self._state.values
        self._await(lambda: True if all(name in values for name in names) else None, timeout_s)
        with self._shared.changed:
            return {name: values[name] for name in names if name in values}

    def write_values(self, values: Mapping[str, bytes]) -> None:
        with self._shared.changed:
            self._check()
            self._state.values.update({name: bytes(value) for name, value in values.items()})
            self._shared.changed.notify_all()

    def read_values(self, names: Sequence[str]) -> Mapping[str, bytes]:
        return self.wait_values(names, 0.0)

    def delete_values(self, names: Sequence[str]) -> None:
        with self._shared.changed:
            self._check()
            for name in names:
                self._state.values.pop(name, None)

    def _fence(self, epoch: int) -> None:
        """No check here: on a hosted store the version alone fences."""

    def _await(self, ready: Callable[[], T | None], timeout_s: float) -> T | None:
        """Block until `ready` returns something other than None, and return that; None once `timeout_s` has passed."""
        deadline = time.monotonic() + timeout_s
        with self._shared.changed:
            while True:
                self._check()
                found = ready()
                left_s = deadline - time.monotonic()
                if found is not None or left_s <= 0:
                    return found
                next_expiry = min(self._state.leases.values(), default=deadline)
                self._shared.changed.wait(max(0.0, min(left_s, next_expiry - time.monotonic())))

    def _check(self) -> None:
        if self._closed or self._shared.closed:
            raise _is_closed("this session of the memory store" if self._closed else "the memory store")
        self._state.expire_leases(time.monotonic())


class ElectingSession(MemorySession):
    """One session of a `MemoryStore` that elects: nodes have leases, and the store elects one node as coordinator."""

    @property
    def elects(self) -> bool:
        return True

    def publish_node(self, node: str, value: bytes) -> None:
        with self._shared.changed:
            self._check()
            self._renew(node)
            super().publish_node(node, value)

    def beat(self, node: str, count: int) -> int:
        with self._shared.changed:
            self._check()
            self._renew(node)
            return self._state.newest

    @property
    def host_count(self) -> int | None:
        return None

    def lead(self, node: str, timeout_s: float) -> int | None:
        return self._await(lambda: self._campaign(node), timeout_s)

    def wait_deposed(self, epoch: int, timeout_s: float) -> bool:
        state = self._state
        return self._await(lambda: None if state.leads(epoch) else True, timeout_s) or False

    def resign(self, epoch: int) -> None:
        with self._shared.changed:
            self._check()
            if self._state.leads(epoch):
                self._state.leader = ""
                self._shared.changed.notify_all()

    def read_beats(self, nodes: Sequence[str]) -> Mapping[str, int]:
        with self._shared.changed:
            self._check()
            return {node: 0 for node in nodes if node in self._state.leases}

    def clear(self, epoch: int) -> None:
        with self._shared.changed:
            self._check()
            if self._state.leads(epoch):
                self._state.records.clear()
                self._state.versions.clear()
                self._state.values.clear()
                self._state.newest = 0

    def _campaign(self, node: str) -> int | None:
        state = self._state
        if state.leader not in ("", node):
            return None
        self._renew(node)
        if state.leader != node:
            self._shared.terms += 1
            state.leader, state.epoch = node, self._shared.terms
        return state.epoch

    def _renew(self, node: str) -> None:
        state, lease_s = self._state, self._shared.lease_s or 0.0
        if node not in state.leases and node in state.records:
            state.notify(node, state.records[node][1])
        state.leases[node] = time.monotonic() + lease_s
        self._shared.changed.notify_all()

    def _fence(self, epoch: int) -> None:
        if not self._state.leads(epoch):
            raise StoreFenced(f"epoch {epoch} is over: another node coordinates (epoch {self._state.epoch}), or none")


def _is_closed(what: str) -> StoreUnreachable:
    return StoreUnreachable(f"{what} is closed; nothing can be read or written through it any more")
