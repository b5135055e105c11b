"""What a store must do for a job. The same ideas on each backend: one job, records, fencing, change,
liveness.

`memory.py`, `c10d.py` (and later etcd) implement `Store`; `tests/test_store_contract.py` holds them to it.
All values are bytes; `codec.py` gives them meaning. Calls block, so each runs on a thread of `driver.py`, never on the
agent's loop. A call either returns, or raises a `StoreError` within its deadline *if the backend can promise that*;
TCPStore cannot against a frozen server, so the driver keeps a deadline of its own around every call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class StoreError(Exception):
    """Root of what a store raises. One line: names the endpoint or key, what was found, what to do."""


class StoreUnreachable(StoreError):
    """Nobody answered, or the connection broke. Whether a write was applied is unknown."""


class StoreForeign(StoreError):
    """Somebody answered who is not our store, or a key of ours holds bytes that are not ours."""


class StoreFenced(StoreError):
    """A write was refused because another coordinator has written that version."""


class OtherJob(StoreError):
    """The run id is taken by a job that was asked for something else. Names both specs."""


class OtherVersion(StoreError):
    """The run id is taken by a job whose agents speak another protocol version. Names both versions."""


class Store(Protocol):
    """One connection to the store of one job (run id). Not shared between threads: each takes its own `session()`."""

    @property
    def hosted(self) -> bool:
        """Whether this process serves the store, and so provides the coordinator."""
        ...

    @property
    def outlives_jobs(self) -> bool:
        """Whether what it holds is still there when all agents of a job have ended."""
        ...

    def session(self) -> Store:
        """A further connection to the same store, for another thread. Raises StoreUnreachable or StoreForeign."""
        ...

    def close(self) -> None:
        """Give this connection up; may come from another thread, and ends a call that waits. Others are not touched,
        and the hosting process keeps serving."""
        ...

    def close_host(self) -> None:
        """Stop serving, where this process does; every session of every node breaks. Nothing elsewhere."""
        ...

    # -- whose run id it is ------------------------------------------------------------------------------------------
    def write_job(self, value: bytes, over: bytes = b"") -> bytes:
        """Write the job's one record: where there is none if `over` is empty, else in place of exactly those bytes.
        Returns what is there then: anything but `value` means that nothing was written (empty: there is none). Of
        several writers one wins, and all learn what it wrote. `value` is not empty."""
        ...

    def use_incarnation(self, number: int) -> None:
        """From here on, this connection and the sessions made from it know this incarnation of the job only: the nodes,
        heartbeats and announcements of the others are not there. A store that was just opened is in the first."""
        ...

    # -- what a node does ----------------------------------------------------------------------------------------
    def publish_node(self, node: str, value: bytes) -> None:
        """Replace the node's own record and let the coordinator's `wait_nodes` notice. Acknowledged when it returns."""
        ...

    def beat(self, node: str, count: int) -> int:
        """Renew the node's lease: store its heartbeat counter, O(1) bytes. Returns the newest version (0: none)."""
        ...

    def wait_round(self, after: int, timeout_s: float) -> tuple[int, bytes] | None:
        """Block until a version greater than `after` is announced; return the NEWEST (version, value), skipping those
        in between. None when `timeout_s` passed first."""
        ...

    # -- what the coordinator does -------------------------------------------------------------------------------
    def wait_nodes(self, cursor: int, timeout_s: float) -> tuple[int, Mapping[str, bytes]]:
        """Block until some node published after `cursor` (0: from the beginning); return the new cursor and the current
        records of the nodes that did, each once. An empty mapping when `timeout_s` passed first. A notification lost
        half-way (its writer died between two steps) delays others by at most one call of this method."""
        ...

    def read_beats(self, nodes: Sequence[str]) -> Mapping[str, int]:
        """The heartbeat counters of these nodes; one that never beat, or holds bytes that are no number, is absent."""
        ...

    def announce(self, version: int, value: bytes) -> None:
        """Publish version `version`, create-only. Idempotent for equal bytes. Raises StoreFenced when that version
        already holds something else. Versions far behind the newest may be deleted (at least the newest 16 remain)."""
        ...
