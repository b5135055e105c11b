"""etcd's face: revisions, leases on the server's clock, watches that only hint, and the store contract on top of them.

A request whose answer never came may have been applied. When the servers elect another leader, nothing is answered for
a while and every lease gets its whole length anew. A watch that says nothing proves nothing, so who waits looks again.
There is no driver for etcd yet: `EtcdStore` is what one must do, and the agents' own driver runs on it as on any store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from elastic_agent.rendezvous.hosted import HostLeads
from elastic_agent.rendezvous.store import StoreFenced, StoreUnreachable

from .threads import TIMEOUT, Process, Ticket, ticket

if TYPE_CHECKING:
    from .driven import DrivenLink
    from .world import World

DEADLINE_S = 2.0
"""Of a request; the servers drop one that comes later. Well below a node's lease, or one lost heartbeat ends it."""
LEASE_S = 10.0
HINTS_LOST = 0.1
"""Share of a watch's hints that never arrive."""


class Server:
    """All servers of one etcd, seen as one."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.revision = 0
        self.keys: dict[str, tuple[bytes, int]] = {}
        """Value, and the revision that wrote it."""
        self.leases: dict[str, float] = {}
        """Key to the end of its lease."""
        self.frozen = False
        self._held: list[tuple[DrivenLink, Ticket, float, str, tuple[Any, ...]]] = []
        self._watching: list[tuple[str, DrivenLink, Ticket]] = []

    def receive(self, link: DrivenLink, asks: Ticket, ends: float, name: str, arguments: tuple[Any, ...]) -> None:
        if self.frozen:
            self._held.append((link, asks, ends, name, arguments))
        elif self.world.now <= ends:
            self._expire()
            if name == "watch":
                self._watching.append((*arguments, link, asks))
            else:
                if name == "range" and arguments[0] == "beat/":
                    link.face.looked_at()
                if name == "beat" and self.keys.get(arguments[0], (b"", 0))[0] != arguments[1]:
                    link.heard()
                self._reply(link, asks, getattr(self, name)(*arguments))

    def _reply(self, link: DrivenLink, asks: Ticket, answer: object) -> None:
        if link.loses("reply") or link.down_cut:
            return  # applied, and the client will never know
        self.world.at(self.world.delays.network(), asks.wake_now, answer)

    def thaw(self) -> None:
        """Another leader: what was under way is taken or lost, and every lease begins anew."""
        self.frozen = False
        for key in self.leases:
            self.leases[key] = self.world.now + LEASE_S
        held, self._held = self._held, []
        for request in held:
            if self.world.rng.random() < 0.5:
                self.receive(*request)

    def _expire(self) -> None:
        for key in [key for key, ends in self.leases.items() if ends < self.world.now]:
            del self.leases[key]
            self.keys.pop(key, None)
            self.revision += 1

    # -- what is asked ------------------------------------------------------------------------------------------------

    def put(self, key: str, value: bytes, leased: bool = False) -> int:
        self.revision += 1
        self.keys[key] = (value, self.revision)
        if leased:
            self.leases[key] = self.world.now + LEASE_S
        watching, self._watching = self._watching, []
        for prefix, link, asks in watching:
            if not key.startswith(prefix):
                self._watching.append((prefix, link, asks))
            elif self.world.rng.random() >= HINTS_LOST:
                self._reply(link, asks, True)
        return self.revision

    def create(self, key: str, value: bytes) -> bytes:
        """What the key holds then: a transaction that compares its revision with 0."""
        if key not in self.keys:
            self.put(key, value)
        return self.keys[key][0]

    def swap(self, key: str, expected: bytes, value: bytes) -> bytes:
        """What the key holds then: a transaction that compares its value, or its revision with 0."""
        if self.keys.get(key, (b"", 0))[0] == expected:
            self.put(key, value)
        return self.keys.get(key, (b"", 0))[0]

    def range(self, prefix: str, after: int = 0) -> tuple[int, dict[str, tuple[bytes, int]]]:
        found = {key: held for key, held in self.keys.items() if key.startswith(prefix) and held[1] > after}
        return self.revision, found

    def beat(self, key: str, value: bytes, leads: bool) -> int | None:
        """One transaction: the counter and its lease, and whether anybody coordinates; the newest version."""
        self.put(key, value, leased=True)
        if leads:
            self.put("leader", b"", leased=True)
        newest = self.keys.get("newest", (b"0", 0))[0]
        return int(newest) if "leader" in self.keys else None


class EtcdStore(HostLeads):
    """One client; implements `Store`."""

    def __init__(self, link: DrivenLink, server: Server, *, hosted: bool) -> None:
        self._link = link
        self._server = server
        self._world = link.world
        self._hosted = hosted
        self._closed = False
        self._asks: Ticket | None = None

    def _ask(self, name: str, *arguments: object, timeout_s: float = DEADLINE_S) -> Any:
        if self._closed:
            raise StoreUnreachable("this client was closed here")
        self._asks = mine = ticket()
        lost = self._link.loses("request") or self._link.up_cut
        if not lost:
            ends = self._world.now + timeout_s
            delay = self._world.delays.network()
            self._world.at(delay, self._server.receive, self._link, mine, ends, name, arguments)
        answer = mine.process.block(mine, timeout_s)
        self._asks = None
        if self._closed:
            raise StoreUnreachable("this client was closed here")
        if answer is TIMEOUT and name != "watch":
            raise StoreUnreachable("deadline exceeded")
        return answer

    def enter(self, timeout_s: float) -> None:
        """As the coordinator, take the leader's key; as a client, wait for somebody to hold it."""
        ends = self._world.now + timeout_s
        while self._ask("beat", "beat/" + self._link.node.ident, b"0", self._hosted) is None:
            if self._world.now >= ends:
                raise StoreUnreachable("nobody coordinates this job")
            self._ask("watch", "leader", timeout_s=0.5)

    def session(self) -> EtcdStore:
        return EtcdStore(self._link, self._server, hosted=self._hosted)

    def close(self) -> None:
        self._closed = True
        if self._asks is not None:
            self._asks.wake()

    def close_host(self) -> None:
        if self._hosted:
            self._server.keys.pop("leader", None)  # the lease is given back

    @property
    def hosted(self) -> bool:
        return self._hosted

    @property
    def outlives_jobs(self) -> bool:
        return False  # the simulated world ends with its job

    def write_job(self, value: bytes, over: bytes = b"") -> bytes:
        holds: bytes = self._ask("swap", "job", over, value)
        return holds

    def use_incarnation(self, number: int) -> None:
        """There is only the first; see `outlives_jobs`."""

    def publish_node(self, node: str, value: bytes) -> None:
        self._ask("put", "node/" + node, value)

    def beat(self, node: str, count: int) -> int:
        newest: int | None = self._ask("beat", "beat/" + node, str(count).encode("ascii"), self._hosted)
        if newest is None:
            raise StoreUnreachable("nobody coordinates this job any more")
        return newest

    def wait_round(self, after: int, timeout_s: float) -> tuple[int, bytes] | None:
        found = self._newest()
        if found is None or found[0] <= after:
            self._ask("watch", "newest", timeout_s=min(timeout_s, 1.0))
            found = self._newest()
        return found if found is not None and found[0] > after else None

    def _newest(self) -> tuple[int, bytes] | None:
        _, found = self._ask("range", "round/")
        versions = {int(key[len("round/") :]): value for key, (value, _) in found.items()}
        newest = max(versions, default=0)
        return (newest, versions[newest]) if newest else None

    def wait_nodes(self, cursor: int, timeout_s: float) -> tuple[int, Mapping[str, bytes]]:
        revision, found = self._ask("range", "node/", cursor)
        if not found:
            self._ask("watch", "node/", timeout_s=timeout_s)
            revision, found = self._ask("range", "node/", cursor)
        return revision, {key[len("node/") :]: value for key, (value, _) in found.items()}

    def read_beats(self, nodes: Sequence[str]) -> Mapping[str, int]:
        _, found = self._ask("range", "beat/")
        beats = {key[len("beat/") :]: int(value) for key, (value, _) in found.items()}
        return {node: beats[node] for node in nodes if node in beats}

    def announce(self, version: int, value: bytes, epoch: int) -> None:
        holds = self._ask("create", f"round/{version}", value)
        if holds != value:
            raise StoreFenced(f"version {version} is taken by another coordinator")
        self._ask("put", "newest", str(version).encode("ascii"))


def open_etcd(link: DrivenLink, server: Server, timeout_s: float) -> EtcdStore:
    """For the process that runs."""
    store = EtcdStore(link, server, hosted=Process.running.node.host)
    store.enter(timeout_s)
    return store
