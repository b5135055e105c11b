"""The leases that one agent keeps in etcd: its node's, which shows that the node is alive, and the job's, which lasts
longer than any agent."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from .client import EtcdClient, Lease
from .errors import EtcdLeaseGone

RENEWALS = 4
"""Renewals of the job's lease within its TTL, by each agent: the lease survives three lost ones."""
FIRST_RENEWAL_S = 30.0
"""Until an agent renews the job's lease that it has found with another one that renews it."""
ATTEMPTS = 3
"""Attempts to attach keys to leases, where the leases expire each time."""

T = TypeVar("T")


class Leases:
    """The leases that all sessions of one agent share. Any thread may use it. Network calls go through the client that
    the caller passes, so that closing that session ends them."""

    def __init__(self, node_s: float, job_s: float, job_number: int) -> None:
        """`node_s`, `job_s`: TTLs in seconds, rounded up to whole ones, as etcd requires. `job_number`: id of the job's
        lease."""
        self._node_s = max(1, math.ceil(node_s))
        self._job_s = max(1, math.ceil(job_s))
        self._job_number = job_number
        self._lock = threading.Lock()
        self._of_nodes: dict[str, Lease] = {}
        self._job: Lease | None = None
        self._job_due = 0.0

    def job(self, client: EtcdClient) -> int:
        """Id of the job's lease, granted or renewed if that is due."""
        with self._lock:
            if self._job is None or time.monotonic() >= self._job_due:
                self._job = self._renewed_job(client)
                self._job_due = time.monotonic() + self._job.ttl_s / RENEWALS
            return self._job.id

    def found_job(self, client: EtcdClient, is_led: bool) -> None:
        """This agent joins a job that exists. Where one leads it, that one has renewed its lease lately, and this one
        begins once the join is over, in which many agents ask much else."""
        if not is_led:
            self.job(client)
            return
        with self._lock:
            self._job = Lease(self._job_number, self._job_s)
            self._job_due = time.monotonic() + min(self._job_s / RENEWALS, FIRST_RENEWAL_S)

    def _renewed_job(self, client: EtcdClient) -> Lease:
        """Renew first: all agents but the first find it granted, and a grant costs the servers a write."""
        try:
            return client.keep_alive(Lease(self._job_number, self._job_s), "the job's")
        except EtcdLeaseGone:
            if self._job is not None:
                raise  # its keys are gone with it
            return client.grant(self._job_s, self._job_number)

    def node(self, client: EtcdClient, node: str) -> int:
        """Id of the node's lease, granted if the node has none. It may have expired since the last renewal."""
        with self._lock:
            return self._granted(client, node).id

    def renew(self, client: EtcdClient, node: str) -> int:
        """Renew the node's lease, or grant it; returns its id. Raises EtcdLeaseGone if it has expired."""
        with self._lock:
            granted = self._of_nodes.get(node)
            return self._granted(client, node).id if granted is None else client.keep_alive(granted).id

    def _granted(self, client: EtcdClient, node: str) -> Lease:
        if node not in self._of_nodes:
            self._of_nodes[node] = client.grant(self._node_s)
        return self._of_nodes[node]

    def restart_job(self, client: EtcdClient) -> None:
        """Renew the job's lease now, due or not."""
        with self._lock:
            self._job_due = 0.0
        self.job(client)

    def with_leases(self, node: str, attach: Callable[[], T]) -> T:
        """Return `attach()`, which attaches keys to the job's or the node's lease. If one of them has expired, forget
        both, so that `attach` obtains new ones, and repeat. Raises EtcdLeaseGone after ATTEMPTS."""
        for left in reversed(range(ATTEMPTS)):
            with self._lock:
                job, own = self._job, self._of_nodes.get(node)
            try:
                return attach()
            except EtcdLeaseGone:
                if not left:
                    raise
                with self._lock:  # another thread may have obtained new ones meanwhile
                    if self._job is job:
                        self._job = None
                    if self._of_nodes.get(node) is own:
                        self._of_nodes.pop(node, None)
        raise AssertionError("unreachable")
