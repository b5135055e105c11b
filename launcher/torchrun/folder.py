"""One torchrun job in etcd: its keys, the lease they are attached to, and retries while the cluster does not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from ...proto.frozen import dataclass
from ...rendezvous.etcd.client import EtcdClient
from ...rendezvous.etcd.errors import EtcdClosed, EtcdRefused
from ...rendezvous.etcd.keys import TorchrunKeys
from ...rendezvous.etcd.leases import Leases
from ...rendezvous.store import StoreUnreachable

PAUSE_S = 0.5
"""Time between two attempts while the cluster does not answer."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryLimits:
    """For how long a request is repeated while the cluster does not answer, in seconds."""

    first_s: float
    """Until the cluster has answered once."""
    later_s: float
    """After that."""


class Folder:
    """A job's keys in etcd, and the lease they are attached to. Threads may share it."""

    def __init__(self, client: EtcdClient, keys: TorchrunKeys, record_ttl_s: float, limits: RetryLimits) -> None:
        self.client = client
        self.keys = keys
        self._leases = Leases(record_ttl_s, record_ttl_s, keys.lease)
        self._limits = limits
        self._answered = False
        self._closed = threading.Event()

    def ask(self, do: Callable[[int], T]) -> T:
        """Call `do` with the number of the job's lease and return its result. While the cluster does not answer, `do`
        is called again, within the limits. If the cluster has answered before, a refusal is retried too, because an
        operator may be changing users or certificates. Raises StoreError."""
        limit_s = self._limits.later_s if self._answered else self._limits.first_s
        deadline = time.monotonic() + limit_s
        while True:
            try:
                result = self._leases.with_leases("", lambda: do(self._leases.job(self.client)))
            except EtcdClosed:
                raise
            except (StoreUnreachable, EtcdRefused) as why:
                may_pass = self._answered or isinstance(why, StoreUnreachable)
                if not may_pass:
                    raise
                if time.monotonic() >= deadline:
                    raise StoreUnreachable(f"gave up on etcd after {limit_s:g} s: {why}") from why
            else:
                self._answered = True
                return result
            self._closed.wait(PAUSE_S)

    def close(self) -> None:
        """Close the client. The keys stay until their lease runs out, because other agents may still use them."""
        self._closed.set()
        self.client.close()
