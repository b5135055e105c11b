"""One job of torchrun's in etcd: its keys, the lease on which they hang, and patience with a cluster that is away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ...rendezvous.etcd.client import EtcdClient
from ...rendezvous.etcd.errors import EtcdClosed, EtcdRefused
from ...rendezvous.etcd.keys import TorchrunKeys
from ...rendezvous.etcd.leases import Leases
from ...rendezvous.store import StoreUnreachable

PAUSE_S = 0.5
"""Between attempts while the cluster does not answer."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a cluster that does not answer is asked again, in seconds: at first, and once it has answered."""

    first_s: float
    later_s: float


class Folder:
    """A job's keys in etcd, and the lease on which they hang. Threads may share it."""

    def __init__(self, client: EtcdClient, keys: TorchrunKeys, record_ttl_s: float, patience: Patience) -> None:
        self.client = client
        self.keys = keys
        self._leases = Leases(record_ttl_s, record_ttl_s, keys.lease)
        self._patience = patience
        self._answered = False
        self._closed = threading.Event()

    def ask(self, do: Callable[[int], T]) -> T:
        """What `do` returns, which gets the number of the job's lease, and may be called more than once. A refusal,
        too, is waited out where the cluster has answered before: an operator may be at work. Raises StoreError."""
        patience_s = self._patience.later_s if self._answered else self._patience.first_s
        deadline = time.monotonic() + patience_s
        while True:
            try:
                found = self._leases.with_leases("", lambda: do(self._leases.job(self.client)))
            except EtcdClosed:
                raise
            except (StoreUnreachable, EtcdRefused) as why:
                waits = self._answered or isinstance(why, StoreUnreachable)
                if not waits:
                    raise
                if time.monotonic() >= deadline:
                    raise StoreUnreachable(f"gave up on etcd after {patience_s:g} s: {why}") from why
            else:
                self._answered = True
                return found
            self._closed.wait(PAUSE_S)

    def close(self) -> None:
        """End the client. The keys go with the lease: other agents may still be at work with them."""
        self._closed.set()
        self.client.close()
