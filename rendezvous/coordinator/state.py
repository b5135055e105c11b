"""What the coordinator knows: frozen values and questions about them. No decision is taken here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ..failures import Ending, WorkerFailure
from ..records import Member, NodeRecord, NodeState, Outcome, Round, RoundPhase

WORKERS_MAY_LIVE = frozenset({NodeState.WORKING, NodeState.BROKEN, NodeState.STOPPING, NodeState.LEAVING})
"""States of a node that may still have workers of an earlier round."""

GOING = frozenset({NodeState.LEAVING, NodeState.ENDED})
"""States of a node that will not be in another round."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the coordinator goes by. Times in seconds; `RendezvousSpec` explains each."""

    own: str
    """Identity of the coordinator's own node: it shares our fate, so it needs no lease."""
    min_nodes: int = 1
    max_nodes: int = 1
    join_timeout_s: float = 600.0
    last_call_timeout_s: float = 30.0
    quiet_s: float = 3.0
    beat_s: float = 1.0
    lease_s: float = 5.0
    exit_barrier_s: float = 300.0
    static: bool = False
    master_addr: str | None = None
    """Static rendezvous: MASTER_ADDR as the user gave it, instead of the address that group rank 0 offers."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One node, as the coordinator has seen it."""

    record: NodeRecord
    arrival: int
    """Order in which nodes were first seen."""
    waiting_since: float
    """When it last began to wait."""
    heard_at: float
    """When its heartbeat counter last changed, on our clock."""
    count: int = -1
    lost: bool = False
    """Its lease ran out. A newer record or heartbeat brings it back."""
    placed: int = 0
    """The last round that it was given a place in. Until it speaks of that round, it may be starting workers of it."""

    @property
    def _silent(self) -> bool:
        return self.record.state is NodeState.WAITING and self.record.round < self.placed

    @property
    def waiting(self) -> bool:
        return not self.lost and self.record.state is NodeState.WAITING and not self._silent

    @property
    def may_have_workers(self) -> bool:
        """Whether workers of an earlier round may live there: no new round starts before it says they are gone."""
        return not self.lost and (self.record.state in WORKERS_MAY_LIVE or self._silent)

    @property
    def gone(self) -> bool:
        """Will not be in another round, unless it comes back."""
        return self.lost or self.record.state in GOING

    @property
    def finished(self) -> bool:
        return self.record.finished


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """The coordinator's whole state."""

    phase: RoundPhase = RoundPhase.GATHERING
    number: int = 1
    """As `Round.number`."""
    because: str = "the job begins"
    nodes: Mapping[str, Seen] = field(default_factory=dict)
    members: tuple[Member, ...] = ()
    master_addr: str = ""
    master_port: int = 0
    since: float = 0.0
    """When this phase began; for GATHERING and LAST_CALL, when gathering began."""
    last_call_until: float | None = None
    barrier_until: float | None = None
    """End of the finalisation barrier; None while nobody has finished."""
    unanswered: frozenset[str] = frozenset()
    """While OVER: members that have not yet spoken about the end of the round."""
    departed: str = ""
    """While OVER: a member that left or was lost before it answered, in words; the ending is then nobody's fault."""
    ended: Ending | None = None
    settled: bool = True
    """Whether `ended` is final: every member has answered or is dead."""
    deaths: tuple[WorkerFailure, ...] = ()
    """How workers of this round ended, in the order in which we heard of it."""
    hold: bool = False
    """While OVER: as `Round.hold`."""
    restarts: int = 0
    outcome: Outcome | None = None
    beats_seen_at: float | None = None
    beats_due_at: float = 0.0
    reading: bool = False
    """A ReadBeats is on its way."""
    asked_at: float | None = None
    """When the last one was asked for."""
    looked_at: float | None = None
    """When the last one that was answered was asked for. Only what time alone decides after that is beyond doubt."""
    version: int = 0
    epoch: int = 0
    """Of our term; 0 while we do not coordinate, and then nothing else here means anything."""
    announced: Round | None = None

    @property
    def leading(self) -> bool:
        return self.epoch > 0

    @property
    def finishing(self) -> bool:
        return self.barrier_until is not None

    def seen_members(self) -> Iterator[tuple[Member, Seen]]:
        for member in self.members:
            yield member, self.nodes[member.node]

    def member(self, node: str) -> Member | None:
        """Its place in the running round, or the one just over."""
        return next((member for member in self.members if member.node == node), None)

    def candidates(self) -> list[Seen]:
        """Nodes ready to start, in order of arrival."""
        return sorted((seen for seen in self.nodes.values() if seen.waiting), key=lambda seen: seen.arrival)

    def newcomers(self) -> list[Seen]:
        ranks = self.last_ranks()
        return [seen for seen in self.candidates() if seen.record.node not in ranks]

    def may_have_workers(self) -> list[Seen]:
        return [seen for seen in self.nodes.values() if seen.may_have_workers]

    def able(self) -> int:
        """How many nodes could be in the next round, once those that are stopping have stopped."""
        return sum(1 for seen in self.nodes.values() if not seen.gone and not seen.finished)

    def last_ranks(self) -> dict[str, int]:
        return {member.node: member.group_rank for member in self.members}

    def view(self, version: int, because: str) -> Round:
        """The record that tells everybody where the job stands."""
        return Round(
            version=version,
            epoch=self.epoch,
            number=self.number,
            phase=self.phase,
            because=because,
            members=() if self.phase is RoundPhase.CLOSED else self.members,
            master_addr=self.master_addr,
            master_port=self.master_port,
            ended=self.ended if self.settled or self.announced is None else self.announced.ended,
            unsettled=None if self.settled else self.ended,
            restarts=self.restarts,
            finishing=self.finishing,
            hold=self.hold and self.phase is RoundPhase.OVER,
            outcome=self.outcome,
        )
