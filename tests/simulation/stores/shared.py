"""What all nodes of a world share of a store behind drivers: one of two models of servers, and its faults."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

from elastic_agent.rendezvous.c10d import claim as c10d_claim
from elastic_agent.rendezvous.c10d import keys as c10d_keys
from elastic_agent.rendezvous.c10d import notifications, opening
from elastic_agent.rendezvous.c10d import store as c10d
from elastic_agent.rendezvous.c10d.keys import SERVED, Keys
from elastic_agent.rendezvous.codec import limits, records
from elastic_agent.rendezvous.codec.job import decode_job
from elastic_agent.rendezvous.endpoint import Address, Endpoint
from elastic_agent.rendezvous.records import Outcome
from elastic_agent.rendezvous.store import Store

from ..world.substitution import Substitute
from . import etcd, tcpstore, tcpstore_client, threads
from .driver_link import SPEC, DriverLink, Join
from .threads import Process

if TYPE_CHECKING:
    from ..world.node import SimNode
    from ..world.world import World


T = TypeVar("T")


def _remembering(decode: Callable[[bytes], T]) -> Callable[[bytes], T]:
    """`decode`, which makes one frozen value of equal bytes."""
    known: dict[bytes, T] = {}

    def decoded(data: bytes) -> T:
        value = known.get(data)
        if value is None:
            value = known[data] = decode(data)
        return value

    return decoded


class SharedStore:
    """A store behind the production drivers, as all nodes of a world share it."""

    spoiled = False
    """A client from outside the job wrote to it, or another, empty one has been served at its address."""

    elects = False
    """Whether it elects the coordinator; else the host coordinates."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._frozen_at = 0.0

    def links(self) -> Iterator[DriverLink]:
        for node in self.world.nodes.values():
            if isinstance(node.link, DriverLink):
                yield node.link

    def beats_read(self) -> None:
        """The coordinator reads heartbeats."""
        for link in self.links():
            link.beats_read()

    @property
    def answers(self) -> bool:
        raise NotImplementedError

    def leader(self) -> SimNode | None:
        """The node that the store has elected; None while there is none."""
        raise NotImplementedError

    @property
    def term(self) -> int:
        """The epoch of the newest term; 0 if it elects nobody."""
        return 0

    def open(self, link: DriverLink, cancelled: Any, join: Join) -> Store:
        raise NotImplementedError

    def substitutes(self) -> list[Substitute]:
        """What stands in the modules of its drivers instead of threads, clocks and sockets; and what they decode is
        remembered, as all nodes read the same bytes."""
        return [
            *threads.SUBSTITUTES,
            (records, "decode_node", _remembering(records.decode_node)),
            (records, "decode_round", _remembering(records.decode_round)),
            *self._pages(),
        ]

    def _pages(self) -> list[Substitute]:
        most = self.world.conditions.page_members
        return [(limits, "INLINE_MEMBERS", most), (limits, "PAGE_MEMBERS", most)] if most else []

    def stall(self, lasts_s: float) -> None:
        """Its host is frozen for `lasts_s` seconds."""
        host = self.world.host
        if not host.done and not host.frozen:
            host.freeze()
            self.world.at(lasts_s, self._goes_on)

    def _goes_on(self) -> None:
        self.world.checkers.last_fault = self.world.now
        self.world.host.thaw()

    def freeze(self) -> None:
        """The host is frozen."""

    def thaw(self) -> None:
        """The host goes on."""

    def end(self) -> None:
        """The host has ended."""


class SharedTcpStore(SharedStore):
    """TCPStore, served by the host's agent: it is frozen and ends with the host."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.server: tcpstore.Server | None = None

    @property
    def answers(self) -> bool:
        return self.server is not None and not self.server.frozen and not self.server.gone

    def open(self, link: DriverLink, cancelled: Any, join: Join) -> Store:
        timeout_s = self.world.job.connect_timeout_s
        return opening.open_c10d(
            "host:29400", "job", is_host=link.node.host, connect_timeout_s=timeout_s, cancelled=cancelled, join=join
        )

    def substitutes(self) -> list[Substitute]:
        return [
            *super().substitutes(),
            (c10d_keys, "connect", self._connect),
            (opening, "connect", self._connect),
            (opening, "claim", lambda where, forced, shared: c10d_claim.Claim(where)),
            (opening, "serve", self._serve),
            (notifications, "KEEP", 16),
            (notifications, "NODES_PER_KEY", max(4, self.world.job.max_nodes // 4)),  # few keys of a thousand nodes
            (c10d, "DescriptorWatch", lambda warn: SimpleNamespace(check=lambda: None)),
            (opening, "connect_any", self._connect_any),
        ]

    def _serve(self, bound: object, where: object, forced: bool) -> tcpstore.Serving:
        self.server = tcpstore.Server(self.world)
        return tcpstore.Serving(self.server)

    def _connect(
        self,
        address: object,
        name: str,
        timeout_s: float,
        call_timeout_s: float,
        asks: str = "",
        reads: Sequence[str] = (),
    ) -> tcpstore_client.Wire:
        link = Process.running.node.link
        if not isinstance(link, DriverLink):
            raise TypeError(f"{link} has no wire")
        return tcpstore_client.connect(link, self.server, call_timeout_s, asks, reads)

    def _connect_any(
        self, where: Endpoint, timeout_s: float, call_timeout_s: float, asks: str = ""
    ) -> tuple[tcpstore_client.Wire, Address]:
        address = socket.AF_INET, (where.host, where.port)
        return self._connect(address, str(where), timeout_s, call_timeout_s, asks), address

    def freeze(self) -> None:
        if self.server is not None:
            self.server.frozen = True
            self._frozen_at = self.world.now

    def thaw(self) -> None:
        if self.server is not None:
            for link in self.links():
                link.excused(self.world.now - self._frozen_at)
            self.server.thaw()

    def end(self) -> None:
        if self.server is not None and not self.server.gone:
            self.server.close()
        for link in self.links():
            link.reset()

    def spoil(self, target: float, value: bytes) -> None:
        """A client from outside the job writes these bytes over some key."""
        if self.server is not None and self.server.keys:
            key = self.server.spoil(target, value)
            self.spoiled = True
            self.world.reached.note(
                "a stranger wrote where a counter was" if key.endswith("head") else "a stranger wrote"
            )

    def lie(self, target: float, random: Random) -> None:
        """A client from outside the job writes to some key what the job might write there."""
        if self.server is not None and self.server.keys:
            key = self.server.lie(target, random)
            self.spoiled = True
            self.world.reached.note(f"a stranger lied about {key.split('/')[3]}" if key else "a stranger found no key")

    def occupy(self, lasts_s: float) -> None:
        """Clients from outside the job take all descriptors that the host has left."""
        if self.server is not None:
            self.server.full = True
            self.world.reached.note("no descriptor was left")
            self.world.at(lasts_s, self._released, self.server)

    def _released(self, server: tcpstore.Server) -> None:
        server.full = False
        self.world.checkers.last_fault = self.world.now

    def hang(self, lasts_s: float) -> None:
        """The server stands still on one request, while its host's agent goes on."""
        if self.server is not None and self.answers:
            self.world.reached.note("the server hung while its host went on")
            self.freeze()
            self._still_hangs()
            self.world.at(lasts_s, self._hangs_no_more)

    def _still_hangs(self) -> None:
        """What nodes have to write waits for the server, so no time counts until then."""
        if self.server is not None and self.server.frozen and not self.server.gone:
            self.world.checkers.last_fault = self.world.now
            self.world.at(1.0, self._still_hangs)

    def _hangs_no_more(self) -> None:
        if not self.world.host.frozen and self.server is not None and self.server.frozen:
            self.world.checkers.last_fault = self.world.now
            self.thaw()

    def serve_anew(self, lasts_s: float) -> None:
        """The host was started again and serves an empty store, of another incarnation of the job, for `lasts_s`."""
        if self.server is None or not self.server.gone:
            return
        self.world.reached.note("a host returned with an empty store")
        self.spoiled = True
        self.world.checkers.announcements.served_anew()
        self.server = tcpstore.Server(self.world, frozenset(link for link in self.links() if link.opened))
        keys = Keys(SPEC.run_id)
        laid_out = {**dict.fromkeys(keys.counters, b"0"), keys.life: b"another", SERVED: keys.served}
        self.server.keys.update(laid_out)
        self.world.at(lasts_s, self.end)


class SharedEtcd(SharedStore):
    """etcd, which runs outside the job: it elects the coordinator, and has faults of its own."""

    elects = True

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.server = etcd.Server(world)
        if world.after is not None and isinstance(world.after.shared_store, SharedEtcd):
            self.server.outlive(world.after.shared_store.server)

    @property
    def answers(self) -> bool:
        return not self.server.frozen

    @property
    def outcome(self) -> Outcome | None:
        """How the job ended, by its record."""
        return decode_job(self.server.job).outcome if self.server.job else None

    def leader(self) -> SimNode | None:
        return self.world.nodes.get(self.server.leader)

    @property
    def term(self) -> int:
        return self.server.epoch

    def open(self, link: DriverLink, cancelled: Any, join: Join) -> Store:
        store = etcd.open_etcd(link, self.server, self.world.job.connect_timeout_s, cancelled)
        join(store)
        return store

    def stall(self, lasts_s: float) -> None:
        """The servers elect another leader, or the only one is frozen."""
        if not self.server.frozen:
            elects = self.world.rng.random() < 0.5
            self.world.reached.note("etcd elected another leader" if elects else "etcd was frozen")
            self.server.frozen = True
            self._frozen_at = self.world.now
            self.world.at(lasts_s, self._goes_on_again, elects)

    def _goes_on_again(self, elected: bool) -> None:
        for link in self.links():
            link.excused(self.world.now - self._frozen_at)
        self.server.thaw(renews=elected)
        self.world.checkers.last_fault = self.world.now


SHARED_STORES = {"c10d": SharedTcpStore, "etcd": SharedEtcd}
"""By the name of the store."""
