"""What a store must do for a job. The same ideas on each backend: one job, records, leadership, fencing, change,
liveness.

Stores are of two kinds. One that a node *hosts* (c10d, memory) dies with that node, so its host coordinates, for good,
and the coordinator itself ages the heartbeats of the others. One that *elects* (etcd, memory when asked to) is hosted
by none of us, so any node may come to coordinate: it keeps the leases of nodes, and whoever of them holds the
leadership loses it with its lease. Each term of leadership has an epoch, by which the store refuses what an earlier
coordinator still says.

`memory.py`, `c10d.py` (and later etcd) implement `Store`; `tests/integration/test_store_contract.py` holds them to it.
All values are bytes; `codec.py` gives them meaning. Calls block, so each runs on a thread of `driver.py`, never on the
agent's loop. A call either returns, or raises a `StoreError` within its deadline *if the backend can promise that*;
TCPStore cannot against a frozen server, so the driver keeps a deadline of its own around every call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol


class StoreError(Exception):
    """Root of what a store raises. One line: names the endpoint or key, what was found, what to do."""


class StoreUnreachable(StoreError):
    """Nobody answered, or the connection broke. Whether a write was applied is unknown."""


class StoreForeign(StoreError):
    """Somebody answered who is not our store, or a key of ours holds bytes that are not ours."""


class StoreFenced(StoreError):
    """A write was refused because another node coordinates now, or another coordinator has written that version."""


class OtherJob(StoreError):
    """The run id is taken by a job that was asked for something else. Names both specs."""


class OtherVersion(StoreError):
    """The run id is taken by a job whose agents speak another protocol version. Names both versions."""


FIRST_EPOCH = 1
"""The epoch of a host's only term."""


class Store(Protocol):
    """One connection to the store of one job (run id). Not shared between threads: each takes its own `session()`."""

    @property
    def hosted(self) -> bool:
        """Whether this process serves the store, and so provides the coordinator."""
        ...

    @property
    def elects(self) -> bool:
        """Whether nobody of us serves it, so that any node may come to coordinate, and nodes have leases in it."""
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
        """Replace the node's own record and let the coordinator's `wait_nodes` notice. Acknowledged when it returns.
        On a store that elects the node has a lease by then."""
        ...

    def beat(self, node: str, count: int) -> int:
        """Say that the node lives, O(1) bytes: store its heartbeat counter, or, on a store that elects, renew its lease
        there (or give it another, where it had none any more). Returns the newest version known (0: none)."""
        ...

    def wait_round(self, after: int, timeout_s: float) -> tuple[int, bytes] | None:
        """Block until a version greater than `after` is announced; return the NEWEST (version, value), skipping those
        in between. None when `timeout_s` passed first."""
        ...

    # -- who coordinates -------------------------------------------------------------------------------------------
    def lead(self, node: str, timeout_s: float) -> int | None:
        """Stand for coordinator of this incarnation: block until the node leads, and return the epoch of its term,
        greater than every earlier one. None when `timeout_s` passed first. Gives the node a lease if it has none; the
        term ends with that lease, or by `resign`. Repeated during a term, it returns the same epoch.
        The host of a store leads from the beginning, with `FIRST_EPOCH`; None at once for the others there."""
        ...

    def wait_deposed(self, epoch: int, timeout_s: float) -> bool:
        """Block until the term with this epoch is over; False when `timeout_s` passed first (or at once where the store
        is hosted, as no term of a host ever ends)."""
        ...

    def resign(self, epoch: int) -> None:
        """End this term, so that another node need not wait for a lease to run out. Nothing if it is over already, or
        where the store is hosted."""
        ...

    # -- what the coordinator does -------------------------------------------------------------------------------
    def wait_nodes(self, cursor: int, timeout_s: float) -> tuple[int, Mapping[str, bytes]]:
        """Block until some node published after `cursor` (0: from the beginning); return the new cursor and the current
        records of the nodes that did, each once. An empty mapping when `timeout_s` passed first. A notification lost
        half-way (its writer died between two steps) delays others by at most one call of this method.
        On a store that elects, a node whose lease ended or began anew counts as one that published, if that was
        noticed: it is a hint that `read_beats` has news."""
        ...

    def read_beats(self, nodes: Sequence[str]) -> Mapping[str, int]:
        """The heartbeat counters of these nodes; one that never beat, or holds bytes that are no number, is absent.
        On a store that elects, those of them are there (with any count) that have a lease, or may be about
        to have another: a store may want to be sure."""
        ...

    def announce(self, version: int, value: bytes, epoch: int) -> None:
        """Publish version `version`, create-only, in the term with this epoch. Idempotent for equal bytes, also when
        the term is over by now. Raises StoreFenced when that version already holds something else, or the term is over.
        Versions follow each other without gaps; those far behind the newest may be deleted (at least 16 remain)."""
        ...

    def announce_end(self, version: int, value: bytes, epoch: int, job: bytes, over: bytes) -> bool:
        """As `announce`, the job's last word: with it goes `write_job(job, over)`, on a store that elects in one step,
        elsewhere before it. False if the job's record was not `over` (nor `job`), and so was left alone."""
        ...

    def clear(self, epoch: int) -> None:
        """Delete the nodes, heartbeats and announcements of this incarnation; its job's record stays. For the
        coordinator of a closed job once every node has ended. Nothing if the term is over, or where the store is
        hosted: all goes with its host."""
        ...


Join = Callable[[Store], None]
"""Joins the job in a store that was reached; raises what keeps this node out of it."""


class HostLeads:
    """Leadership on a store that one node hosts: nothing is elected. Its host coordinates in one term, as long
    as the store is there, and an announcement's version alone fences. A base of classes that implement `Store`."""

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
        """A host's term ends with its store."""

    def clear(self, epoch: int) -> None:
        """All goes with the host."""

    def write_job(self, value: bytes, over: bytes = b"") -> bytes:
        raise NotImplementedError

    def announce(self, version: int, value: bytes, epoch: int) -> None:
        raise NotImplementedError

    def announce_end(self, version: int, value: bytes, epoch: int, job: bytes, over: bytes) -> bool:
        # The record first, so that nobody who learns of the end finds it without the outcome.
        written = self.write_job(job, over) == job
        self.announce(version, value, epoch)
        return written
