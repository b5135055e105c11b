"""Stores of every kind for the tests of the store contract, each with a node that coordinates."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cached_property

from elastic_agent.rendezvous.c10d.opening import open_c10d
from elastic_agent.rendezvous.c10d.store import C10dStore
from elastic_agent.rendezvous.etcd.store import EtcdStore, Location, open_etcd
from elastic_agent.rendezvous.memory_store import MemoryStore
from elastic_agent.rendezvous.store import Store
from support.etcd_servers import VERSIONS, shared_servers

BOUND_S = 30.0
"""How long an immediate effect may take on a busy host."""
LEASE_S = 1.0
"""A lease that tests wait to run out."""
HOSTED = ["memory", "c10d"]
ELECTING = ["electing memory", *(f"etcd {version}" for version in VERSIONS)]


class Stage:
    """One store and the session of the node that coordinates: its host, or the node to elect. Closes its sessions."""

    def __init__(self, host: Store, guest: Callable[[], Store]) -> None:
        self.host = host
        self._guest = guest
        self._sessions: list[Store] = [host] if host.elects else []

    @cached_property
    def epoch(self) -> int:
        """The epoch of the coordinator's term, which begins with the first use."""
        return lead(self.host)

    def announce(self, version: int, value: bytes) -> None:
        """Announce as the coordinator."""
        self.host.announce(version, value, self.epoch)

    def guest(self) -> Store:
        """A connection of another node."""
        return self._kept(self._guest())

    def session(self, store: Store) -> Store:
        """A further connection of the same node."""
        return self._kept(store.session())

    def close(self) -> None:
        for session in self._sessions:
            session.close()

    def _kept(self, session: Store) -> Store:
        self._sessions.append(session)
        return session


def lead(store: Store, node: str = "host") -> int:
    """Elect this node, which takes no waiting; the epoch of its term."""
    epoch = store.lead(node, BOUND_S)
    assert epoch is not None
    return epoch


@contextmanager
def opened(kind: str, lease_s: float = 60.0) -> Iterator[Stage]:
    """A new store of this kind (see HOSTED and ELECTING). `lease_s`: length of a lease on an electing store."""
    if kind == "c10d":
        host: C10dStore = open_c10d("127.0.0.1:0", "contract/ü %2F\n", is_host=True)
        made = Stage(host, lambda: open_c10d(str(host.endpoint), "contract/ü %2F\n", is_host=False))
        try:
            yield made
        finally:
            made.close()
            host.close_host()
        return
    if kind.startswith("etcd"):
        with closing(_stage_on_etcd(kind.removeprefix("etcd "), lease_s)) as made:
            yield made
        return
    shared = MemoryStore(lease_s if kind == "electing memory" else None)
    made = Stage(shared.guest() if kind == "electing memory" else shared.host(), shared.guest)
    yield made
    made.close()


def _stage_on_etcd(version: str, lease_s: float) -> Stage:
    place = Location(f"contract/ü %2F {uuid.uuid4()}\n", lease_s=lease_s)

    def guest() -> EtcdStore:
        return open_etcd(shared_servers(version).endpoints, place, connect_timeout_s=BOUND_S)

    return Stage(guest(), guest)
