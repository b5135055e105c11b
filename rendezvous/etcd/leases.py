"""The leases that one agent keeps in etcd: its node's, which says that it lives, and the job's, which outlasts it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from .client import EtcdClient, Lease
from .errors import EtcdLeaseGone

RENEWALS = 4
"""How often in its length the job's lease is renewed by each agent: with three lost it still stands."""
TRIES = 3
"""For what hangs on a lease, while leases are gone each time."""

T = TypeVar("T")


class Leases:
    """What all sessions of one agent share. Any thread may use it; the network's calls are made by the caller's
    session, so that closing that one ends them."""

    def __init__(self, node_s: float, job_s: float, job_number: int) -> None:
        """Lengths in seconds, rounded up to whole ones, as etcd has them."""
        self._node_s = max(1, math.ceil(node_s))
        self._job_s = max(1, math.ceil(job_s))
        self._job_number = job_number
        self._lock = threading.Lock()
        self._of_nodes: dict[str, Lease] = {}
        self._job: Lease | None = None
        self._job_due = 0.0

    def job(self, client: EtcdClient) -> int:
        """Number of the job's lease, which is there then."""
        with self._lock:
            if self._job is None:
                self._job = client.grant(self._job_s, self._job_number)
                self._job_due = time.monotonic()  # another agent may have granted it long ago
            if time.monotonic() >= self._job_due:
                client.renew(self._job)
                self._job_due = time.monotonic() + self._job.ttl_s / RENEWALS
            return self._job.id

    def node(self, client: EtcdClient, node: str) -> int:
        """Number of the node's lease, which was there when last heard of."""
        with self._lock:
            if node not in self._of_nodes:
                self._of_nodes[node] = client.grant(self._node_s)
            return self._of_nodes[node].id

    def renew(self, client: EtcdClient, node: str) -> int:
        """Begin the node's lease anew; returns its number. Raises EtcdLeaseGone if it has run out."""
        number = self.node(client, node)
        with self._lock:
            client.renew(self._of_nodes[node])
        return number

    def restart_job(self, client: EtcdClient) -> None:
        """Begin the job's lease anew, now."""
        with self._lock:
            self._job_due = 0.0
        self.job(client)

    def held(self, node: str, hang: Callable[[], T]) -> T:
        """What `hang` returns, which hangs something on leases; once more with new ones if one of them was gone."""
        for left in reversed(range(TRIES)):
            try:
                return hang()
            except EtcdLeaseGone:
                if not left:
                    raise
                with self._lock:
                    self._job = None
                    self._of_nodes.pop(node, None)
        raise AssertionError("unreachable")
