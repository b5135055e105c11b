"""A model of etcd: revisions, leases on the server's clock, watches that are only hints, and the store contract on top.

A request without an answer may have been applied. While the servers elect another leader nothing is answered, and then
every lease begins anew; when the only server was frozen, the leases that ran out meanwhile end as it goes on. A watch
may miss a change, so a client that waits also reads. The production store needs real servers; this one implements the
same contract, and the production drivers run on either.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from elastic_agent.rendezvous.store import StoreFenced, StoreRefused, StoreUnreachable

from ..checks.invariants import PEACEFUL
from .candidate import candidate
from .threads import TIMEOUT, Ticket, ticket

if TYPE_CHECKING:
    from ..world.world import World
    from .driver_link import DriverLink

LATE_S = 0.003
"""A wait ends so long after its time, as real ones do: else it ends at the very moment of a heartbeat that began with
it, and which of the two is first depends on the rounding of a clock."""
DEADLINE_S = 2.0
"""Of a request; servers drop one that arrives later. Well below a lease, or one lost heartbeat would end the lease."""
RETRY_S = 0.3
HINTS_LOST = 0.1
"""Share of a watch's hints that never arrive."""
FENCED = object()
REFUSED = object()


class Server:
    """All servers of one etcd, seen as one."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.revision = 0
        self.incarnation = 1
        self.job = b""
        self.ended = b""
        """The record of an earlier job that has ended, which this server held when its world began."""
        self.rounds: dict[int, bytes] = {}
        self.values: dict[str, bytes] = {}
        """What nodes share beside that: pages of members."""
        self.nodes: dict[str, tuple[bytes, int]] = {}
        """Value, and the revision that wrote it."""
        self.leases: dict[str, float] = {}
        """Node to the end of its lease."""
        self._none_ends_before = 0.0
        """No lease ends sooner: a thousand are looked through only then."""
        self.leader = ""
        self.epoch = 0
        """Of the newest term: the revision that began it."""
        self.frozen = False
        self.full = False
        """It refuses what takes space: writes and new leases, not renewals, reads and deletions."""
        self._saw_none: set[str] = set()
        """Nodes that have read that nobody leads, and have not stood since."""
        self._held: list[tuple[DriverLink, Ticket, float, str, tuple[Any, ...]]] = []
        self._watching: dict[str, list[tuple[DriverLink, Ticket]]] = {"nodes": [], "rounds": [], "leader": []}

    def outlive(self, earlier: Server) -> None:
        """Hold what an earlier job has left, whose agents have all ended."""
        self.revision, self.incarnation, self.epoch = earlier.revision, earlier.incarnation, earlier.epoch
        self.rounds, self.nodes, self.values = dict(earlier.rounds), dict(earlier.nodes), dict(earlier.values)
        self.job = self.ended = earlier.job

    def begin(self, incarnation: int) -> None:
        """A node has joined this incarnation, which has keys of its own."""
        if incarnation > self.incarnation:
            self.incarnation = incarnation
            self.rounds, self.nodes, self.values = {}, {}, {}
            self.world.reached.note("another incarnation began")

    def receive(self, link: DriverLink, asks: Ticket, ends: float, name: str, arguments: tuple[Any, ...]) -> None:
        if self.frozen:
            self._held.append((link, asks, ends, name, arguments))
        elif self.world.now <= ends:
            if name == "watch":
                self._watching[arguments[0]].append((link, asks))
                return
            if name == "held" and link.node.ident == self.leader:  # not a deposed leader that has not received that yet
                link.shared_store.beats_read()
            if self.full and self._takes_space(name, arguments):
                self.world.reached.note("a write was refused")
                if name == "publish" and link.node.attends and arguments[0] in self.leases:
                    link.beat_arrived()  # the node does its part, and says so
                self._reply(link, asks, REFUSED)
                return
            self._reply(link, asks, getattr(self, name)(*arguments))

    def _takes_space(self, name: str, arguments: tuple[Any, ...]) -> bool:
        if name == "beat":
            return arguments[-1] not in self.leases
        return name in ("publish", "announce", "write_job", "put_values") or (
            name in ("stand", "claim") and not self.leader
        )

    def _reply(self, link: DriverLink, asks: Ticket, answer: object) -> None:
        if (link.losing and link.loses("reply")) or link.down_cut or asks.thread.role in link.silent:
            return  # applied, but the client does not receive the answer
        self.world.at(self.world.delays.network(), asks.wake_now, answer)

    def thaw(self, *, renews: bool) -> None:
        """Requests under way are taken or lost. `renews`: there is another leader, so every lease begins anew."""
        self.frozen = False
        for node in self.leases if renews else ():
            self.leases[node] = self.world.now + self.world.job.held_s
        self._expire()
        held, self._held = self._held, []
        for request in held:
            if self.world.rng.random() < 0.5:
                self.receive(*request)

    def _expire(self) -> None:
        """Runs when some lease may have ended; a frozen server ends none."""
        if self.frozen or self.world.now < self._none_ends_before:
            return
        for node in [node for node, ends in self.leases.items() if ends <= self.world.now]:
            del self.leases[node]
            if node == self.leader:
                self._ends_term()
            self._hint("nodes")
        self._none_ends_before = min(self.leases.values(), default=math.inf)

    def _renew(self, node: str) -> None:
        if node not in self.leases:
            self._hint("nodes")
        self.leases[node] = self.world.now + self.world.job.held_s
        self._none_ends_before = min(self._none_ends_before, self.leases[node])
        self.world.when(self.leases[node], self._expire)
        self.world.nodes[node].link.beat_arrived()

    def _ends_term(self) -> None:
        self.leader = ""
        self._hint("leader")

    def _hint(self, what: str) -> None:
        watching, self._watching[what] = self._watching[what], []
        for link, asks in watching:
            if self.world.rng.random() >= HINTS_LOST:
                self._reply(link, asks, True)

    # -- requests ------------------------------------------------------------------------------------------------

    def write_job(self, over: bytes, value: bytes) -> bytes:
        """Returns the job's record afterwards: a transaction that compares its value, or its revision with 0."""
        if self.job == over:
            self.revision += 1
            self.job = value
        return self.job

    def written(self, after: int) -> tuple[int, dict[str, bytes]]:
        """The revision now, and the nodes' records that were written after revision `after`."""
        return self.revision, {node: value for node, (value, at) in self.nodes.items() if at > after}

    def publish(self, node: str, value: bytes) -> None:
        self._renew(node)
        self.revision += 1
        self.nodes[node] = (value, self.revision)
        self.world.checkers.costs.recorded(len(value))
        self._hint("nodes")

    def beat(self, link: DriverLink, node: str) -> int:
        self._renew(node)
        link.vouched()
        return max(self.rounds, default=0)

    def held(self, nodes: Sequence[str]) -> dict[str, int]:
        """Which of these have a lease."""
        return {node: 0 for node in nodes if node in self.leases}

    def newest(self) -> tuple[int, bytes] | None:
        newest = max(self.rounds, default=0)
        return (newest, self.rounds[newest]) if newest else None

    def stand(self, node: str) -> int:
        """The epoch of its term; 0 if another leads."""
        if self.leader not in ("", node):
            return 0
        self._renew(node)
        if self.leader != node:
            self.revision += 1
            self.leader, self.epoch = node, self.revision
        return self.epoch

    def coordinator(self, node: str) -> tuple[int, str, int]:
        """For this node: the revision now, who leads, and the epoch of that term."""
        if not self.leader:
            self._saw_none.add(node)
        return self.revision, self.leader, self.epoch

    def claim(self, node: str) -> tuple[int, str, int]:
        """As `stand`, by a transaction that is written to the servers' disks, whether the node comes to lead or not."""
        self.world.checkers.need(
            node in self._saw_none, PEACEFUL, f"{node} writes, and {self.leader or 'nobody'} leads"
        )
        self._saw_none.remove(node)
        self.stand(node)
        return self.revision, self.leader, self.epoch

    def leads(self, epoch: int) -> bool:
        return self.leader != "" and self.epoch == epoch

    def resign(self, epoch: int) -> None:
        if self.leads(epoch):
            self.world.reached.note("a coordinator resigned")
            self._ends_term()

    def announce(self, link: DriverLink, version: int, value: bytes, epoch: int, job: tuple[bytes, bytes]) -> object:
        """One transaction on the term's revision. `job`: its new record, and the old one; empty: no change."""
        if version in self.rounds or not self.leads(epoch):
            same = self.rounds.get(version) == value
            if not same:
                self.world.reached.note("a deposed coordinator was refused")
            return self.job == job[0] if same else FENCED
        self.revision += 1
        self.rounds[version] = value
        self.world.checkers.costs.announced(len(value))
        self._hint("rounds")
        link.accepted(version, epoch)
        return not job[0] or self.write_job(job[1], job[0]) == job[0]

    def put_values(self, values: Mapping[str, bytes]) -> None:
        self.values.update(values)

    def get_values(self, names: Sequence[str]) -> dict[str, bytes]:
        return {name: self.values[name] for name in names if name in self.values}

    def drop_values(self, names: Sequence[str]) -> None:
        for name in names:
            self.values.pop(name, None)

    def clear(self, epoch: int) -> None:
        if self.leads(epoch):
            self.values.clear()
            self.rounds.clear()
            self.nodes.clear()
            self.world.checkers.cleared = True


class EtcdStore:
    """One client; implements `Store`."""

    hosted = False
    host_count = None
    newest_record = None
    elects = True

    def __init__(self, link: DriverLink, server: Server) -> None:
        self._link = link
        self._server = server
        self._world = link.world
        self._closed = False
        self._asks: Ticket | None = None
        self._job = b""
        """The job's record, as last read."""

    @property
    def outlives_jobs(self) -> bool:
        """Of an earlier job; for a node that comes late, the simulated world ends with its own."""
        return self._job != b"" and self._job == self._server.ended

    def _ask(self, name: str, *arguments: object, timeout_s: float = DEADLINE_S) -> Any:
        if self._closed:
            raise StoreUnreachable("this client was closed here")
        self._asks = mine = ticket()
        link = self._link
        if not ((link.losing and link.loses("request")) or link.up_cut):
            ends = self._world.now + timeout_s
            delay = self._world.delays.network()
            self._world.at(delay, self._server.receive, self._link, mine, ends, name, arguments)
        answer = mine.process.block(mine, timeout_s)
        self._asks = None
        if self._closed:
            raise StoreUnreachable("this client was closed here")
        if answer is REFUSED:
            raise StoreRefused("database space exceeded")
        if answer is TIMEOUT and name != "watch":
            raise StoreUnreachable("deadline exceeded")
        return answer

    def _now(self) -> float:
        return self._world.now

    def session(self) -> EtcdStore:
        return EtcdStore(self._link, self._server)

    def close(self) -> None:
        self._closed = True
        if self._asks is not None:
            self._asks.wake()

    def close_host(self) -> None:
        """Nothing: no node of the job hosts etcd."""

    def write_job(self, value: bytes, over: bytes = b"") -> bytes:
        self._job = self._ask("write_job", over, value)
        return self._job

    def use_incarnation(self, number: int) -> None:
        self._server.begin(number)

    def publish_node(self, node: str, value: bytes) -> None:
        self._ask("publish", node, value)
        self._link.answered(value, self._now())

    def beat(self, node: str, count: int) -> int:
        newest: int = self._ask("beat", self._link, node)
        self._link.answered(b"", self._now())
        return newest

    def wait_round(self, after: int, timeout_s: float) -> tuple[int, bytes] | None:
        found: tuple[int, bytes] | None = self._ask("newest")
        if timeout_s and (found is None or found[0] <= after):
            self._ask("watch", "rounds", timeout_s=min(timeout_s, 1.0))
            found = self._ask("newest")
        return found if found is not None and found[0] > after else None

    def lead(self, node: str, timeout_s: float) -> int | None:
        ends = self._now() + timeout_s + LATE_S
        if self._world.conditions.reads_first:
            return candidate(self._ask).campaign(node, ends)
        while not (epoch := self._ask("stand", node)):
            left_s = ends - self._now()
            if left_s <= 0:
                return None
            self._ask("watch", "leader", timeout_s=min(left_s, 1.0))
        return int(epoch)

    def wait_deposed(self, epoch: int, timeout_s: float) -> bool:
        ends = self._now() + timeout_s + LATE_S
        while self._ask("leads", epoch):
            left_s = ends - self._now()
            if left_s <= 0:
                return False
            self._ask("watch", "leader", timeout_s=min(left_s, 1.0))
        return True

    def resign(self, epoch: int) -> None:
        self._ask("resign", epoch)

    def wait_nodes(self, cursor: int, timeout_s: float) -> tuple[int, Mapping[str, bytes]]:
        found: tuple[int, dict[str, bytes]] = self._ask("written", cursor)
        if timeout_s and not found[1]:
            self._ask("watch", "nodes", timeout_s=min(timeout_s, 1.0))
            found = self._ask("written", cursor)
        return found

    def read_beats(self, nodes: Sequence[str]) -> Mapping[str, int]:
        held: dict[str, int] = self._ask("held", nodes)
        return held

    def announce(self, version: int, value: bytes, epoch: int) -> None:
        self._announce(version, value, epoch, (b"", b""))

    def announce_end(self, version: int, value: bytes, epoch: int, job: bytes, over: bytes) -> bool:
        return self._announce(version, value, epoch, (job, over))

    def _announce(self, version: int, value: bytes, epoch: int, job: tuple[bytes, bytes]) -> bool:
        answer = self._ask("announce", self._link, version, value, epoch, job)
        if answer is FENCED:
            raise StoreFenced(f"epoch {epoch} is over, or version {version} is taken")
        return bool(answer)

    def write_values(self, values: Mapping[str, bytes]) -> None:
        self._ask("put_values", values)

    def read_values(self, names: Sequence[str]) -> Mapping[str, bytes]:
        found: dict[str, bytes] = self._ask("get_values", names)
        return found

    def delete_values(self, names: Sequence[str]) -> None:
        self._ask("drop_values", names)

    def clear(self, epoch: int) -> None:
        self._ask("clear", epoch)


def open_etcd(link: DriverLink, server: Server, timeout_s: float, cancelled: Any) -> EtcdStore:
    """For the process that runs; once the servers answer."""
    store = EtcdStore(link, server)
    ends = link.world.now + timeout_s
    while True:
        try:
            store.beat(link.node.ident, 0)
        except StoreUnreachable:
            if link.world.now >= ends or cancelled.wait(RETRY_S):
                raise
        else:
            return store
