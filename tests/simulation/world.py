"""The clock, the nodes, and what faults do to them. One thread, and an order of events that the seed fixes."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from elastic_agent.agent.lifecycle.restart_policy import Policy
from elastic_agent.agent.lifecycle.state import Phase
from elastic_agent.rendezvous.coordinator import events as coordinator_events
from elastic_agent.rendezvous.coordinator.state import Rendezvous
from elastic_agent.rendezvous.records import Round, RoundPhase

from . import copies
from .checkers import Checkers
from .faces import FACES, Face
from .invariants import LIVELY
from .network import Store
from .node import SimNode
from .pretend import pretend
from .seat import Seat
from .workers import Habit


@dataclass(frozen=True)
class Job:
    """What all nodes of a job agree on. Times in seconds."""

    min_nodes: int = 1
    max_nodes: int = 1
    restarts: Policy = field(default_factory=Policy)
    grace_s: float = 30.0
    join_timeout_s: float = 600.0
    last_call_timeout_s: float = 30.0
    quiet_s: float = 3.0
    beat_s: float = 1.0
    lease_s: float = 5.0
    store_grace_s: float = 30.0
    exit_barrier_s: float = 300.0
    connect_timeout_s: float = 60.0
    static: bool = False


class Delays:
    """How long things take: always the same, for stories."""

    def local(self) -> float:
        return 0.001

    def network(self) -> float:
        return 0.001

    def dying(self) -> float:
        return 0.01


@dataclass
class Reached:
    """What the runs so far have come across: the sometimes-counters, and the changes of phase walked."""

    counts: dict[str, int] = field(default_factory=dict)
    agent_edges: set[tuple[Phase, Phase]] = field(default_factory=set)
    coordinator_edges: set[tuple[RoundPhase, RoundPhase]] = field(default_factory=set)

    def note(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def merge(self, other: Reached) -> None:
        for what, count in other.counts.items():
            self.counts[what] = self.counts.get(what, 0) + count
        self.agent_edges |= other.agent_edges
        self.coordinator_edges |= other.coordinator_edges


class World:
    """One job. `at` schedules, `run` lets time pass."""

    def __init__(
        self,
        job: Job,
        rng: random.Random,
        delays: Delays,
        log: Callable[[float, str], None] | None = None,
        *,
        face: str = "",
        skew_s: float = 0.0,
    ) -> None:
        """`face`: of the store behind the production drivers; empty: none of either, messages go straight.
        `skew_s`: by how much each node's clock differs from the one before."""
        self.job = job
        self.rng = rng
        self.delays = delays
        self.log = log
        self.now = 0.0
        self.ended = 0
        """How many agents have."""
        self.most_events = 10**9
        self.upon: dict[int, list[tuple[float, Callable[..., None], tuple[object, ...]]]] = {}
        """What happens when the coordinator announces a version: delay, function, arguments."""
        self.pids = 100
        self._ports = 20000
        self.echo_chance = 0.0
        """How likely a worker's death makes its peers on another node fail, within `echo_s`."""
        self.echo_s = 2.0
        self.nodes: dict[str, SimNode] = {}
        self.skew_s = skew_s
        self.face = FACES[face](self) if face else None
        self.store: Store | Face = self.face or Store(self)
        self.rendezvous: Rendezvous | None = None
        """What counts of what coordinators know."""
        self.reached = Reached()
        self.checkers = Checkers(self)
        self.echoed: set[int] = set()
        self._heap: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._count = 0
        self.host: SimNode
        """The first that joined, where one node hosts the store."""

    # -- time ------------------------------------------------------------------------------------------------------

    def at(self, delay: float, act: Callable[..., None], *args: object) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self.now + delay, self._count, act, args))

    def when(self, time: float, act: Callable[..., None], *args: object) -> None:
        """As `at`, at this very moment of the clock."""
        self._count += 1
        heapq.heappush(self._heap, (time, self._count, act, args))

    def run(self, until: float, *, until_over: bool = False) -> None:
        """Let time pass up to `until`, or until every agent has ended."""
        with self._pretend():
            self._run(until, until_over)

    def _pretend(self) -> AbstractContextManager[None]:
        return pretend([*copies.INSTEAD, *(self.face.instead() if self.face is not None else ())])

    def _run(self, until: float, until_over: bool) -> None:
        heap, pop = self._heap, heapq.heappop
        began = self._count
        while heap and heap[0][0] <= until:
            self.now, _, act, args = pop(heap)
            act(*args)
            if until_over and self.ended == len(self.nodes):
                return
            if self._count - began > self.most_events:
                self.checkers.need(False, LIVELY, f"{self._count - began} things happened by {self.now:.3f} s")
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
        with self._pretend():
            return self._join(ident, nproc, habit, preferred_rank)

    def _join(self, ident: str, nproc: int, habit: Habit | None, preferred_rank: int | None) -> SimNode:
        hosts = not self.nodes and not self.elects
        node = SimNode(self, ident, hosts, nproc, habit or Habit(), preferred_rank)
        self.nodes[ident] = node
        if hosts:
            self.host = node
            node.seat = Seat(self, node, Rendezvous() if self.face else Rendezvous(epoch=1, since=node.clock()))
            self.rendezvous = node.seat.state
        elif self.elects:
            node.seat = Seat(self, node, Rendezvous())
        node.begin()
        return node

    @property
    def over(self) -> bool:
        return self.ended == len(self.nodes)

    def fresh_port(self) -> int:
        self._ports += 1
        return self._ports

    def disturbed(self, number: int, node: SimNode, how: str) -> None:
        self.checkers.disturbed(number, node.ident, how)

    def echo(self, origin: SimNode, number: int) -> None:
        """Workers of one round talk to each other: when one dies, others may fail of it."""
        if number in self.echoed:
            return
        self.echoed.add(number)
        for node in self.nodes.values():
            peer = node is not origin and node.nursery.round == number and node.nursery.live
            if peer and self.rng.random() < self.echo_chance:
                self.at(self.rng.uniform(0.001, self.echo_s), self._echoed, node, number)

    def _echoed(self, node: SimNode, number: int) -> None:
        live = [worker for worker in node.nursery.live.values() if not worker.unkillable]
        if live and node.nursery.round == number:
            self.reached.note("a failure echoed")
            node.nursery.exit(self.rng.choice(live), 1)

    # -- the coordinator -------------------------------------------------------------------------------------------

    @property
    def elects(self) -> bool:
        """Whether any node may come to coordinate."""
        return self.face is not None and self.face.elects

    @property
    def leader(self) -> SimNode | None:
        """Whose term it is, by what the store knows; None while there is none."""
        return self.face.leader() if self.face is not None and self.face.elects else getattr(self, "host", None)

    def coordinate(self, event: coordinator_events.Event) -> None:
        if self.host.seat is not None:
            self.host.deliver(self.host.seat.take, event)

    def announced(self, word: Round) -> None:
        """This counts from now on."""
        if self.log is not None:
            self.log(self.now, f"coordinator: {describe(word)}")
        self.checkers.hearing.announced(word)

    def follows(self, version: int) -> None:
        """What is to happen upon this announcement."""
        for delay, act, args in self.upon.pop(version, ()):
            self.at(delay, act, *args)


def describe(word: Round) -> str:
    """A round in one line."""
    members = " ".join(
        f"{m.name}:{m.rank_offset}" + (f"-{m.rank_offset + m.nproc - 1}" if m.nproc > 1 else "") for m in word.placed
    )
    outcome = f" {word.outcome.value}" if word.outcome else ""
    finishing = " finishing" if word.finishing and word.outcome is None else ""
    charged = f", {word.ended.charged} charged" if word.ended and word.ended.charged else ""
    return f"round {word.number} {word.phase.value}{outcome}{finishing} [{members}]{charged}: {word.because}"
