"""The contract of a store: one job record, node records, announcements, heartbeats or leases, and leadership.

There are two kinds of store. A *hosted* store (c10d, memory) is served by one node and ends with that node. Its host
coordinates for as long as the store exists, and decides from heartbeat counters which nodes are lost. An *electing*
store (etcd, memory with a lease) is served by none of the nodes, so any of them may coordinate: the store keeps a lease
for each node, and the coordinator loses its leadership with its lease. Each term of leadership has an epoch, and the
store refuses announcements with the epoch of an earlier term.

`memory_store.py`, `c10d/store.py` and `etcd/store.py` implement `Store`; `tests/integration/store_contract/` tests
each sentence here on all of them. All values are bytes; `codec/` gives them meaning. Calls block, so each runs on a
thread of `driver/`, never on the agent's loop. A call returns, or raises a `StoreError` within its deadline *if the
backend can promise that*. TCPStore cannot while its server is frozen, so the driver adds a deadline of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from .shared_values import Values

NO_BEAT, SPOILED = -1, -2
"""Values of `Store.host_count` that are no counts."""


class StoreError(Exception):
    """Root of what a store raises. One line: the endpoint or key, what was found, what to do."""


class StoreUnreachable(StoreError):
    """No answer, or the connection broke. Whether a write was applied is unknown."""


class StoreRefused(StoreUnreachable):
    """The store answered, and refuses for now what an operator can make possible again: space, a permission."""


class StoreForeign(StoreError):
    """The server is not a store of this job, or a key of the job holds bytes that elastic-agent did not write."""


class StoreSpoiled(StoreForeign):
    """A counter of the job holds bytes that elastic-agent did not write, in the job's own store."""


class StoreReplaced(StoreForeign):
    """The store that this node was in is gone, and another one, of the same endpoint, is in its place."""


class StoreElsewhere(StoreReplaced):
    """The job of this run id goes on at another endpoint: what this node has joined or begun in its place is none."""


class StoreOutvoted(StoreElsewhere):
    """This node hosted the store, was silent, and another one hosts it now."""


class StoreFenced(StoreError):
    """A write was refused: another node coordinates now, or another coordinator has written that version."""


class JobMismatch(StoreError):
    """The run id is taken by a job with another spec. Names both specs."""


class VersionMismatch(StoreError):
    """The run id is taken by a job whose agents use another protocol version. Names both versions."""


FIRST_EPOCH = 1
"""The epoch of a host's only term."""


class Store(Values, Protocol):
    """One connection to the store of one job (run id). Not shared between threads: each takes its own `session()`."""

    @property
    def hosted(self) -> bool:
        """Whether this process serves the store, and therefore coordinates."""
        ...

    @property
    def elects(self) -> bool:
        """Whether the store elects the coordinator: no node serves it, any node may coordinate, nodes have leases."""
        ...

    @property
    def outlives_jobs(self) -> bool:
        """Whether the contents are still there after all agents of a job have exited."""
        ...

    def session(self) -> Store:
        """A further connection to the same store, for another thread, also where this one is closed. Raises
        StoreUnreachable or StoreForeign."""
        ...

    def close(self) -> None:
        """Close this connection. May be called from another thread, and ends a call that blocks. Other connections
        stay open, and the hosting process keeps serving."""
        ...

    def close_host(self) -> None:
        """In the hosting process: stop serving, which breaks every session of every node. Elsewhere: no effect."""
        ...

    # -- the job's record --------------------------------------------------------------------------------------------
    def write_job(self, value: bytes, over: bytes = b"") -> bytes:
        """Write the job's only record: if `over` is empty, where there is none; else in place of exactly those bytes.
        Returns what is stored afterwards. Anything but `value` means that nothing was written; empty, that there is no
        record. Of several writers one succeeds, and all get what it wrote. `value` is not empty."""
        ...

    def use_incarnation(self, number: int) -> None:
        """Restrict this connection, and sessions made from it later, to one incarnation of the job: nodes, heartbeats
        and announcements of the others are not visible. A store that was just opened uses the first."""
        ...

    # -- what a node calls -------------------------------------------------------------------------------------------
    def publish_node(self, node: str, value: bytes) -> None:
        """Replace the node's own record and end the coordinator's `wait_nodes`. Acknowledged when it returns.
        On an electing store the node has a lease by then."""
        ...

    def beat(self, node: str, count: int) -> int:
        """Record that the node is alive, in O(1) bytes: store its heartbeat counter or, on an electing store, renew its
        lease (or grant a new one after it ran out). Returns the newest announced version (0: none)."""
        ...

    @property
    def host_count(self) -> int | None:
        """The heartbeat counter of the node that hosts the store, as of this connection's last `beat`;
        NO_BEAT before its first; SPOILED if another program has written over it. None on an electing store, whose
        coordinator has a lease."""
        ...

    @property
    def newest_record(self) -> int | None:
        """The cursor that `wait_nodes` reaches once it has returned all records, as this connection's last `beat` or,
        on an electing store, the coordinator's last `read_beats` found it. None: not known."""
        ...

    def wait_round(self, after: int, timeout_s: float) -> tuple[int, bytes] | None:
        """Block until a version greater than `after` is announced; return the NEWEST (version, value), skipping those
        in between. None if `timeout_s` passed first."""
        ...

    # -- leadership --------------------------------------------------------------------------------------------------
    def lead(self, node: str, timeout_s: float) -> int | None:
        """Campaign to coordinate this incarnation: block until the node leads, and return the epoch of its term,
        greater than every earlier one. None if `timeout_s` passed first. Grants the node a lease if it has none; the
        term ends with that lease, or by `resign`. Called again during a term, it returns the same epoch.
        On a hosted store the host leads from the beginning, with `FIRST_EPOCH`; other nodes get None at once."""
        ...

    def wait_deposed(self, epoch: int, timeout_s: float) -> bool:
        """Block until the term with this epoch is over; False if `timeout_s` passed first. On a hosted store False at
        once, because a host's term does not end."""
        ...

    def resign(self, epoch: int) -> None:
        """End this term, so that another node can lead before the lease runs out. No effect if the term is over
        already, or on a hosted store."""
        ...

    # -- what the coordinator calls ----------------------------------------------------------------------------------
    def wait_nodes(self, cursor: int, timeout_s: float) -> tuple[int, Mapping[str, bytes]]:
        """Block until a node has published after `cursor` (0: from the beginning); return the new cursor and the
        current records of the nodes that did, each once. The mapping is empty if `timeout_s` passed first. A
        notification that was never completed (its writer exited between two steps) delays others by at most one call.
        On an electing store a node whose lease ended or began again counts as one that published, if the store noticed:
        a hint to call `read_beats`."""
        ...

    def read_beats(self, nodes: Sequence[str]) -> Mapping[str, int]:
        """The heartbeat counters of these nodes. A node without one, or whose counter is not a number, is absent.
        On an electing store a node is present (with any count) if it has a lease, or if the store is not yet sure that
        its lease has ended."""
        ...

    def announce(self, version: int, value: bytes, epoch: int) -> None:
        """Publish version `version`, create-only, in the term with this epoch. Idempotent for equal bytes, even after
        the term is over. Raises StoreFenced if that version already holds something else, or the term is over.
        Versions follow each other without gaps; those far behind the newest may be deleted (at least 16 remain)."""
        ...

    def announce_end(self, version: int, value: bytes, epoch: int, job: bytes, over: bytes) -> bool:
        """As `announce`, for the last announcement of a job, with `write_job(job, over)`: on an electing store in one
        transaction, elsewhere before the announcement. False if the job's record was neither `over` nor `job`, and so
        was not written."""
        ...

    def clear(self, epoch: int) -> None:
        """Delete the nodes, heartbeats and announcements of this incarnation; its job's record stays. For the
        coordinator of a closed job, once every node has ended. No effect if the term is over, or on a hosted store,
        whose contents end with its host."""
        ...


@runtime_checkable
class Founding(Protocol):
    """A session of a store in which a job may begin that goes on elsewhere, beside `Store`."""

    def found(self) -> None:
        """Before each round begins. Raises StoreElsewhere if no round has begun here, and the job of this run id goes
        on elsewhere."""
        ...


Join = Callable[[Store], None]
"""Joins the job in a store that was just opened; what it raises keeps this node out of the job."""


class HostedLeadership:
    """Leadership on a hosted store: no elections. The host leads one term for as long as the store exists, and an
    announcement's version alone fences. A base of classes that implement `Store`."""

    @property
    def hosted(self) -> bool:
        raise NotImplementedError

    @property
    def elects(self) -> bool:
        return False

    def lead(self, node: str, timeout_s: float) -> int | None:
        return FIRST_EPOCH if self.hosted else None

    def wait_deposed(self, epoch: int, timeout_s: float) -> bool:
        return False

    def resign(self, epoch: int) -> None:
        """No effect: a host's term ends with its store."""

    def clear(self, epoch: int) -> None:
        """No effect: the contents end with the host."""

    def write_job(self, value: bytes, over: bytes = b"") -> bytes:
        raise NotImplementedError

    def announce(self, version: int, value: bytes, epoch: int) -> None:
        raise NotImplementedError

    def announce_end(self, version: int, value: bytes, epoch: int, job: bytes, over: bytes) -> bool:
        # The record first, so that a node that receives the announcement finds the outcome in the record.
        written = self.write_job(job, over) == job
        self.announce(version, value, epoch)
        return written
