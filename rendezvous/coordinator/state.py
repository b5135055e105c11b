"""What the coordinator knows: frozen values and questions about them. No decision is taken here."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ...proto.frozen import dataclass, field
from ..agreements import MAX_SERVED, Agreement
from ..failures import Ending, WorkerFailure
from ..records import Member, Outcome, Round, RoundPhase, Witness
from .nodes import ABLE, ALIVE, HAS_FINISHED, MAY_HAVE_WORKERS, READY, UNAWARE, Nodes, Seen
from .root_cause import Evidence

GATHERING, LAST_CALL, RUNNING, OVER, CLOSED = RoundPhase  # as names of this module: see nodes.py

DEFAULT_SETTLE_S = 60.0


@dataclass(frozen=True, slots=True)
class Rules:
    """The coordinator's configuration. Times in seconds; `RendezvousSpec` explains each."""

    own: str
    """Identity of the coordinator's own node: it shares the coordinator's fate, so it needs no lease."""
    min_nodes: int = 1
    max_nodes: int = 1
    join_timeout_s: float = 600.0
    last_call_timeout_s: float = 30.0
    quiet_s: float = 3.0
    beat_s: float = 1.0
    lease_s: float = 5.0
    exit_barrier_s: float = 300.0
    static: bool = False
    settles: bool = False
    """Before a planned change workers reach a step boundary and save, for at most `settle_s`."""
    settle_s: float = DEFAULT_SETTLE_S
    """How long workers get to act on an agreement after which the round or the job ends."""
    fences: bool = False
    """Workers of nodes that are cut off end by a time that is known (`fencing.py`)."""
    hosted: bool = False
    """A node hosts the store, and coordinates as long as it does."""
    succeeds: bool = False
    """On a store that a node hosts: another may host it next, should that one die (docs/adr/0049)."""
    outvotes: bool = False
    """A majority of voters replaces a host that is silent for a lease, so a host without one begins no round."""
    alone_s: float = 0.0
    """As `NodeRecord.alone_s`, of this node."""
    master_addr: str | None = None
    """Static rendezvous: MASTER_ADDR as the user gave it, instead of the address that group rank 0 offers."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Who is in a round, and what is known of its workers. A new round begins with a new one."""

    members: tuple[Member, ...] = ()
    """By group rank. Of the running round, or the one just over."""
    master_addr: str = ""
    master_port: int = 0
    deaths: tuple[WorkerFailure, ...] = ()
    """How workers of this round ended, in the order in which the coordinator read it."""
    known: Mapping[str, frozenset[tuple[int, int]]] = field(default_factory=dict)
    """By node: local rank and pid of its workers in `deaths`."""
    evidence: Evidence = field(default_factory=Evidence)
    """What `deaths` say of the cause."""
    witnesses: tuple[Witness, ...] = ()
    """As `Round.witnesses`."""
    forbidding: frozenset[str] = frozenset()
    """Nodes of which a record of this round forbids a restart."""
    voters: tuple[Witness, ...] = ()
    """As `Round.voters`."""
    before: tuple[str, ...] = ()
    """As `Round.before`."""
    previous: tuple[Witness, ...] = ()
    """All voters of the round before, or of the last one that had some. Who has not read of this one elects by that."""
    began_at: float = float("-inf")
    """When this round began, if it did in this term."""
    previous_at: float = float("-inf")
    """The same of that of `previous`."""
    places: Mapping[str, int] = field(default_factory=dict, repr=False)
    """As `places_of(members)`, which is looked into at every event."""


def places_of(members: tuple[Member, ...]) -> dict[str, int]:
    """By node: where it is among the members of a round."""
    return {member.node: place for place, member in enumerate(members)}


@dataclass(frozen=True, slots=True)
class RoundEnd:
    """How the last ended round ended. The end of a round replaces it."""

    ending: Ending | None = None
    settled: bool = True
    """`ending` is final: every member has answered or is dead."""
    unanswered: frozenset[str] = frozenset()
    """While OVER: members that have not answered the end of the round yet."""
    departed: str = ""
    """While OVER: a member that left or was lost before it answered, in words; the ending then charges no node."""
    hold: bool = False
    """While OVER: as `Round.hold`."""


@dataclass(frozen=True, slots=True)
class LeaseReadings:
    """When heartbeats or leases were read, on the coordinator's clock."""

    last_at: float | None = None
    """When the last reading was answered."""
    due_at: float = 0.0
    """When the next one is due."""
    asked_at: float | None = None
    """When the last one was asked for."""
    pending: bool = False
    """One was asked for and is not answered yet."""
    confirmed_until: float | None = None
    """When the last one that was answered was asked for: the store answered after that, so what time alone decides up
    to then is beyond doubt."""
    oldest_at: float | None = None
    """After the last one: the oldest `heard_at` of a node that is watched and not lost. None: there was none."""
    awaited: bool = False
    """No round begins before the next one is answered: a node that waits for a place may have died before this term."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """The coordinator's whole state."""

    phase: RoundPhase = GATHERING
    number: int = 1
    """As `Round.number`."""
    because: str = "the job begins"
    nodes: Nodes = field(default_factory=Nodes)
    placement: Placement = Placement()
    end: RoundEnd = RoundEnd()
    readings: LeaseReadings = LeaseReadings()
    since: float = 0.0
    """When this phase began; for GATHERING and LAST_CALL, when gathering began."""
    last_call_until: float | None = None
    barrier_until: float | None = None
    """End of the finalisation barrier; None while no node has finished."""
    doubt_until: float | None = None
    """A node that holds its lease from then on is certainly alive; None: there is no doubt whether any node stands for
    what was announced (`standing.py`)."""
    restarts: int = 0
    """As `Round.restarts`."""
    outcome: Outcome | None = None
    agreement: Agreement | None = None
    """As `Round.agreement`."""
    agreed_at: float = 0.0
    """When its stage last changed."""
    asking: frozenset[str] = frozenset()
    """Nodes whose newest record holds requests."""
    served: frozenset[tuple[str, int]] = frozenset()
    """Requests, by node and number, that are done or given up and that records still hold."""
    died: frozenset[str] = frozenset()
    """Nodes of whose agents no process is left, by the word of their kernels, and that elected no other host before."""
    outvoted: frozenset[str] = frozenset()
    """As `Elected.outvoted`."""
    elected_at: float = 0.0
    """When this node had the votes of others, if it was elected; else when its term began."""
    silent_since: float = 0.0
    """As `Elected.silent_since`."""
    fence_until: float = float("inf")
    """As the last `MoveFence`."""
    epoch: int = 0
    """Of this node's term; 0 while another node coordinates, and then nothing else here means anything."""
    version: int = 0
    """Of the newest announcement."""
    announced: Round | None = None
    """The newest announcement."""
    announced_at: float = 0.0

    @property
    def leading(self) -> bool:
        return self.epoch > 0

    @property
    def finishing(self) -> bool:
        """A node has finished: the finalisation barrier runs."""
        return self.barrier_until is not None

    @property
    def members(self) -> tuple[Member, ...]:
        return self.placement.members

    def seen_members(self) -> list[tuple[Member, Seen]]:
        nodes = self.nodes
        return [(member, nodes[member.node]) for member in self.placement.members]

    def members_having(self, trait: int) -> list[tuple[Member, Seen]]:
        """Those of `seen_members` with this trait; costs no look at the others."""
        return self.seen_among(self.nodes.those(trait))

    def seen_among(self, nodes: Collection[str]) -> list[tuple[Member, Seen]]:
        """Those of `seen_members` that are among these."""
        if not nodes:
            return []
        members, places = self.placement.members, self.placement.places
        found = sorted(places[node] for node in nodes if node in places)
        return [(members[place], self.nodes[members[place].node]) for place in found]

    def member(self, node: str) -> Member | None:
        """Its place in the running round, or the one just over."""
        place = self.placement.places.get(node)
        return None if place is None else self.members[place]

    def ready(self) -> list[Seen]:
        """Nodes ready to start, in order of arrival."""
        return self.nodes.having(READY)

    def how_many(self, trait: int) -> int:
        """Nodes with this trait."""
        return len(self.nodes.those(trait))

    def newcomers(self) -> list[Seen]:
        """Those of them that are not members."""
        places = self.placement.places
        return [seen for seen in self.ready() if seen.record.node not in places]

    def may_have_workers(self) -> list[Seen]:
        """Nodes on which workers of an earlier round may run."""
        return self.nodes.having(MAY_HAVE_WORKERS)

    def starting(self) -> list[Seen]:
        """Nodes with a place in this round that have not reported it yet."""
        return [seen for seen in self.nodes.having(UNAWARE) if seen.placed == self.number]

    def awaited_at_close(self) -> list[Seen]:
        """Nodes that have not ended and are not lost: once the job is closed, its store is there for them."""
        return self.nodes.having(ALIVE)

    def able(self) -> int:
        """How many nodes could be in the next round, once those that are stopping have stopped."""
        return self.how_many(ABLE)

    def too_few_remain(self, rules: Rules) -> bool:
        """Whether nodes have finished, and fewer remain than a round needs."""
        return self.finishing and self.able() < rules.min_nodes

    def last_ranks(self) -> dict[str, int]:
        return {member.node: member.group_rank for member in self.members}

    def _finished(self) -> tuple[str, ...]:
        return tuple(member.node for member, _ in self.members_having(HAS_FINISHED))

    def view(self, version: int, because: str, own: str = "", host: Witness | None = None) -> Round:
        """The announcement of this state. `own`: the coordinator's node, where nodes may wait for another one. `host`:
        as `Round.host`."""
        end, coordinator = self.end, self.nodes.get(own)
        return Round(
            version=version,
            epoch=self.epoch,
            number=self.number,
            phase=self.phase,
            because=because,
            members=() if self.phase is CLOSED else self.members,
            master_addr=self.placement.master_addr,
            master_port=self.placement.master_port,
            ended=end.ending if end.settled or self.announced is None else self.announced.ended,
            unsettled=None if end.settled else end.ending,
            restarts=self.restarts,
            finishing=self.finishing,
            hold=end.hold and self.phase is OVER,
            outcome=self.outcome,
            agreement=self.agreement,
            served=tuple(sorted(self.served)[:MAX_SERVED]) if self.served else (),
            witnesses=() if self.phase is CLOSED else self.placement.witnesses,
            coordinator=coordinator.record.name if coordinator is not None else "",
            voters=() if self.phase is CLOSED else self.placement.voters,
            before=() if self.phase is CLOSED else self.placement.before,
            host=host,
            finished=self._finished() if host is not None and self.finishing else (),
        )
