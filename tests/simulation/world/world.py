"""The clock and the nodes of a simulated job. One thread, and an order of events that the seed fixes."""

from __future__ import annotations

import heapq
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from elastic_agent.rendezvous.coordinator import events as coordinator_events
from elastic_agent.rendezvous.coordinator.state import Rendezvous
from elastic_agent.rendezvous.records import Round

from ..checks.checkers import Checkers
from ..checks.coverage import Reached
from ..checks.invariants import LIVELY
from ..stores.direct import DirectStore
from ..stores.shared import SHARED_STORES, SharedStore
from . import fast_replace
from .conditions import Conditions
from .coordinator import SimCoordinator
from .job import Delays, Job
from .node import SimNode
from .ranks import Ranks
from .substitution import substituted
from .workers import Habit

FIRST_PORT, PORTS = 20_000, 45_000
"""Of the ports that nodes prepare."""


class World:
    """One job. `at` schedules, `run` lets time pass."""

    most_events = 10**9
    """More than these in one call of `run` are a violation."""

    def __init__(
        self,
        job: Job,
        rng: random.Random,
        delays: Delays,
        log: Callable[[float, str], None] | None = None,
        *,
        store: str = "",
        skew_s: float = 0.0,
        after: World | None = None,
    ) -> None:
        """`store`: "c10d" or "etcd", behind the production drivers; empty: neither, messages go straight.
        `skew_s`: by how much each node's clock differs from that of the node before. `after`: the world of a job that
        has ended, whose store this one finds; etcd only."""
        self.after = after
        self.job = job
        self.rng = rng
        self.delays = delays
        self.log = log
        self.now = 0.0
        self.ended = 0
        """How many agents have ended."""
        self.coming = 0
        """How many agents a fault has killed that will be started again."""
        self.upon_version: dict[int, list[tuple[float, Callable[..., None], tuple[object, ...]]]] = {}
        """What happens when the coordinator announces a version: delay, function, arguments."""
        self.pids, self._ports = 100, Counter[str]()
        self.conditions = Conditions()
        self.peers_cut: set[tuple[str, str]] = set()
        """Nodes of which the second does not receive what the first sends it; the store may still reach both."""
        self.nodes: dict[str, SimNode] = {}
        self.on_host: dict[int | str, list[SimNode]] = {}
        self.skew_s = skew_s
        self.shared_store = SHARED_STORES[store](self) if store else None
        self.store: DirectStore | SharedStore = self.shared_store or DirectStore(self)
        self.rendezvous: Rendezvous | None = None
        """The coordinator's state as of the last announcement that the store accepted."""
        self.reached = Reached()
        self.checkers = Checkers(self)
        self.clock = time.thread_time
        """Measures what coordinators spend, in seconds; one that also counts what other programs spend is quicker to
        read, and serves until it shows too much."""
        self._ranks: dict[tuple[int, int], Ranks] = {}
        """By number and master port of their round."""
        self._substituted = False
        """Names in production modules have their substitutes."""
        self._heap: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._count = 0
        self.host: SimNode
        """The first that joined, where one node hosts the store."""

    # -- time ------------------------------------------------------------------------------------------------------

    def at(self, delay: float, act: Callable[..., None], *args: object) -> None:
        """Schedules a call `delay` seconds from now."""
        self._count += 1
        heapq.heappush(self._heap, (self.now + delay, self._count, act, args))

    def fault_ends(self, delay: float, act: Callable[..., None], *args: object) -> None:
        """As `at`, for the end of a fault: bounds on coming to rest count from there."""
        self.at(delay, self._end_fault, act, *args)

    def _end_fault(self, act: Callable[..., None], *args: object) -> None:
        self.checkers.last_fault = self.now
        act(*args)

    def when(self, time: float, act: Callable[..., None], *args: object) -> None:
        """As `at`, for a time of the clock."""
        self._count += 1
        heapq.heappush(self._heap, (time, self._count, act, args))

    def run(self, until: float, *, until_over: bool = False) -> None:
        """Let time pass up to `until`, or until every agent has ended."""
        with self.playing():
            self._run(until, until_over)

    @contextmanager
    def playing(self) -> Iterator[None]:
        """Inside, names in production modules have their substitutes. `run` and `join` see to that themselves; around
        many of their calls it saves time."""
        if self._substituted:
            yield
            return
        self._substituted = True
        store = self.shared_store.substitutes() if self.shared_store else ()
        try:
            with substituted([*fast_replace.SUBSTITUTES, *store]):
                yield
        finally:
            self._substituted = False

    def _run(self, until: float, until_over: bool) -> None:
        heap, pop = self._heap, heapq.heappop
        began = self._count
        most = began + self.most_events
        while heap and heap[0][0] <= until:
            self.now, _, act, args = pop(heap)
            act(*args)
            if until_over and self.over:
                return
            if self._count > most:
                self.checkers.need(False, LIVELY, f"{self._count - began} events by {self.now:.3f} s")
        self.now = max(self.now, until)

    @property
    def waiting(self) -> int:
        """How many events are still to come."""
        return len(self._heap)

    # -- nodes -----------------------------------------------------------------------------------------------------

    def join(
        self, ident: str, nproc: int = 1, habit: Habit | None = None, preferred_rank: int | None = None
    ) -> SimNode:
        """A node starts its agent. The first one hosts the store."""
        with self.playing():
            return self._join(ident, nproc, habit, preferred_rank)

    def _join(self, ident: str, nproc: int, habit: Habit | None, preferred_rank: int | None) -> SimNode:
        hosts = not self.nodes and not self.elects
        node = SimNode(self, ident, hosts, nproc, habit or Habit(), preferred_rank)
        if self.nodes and self.ended == len(self.nodes):
            self.checkers.begun_again()
        self.nodes[ident] = node
        self.on_host.setdefault(node.on_host, []).append(node)
        if hosts:
            self.host = node
            state = Rendezvous() if self.shared_store else Rendezvous(epoch=1, since=node.clock())
            node.coordinator = SimCoordinator(self, node, state)
            self.rendezvous = node.coordinator.state
        elif self.elects:
            node.coordinator = SimCoordinator(self, node, Rendezvous())
        node.begin()
        return node

    @property
    def over(self) -> bool:
        return self.ended == len(self.nodes) and not self.coming

    def fresh_port(self, node: str) -> int:
        """Each node has addresses of its own, and counts for itself."""
        self._ports[node] += 1
        return FIRST_PORT + self._ports[node] % PORTS

    def disturbed(self, number: int, node: SimNode, how: str) -> None:
        self.checkers.disturbed(number, node.ident, how)

    def ranks_of(self, running: Round, habit: Habit) -> Ranks:
        """The ranks of a round whose workers come to step boundaries."""
        key = (running.number, running.master_port)
        if key not in self._ranks:
            self._ranks[key] = Ranks(self, self.checkers.announcements.whole(running), habit.step_s, habit.attaches_s)
        return self._ranks[key]

    def echo(self, origin: SimNode, number: int) -> None:
        """Workers of one round have connections to each other: when one dies, others may fail of it."""
        if number in self.conditions.echoed:
            return
        self.conditions.echoed.add(number)
        for node in self.nodes.values():
            peer = node is not origin and node.nursery.round == number and node.nursery.live
            if peer and self.rng.random() < self.conditions.echo_chance:
                self.at(self.rng.uniform(0.001, self.conditions.echo_s), self._echoed, node, number)

    def _echoed(self, node: SimNode, number: int) -> None:
        live = [worker for worker in node.nursery.live.values() if not worker.unkillable]
        if live and node.nursery.round == number:
            self.reached.note("a failure echoed")
            node.nursery.exit(self.rng.choice(live), 1, of_a_peer=True)

    # -- the coordinator -------------------------------------------------------------------------------------------

    @property
    def elects(self) -> bool:
        """Whether any node may come to coordinate."""
        return self.shared_store is not None and self.shared_store.elects

    @property
    def fences(self) -> bool:
        """Whether workers that are cut off end before a round begins without them."""
        return self.shared_store is not None

    @property
    def leader(self) -> SimNode | None:
        """The node whose term it is according to the store; None while there is none."""
        store = self.shared_store
        return store.leader() if store is not None and store.elects else getattr(self, "host", None)

    @property
    def term(self) -> int:
        """The epoch of the newest term; 0 where the host coordinates."""
        return self.shared_store.term if self.shared_store is not None else 0

    def coordinate(self, event: coordinator_events.Event) -> None:
        if self.host.coordinator is not None:
            self.host.turn(self.host.coordinator.take, event)

    def announced(self, announcement: Round) -> None:
        """The store has this announcement from now on."""
        if self.log is not None:
            self.log(self.now, f"coordinator: {describe(announcement)}")
        self.checkers.announcements.announced(announcement)

    def delays_record(self) -> bool:
        """Whether the connection on which a node's record is on its way breaks, so that the record arrives late."""
        if (
            self.conditions.late_bytes is None
            or not self.conditions.late_records
            or self.conditions.late_bytes.random() < 0.7
        ):
            return False
        self.conditions.late_records -= 1
        self.checkers.last_fault = self.now
        return True

    def follows(self, version: int) -> None:
        """Schedules what is to happen upon the announcement of this version."""
        for delay, act, args in self.upon_version.pop(version, ()):
            self.at(delay, act, *args)


def describe(one: Round) -> str:
    """A round in one line."""
    members = " ".join(
        f"{m.name}:{m.rank_offset}" + (f"-{m.rank_offset + m.nproc - 1}" if m.nproc > 1 else "") for m in one.placed
    )
    outcome = f" {one.outcome.value}" if one.outcome else ""
    finishing = " finishing" if one.finishing and one.outcome is None else ""
    charged = f", {one.ended.charged} charged" if one.ended and one.ended.charged else ""
    return f"round {one.number} {one.phase.value}{outcome}{finishing} [{members}]{charged}: {one.because}"
