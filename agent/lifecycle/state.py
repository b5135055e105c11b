"""The state of a node's agent: frozen values. No decision is taken here."""

from __future__ import annotations

from enum import Enum

from ...proto.frozen import dataclass, field
from ...rendezvous.agreements import Agreement, Answer, Request
from ...rendezvous.failures import Ending, WorkerFailure
from ...rendezvous.records import NodeRecord, Outcome, Round
from .restart_policy import History, Policy
from .stop_ladder import LEFTOVER_S, Ladder, Leftovers


class Phase(Enum):
    """Where this node stands."""

    __hash__ = object.__hash__

    CONNECTING = "connecting"
    """Opening the store."""
    JOINING = "joining"
    """No workers here; waiting for a place in a round (also as a spare)."""
    WORKING = "working"
    """Workers of the round run."""
    STOPPING = "stopping"
    """Workers are being stopped, to come back, to finish or to end."""
    FINISHED = "finished"
    """All workers exited 0; the finalisation barrier runs."""
    ENDING = "ending"
    """Workers are gone for good; the last record is being published, and the store served while others need it."""
    ENDED = "ended"
    """The agent is done; its verdict stands."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the agent ended."""

    exit_code: int
    """One of agent/exit_status.py."""
    because: str
    outcome: Outcome | None = None
    """How the job ended, as far as this node knows."""
    cause: WorkerFailure | None = None
    """The failure that ended the job, on whichever node."""
    ending: Ending | None = None
    """How the last round ended, as announced to all nodes; None if no round ended, or this node did not receive it."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The agent's configuration. Times in seconds."""

    node: str
    name: str
    role: str = "default"
    preferred_rank: int | None = None
    restarts: Policy = field(default_factory=Policy)
    jitter: tuple[float, ...] = (0.5,)
    """Random numbers from 0 to 1, for the pauses of a crash loop."""
    grace_s: float = 30.0
    join_timeout_s: float = 600.0
    store_grace_s: float = 30.0
    min_nodes: int = 1
    max_nodes: int = 1
    endpoint: str = ""
    """Of the store, for messages."""
    charge_local: bool = False
    """Count each failure of this node's workers, whichever node caused it."""
    settle_s: float = 0.0
    """Asked to leave, this node's workers, and those of the others, first reach a step boundary and save, for at most
    so long; 0: they are stopped at once."""
    term_settle_s: float | None = None
    """The same where SIGTERM asks it, as a scheduler sends it, which kills all some time later; if it is shorter. None:
    half of `grace_s`."""
    leftovers: Leftovers = Leftovers.STOP
    leftover_s: float = LEFTOVER_S
    """How long processes that workers left behind may run on before they are stopped."""
    fences: bool = False
    """This node may be asked by others, while the store does not answer, whether their workers may run on."""
    elects: bool = False
    """The store elects the node that coordinates, so there may be none for a while."""
    control: str = ""
    """Of the control service on TCP: HOST:PORT, or :PORT where HOST is that of this node; empty: none."""


@dataclass(frozen=True, slots=True)
class Place:
    """What this node offers for the next round."""

    addr: str = ""
    """Offered as MASTER_ADDR."""
    port: int = 0
    """Held free here, offered as MASTER_PORT."""
    nproc: int = 1
    """Workers there is room for."""
    ready: bool = False
    """Prepared and published; not used by a round yet."""


@dataclass(frozen=True, slots=True)
class RoundTally:
    """This node's part in one round. A new round begins with a new one."""

    round: int = 0
    """The last round that this node had a place in, or could have had; 0 before the first."""
    running: frozenset[int] = frozenset()
    """Local ranks whose worker has not exited."""
    failures: tuple[WorkerFailure, ...] = ()
    """Failures of this node's workers, in the order seen; not of workers that the agent killed."""
    failed_at: float | None = None
    """When the first of them was seen."""
    deaths: tuple[WorkerFailure, ...] = ()
    """How its workers ended, in the order seen: failures, workers that were stopped, workers that exited 0."""
    preempted_until: float | None = None
    """A stop signal from elsewhere ended a worker, and no restart is left: until when the same signal to this agent
    makes that a preemption. Before that this node does not answer for the round."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What this node was charged over the whole job."""

    charges: History = field(default_factory=History)
    """Restarts charged to it."""
    host_failures: History = field(default_factory=History)
    """How often its host killed its workers or could not start them; never charged."""
    settled_round: int = 0
    """The last round whose charge was looked at."""


@dataclass(frozen=True, slots=True)
class StoreOutage:
    """Whether the store can be used. The default: it answers."""

    until: float | None = None
    """The store does not answer: when the agent gives up on it. None while it answers."""
    why: str = ""
    spoiled: bool = False
    """It cannot be used any more; a node that hosts it serves it only until the others have found that out too."""


@dataclass(frozen=True, slots=True)
class Node:
    """The agent's whole state."""

    phase: Phase = Phase.CONNECTING
    because: str = "starting"
    hosting: bool = False
    """This node serves the store."""
    leading: bool = False
    """This node coordinates the job."""
    place: Place = Place()
    latest_round: Round | None = None
    """The coordinator's newest announcement."""
    tally: RoundTally = RoundTally()
    budget: Budget = Budget()
    outage: StoreOutage = StoreOutage()
    record: NodeRecord | None = None
    """The last record published."""
    paused_until: float | None = None
    """A crash loop: until when this node does not ask for another round, unless the last failure costs it nothing."""
    spare_until: float | None = None
    """When a spare gives up."""
    unanswered_since: float | None = None
    """When this node asked for a place, where a coordinator that lives would have announced something about it since;
    None where nothing of the kind is due, or it was said already."""
    finished: bool = False
    ladder: Ladder | None = None
    elsewhere: str = ""
    """STOPPING: why this node begins anew at another host of the store, once its workers are gone. Empty: it does not.
    """
    verdict: Verdict | None = None
    """What the agent will end with; None while it means to go on."""
    conclude_at: float | None = None
    """ENDING: when to go even if the last record was not acknowledged."""
    others_ended: bool = False
    leaving: Verdict | None = None
    """What the agent will end with once the workers of all nodes have saved, or `leave_at` has come."""
    leave_at: float = 0.0
    requests: tuple[Request, ...] = ()
    """What this node asks all ranks to do, and what is not done yet."""
    requested: int = 0
    """Number of its newest request."""
    agreement: Agreement | None = None
    """The newest of this round that this node follows."""
    answer: Answer | None = None
    """This node's answer to `agreement`."""

    @property
    def round(self) -> int:
        """As `RoundTally.round`."""
        return self.tally.round

    @property
    def seq(self) -> int:
        """Number of the last record published; 0 before the first."""
        return self.record.seq if self.record is not None else 0

    @property
    def restarts_used(self) -> int:
        """Restarts charged to this node so far."""
        return self.budget.charges.total

    @property
    def is_spare(self) -> bool:
        return self.spare_until is not None and self.phase is Phase.JOINING
