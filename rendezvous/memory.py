"""A store in the memory of one process: single-machine jobs, tests, several agents as threads.

`MemoryStore` is the shared state; `host()` gives the coordinator's handle, `guest()` everybody else's. Handles are
`Store`s. Unlike a networked session a handle may be shared between threads, as every call takes the one lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from .store import StoreFenced, StoreUnreachable

KEEP_VERSIONS = 64
"""Announced versions kept. A reader only ever asks for the newest; the rest serve idempotent repeats."""


class _Incarnation:
    """What belongs to one incarnation of the job."""

    def __init__(self) -> None:
        self.records: dict[str, tuple[int, bytes]] = {}
        """Node to (notification number, value), oldest notification first."""
        self.noted = 0
        self.beats: dict[str, int] = {}
        self.versions: dict[int, bytes] = {}
        self.newest = 0


class _Shared:
    """What all handles see; `changed` guards every field, those of the incarnations too."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.job = b""
        self.incarnations = {1: _Incarnation()}
        self.closed = False


class MemoryStore:
    """The shared state of one job. Lives as long as somebody holds it, or until `close()`."""

    def __init__(self) -> None:
        self._shared = _Shared()

    def host(self) -> MemorySession:
        """A handle for the node that provides the coordinator."""
        return MemorySession(self._shared, hosted=True)

    def guest(self) -> MemorySession:
        """A handle for a node that does not."""
        return MemorySession(self._shared, hosted=False)

    def close(self) -> None:
        """Take the store away: every call on every handle, also one that waits, raises StoreUnreachable."""
        with self._shared.changed:
            self._shared.closed = True
            self._shared.changed.notify_all()


class MemorySession:
    """One handle on a `MemoryStore`; implements `Store`. Raises StoreUnreachable once it or the store is closed."""

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
        with self._shared.changed:
            self._check()
        return MemorySession(self._shared, hosted=self._hosted, state=self._state)

    def close(self) -> None:
        """Give this handle up; a call that waits on it raises StoreUnreachable. Idempotent."""
        with self._shared.changed:
            self._closed = True
            self._shared.changed.notify_all()

    def close_host(self) -> None:
        """Nothing to stop: the state lives as long as somebody holds it."""

    def write_job(self, value: bytes, over: bytes = b"") -> bytes:
        with self._shared.changed:
            self._check()
            if self._shared.job == over:
                self._shared.job = bytes(value)
            return self._shared.job

    def use_incarnation(self, number: int) -> None:
        with self._shared.changed:
            self._check()
            known = self._shared.incarnations
            self._state = known.setdefault(number, _Incarnation())
            for old in [earlier for earlier in known if earlier < number]:
                del known[old]  # who still works there holds it

    def publish_node(self, node: str, value: bytes) -> None:
        shared, state = self._shared, self._state
        with shared.changed:
            self._check()
            state.noted += 1
            state.records.pop(node, None)  # so that it comes last again
            state.records[node] = (state.noted, bytes(value))
            shared.changed.notify_all()

    def beat(self, node: str, count: int) -> int:
        with self._shared.changed:
            self._check()
            self._state.beats[node] = count
            return self._state.newest

    def wait_round(self, after: int, timeout_s: float) -> tuple[int, bytes] | None:
        shared, state = self._shared, self._state
        deadline = time.monotonic() + timeout_s
        with shared.changed:
            while self._check() and state.newest <= after:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return None
                shared.changed.wait(left_s)
            return state.newest, state.versions[state.newest]

    def wait_nodes(self, cursor: int, timeout_s: float) -> tuple[int, Mapping[str, bytes]]:
        shared, state = self._shared, self._state
        deadline = time.monotonic() + timeout_s
        with shared.changed:
            while self._check() and state.noted <= cursor:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return cursor, {}
                shared.changed.wait(left_s)
            fresh: dict[str, bytes] = {}
            for node, (noted, value) in reversed(state.records.items()):
                if noted <= cursor:
                    break
                fresh[node] = value
            return state.noted, fresh

    def read_beats(self, nodes: Sequence[str]) -> Mapping[str, int]:
        with self._shared.changed:
            self._check()
            return {node: self._state.beats[node] for node in nodes if node in self._state.beats}

    def announce(self, version: int, value: bytes) -> None:
        shared, state = self._shared, self._state
        with shared.changed:
            self._check()
            if version <= state.newest:
                if state.versions.get(version) != value:
                    raise StoreFenced(
                        f"version {version} is taken: another coordinator announced up to {state.newest}; "
                        "stop announcing"
                    )
                return
            state.versions[version] = bytes(value)
            state.newest = version
            for old in [known for known in state.versions if known <= version - KEEP_VERSIONS]:
                del state.versions[old]
            shared.changed.notify_all()

    def _check(self) -> bool:
        if self._closed or self._shared.closed:
            whose = "this session of the memory store" if self._closed else "the memory store"
            raise StoreUnreachable(f"{whose} is closed; nothing can be read or written through it any more")
        return True
