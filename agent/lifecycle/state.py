"""What a node's agent knows of itself: frozen values. No decision is taken here."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from ...rendezvous.failures import Ending, WorkerFailure
from ...rendezvous.records import NodeRecord, Outcome, Round
from .restart_policy import History, Policy
from .stop_ladder import Ladder


class Phase(Enum):
    """Where this node stands."""

    CONNECTING = "connecting"
    """Looking for the store."""
    JOINING = "joining"
    """No workers here; waiting for a place in a round (also as a spare)."""
    WORKING = "working"
    """Workers of `Node.round` run."""
    STOPPING = "stopping"
    """Workers are being stopped, to come back, to finish or to end."""
    FINISHED = "finished"
    """All workers exited 0; the finalisation barrier."""
    ENDING = "ending"
    """Workers are gone for good; saying so, and serving the store while others need it."""
    ENDED = "ended"
    """Done; the verdict stands."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the agent ended."""

    exit_code: int
    """docs/exit-codes.md."""
    because: str
    outcome: Outcome | None = None
    """How the job ended, as far as this node knows."""
    cause: WorkerFailure | None = None
    """The failure that ended the job, on whichever node."""
    ending: Ending | None = None
    """How the last round ended, as all nodes were told; None if no round did, or this node never heard of it."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the agent goes by. Times in seconds."""

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
    """Count each failure of this node's workers, whoever caused it."""


@dataclass(frozen=True, slots=True)
class Node:
    """The agent's whole state."""

    phase: Phase = Phase.CONNECTING
    because: str = "starting"
    hosting: bool = False
    """We serve the store."""
    leading: bool = False
    """We coordinate the job."""
    addr: str = ""
    port: int = 0
    nproc: int = 1
    round: int = 0
    """The last round that this node had a place in, or could have had."""
    place_ready: bool = False
    """The place for the next round is prepared and offered."""
    latest_round: Round | None = None
    """The coordinator's newest announcement."""
    charges: History = field(default_factory=History)
    losses: History = field(default_factory=History)
    """How often this machine took its workers, or could not start them; never charged."""
    settled: int = 0
    """The last round whose charge has been looked at."""
    running: frozenset[int] = frozenset()
    """Local ranks whose worker has not exited."""
    failures: tuple[WorkerFailure, ...] = ()
    """Worker failures of this node in `round`, in the order seen; not those we killed ourselves."""
    failed_at: float | None = None
    """When the first of them was seen."""
    paused_until: float | None = None
    """A crash loop: until when this node does not ask for another round, unless the last failure costs it nothing."""
    preempted_until: float | None = None
    """Somebody else asked our worker to stop, and no restart is left: until when such a signal to ourselves makes that
    no failure. Before that we do not answer for the round."""
    deaths: tuple[WorkerFailure, ...] = ()
    """How workers of `round` ended, in the order seen: failures, those that we stopped, those that exited 0."""
    finished: bool = False
    ladder: Ladder | None = None
    verdict: Verdict | None = None
    """What the agent will end with; None while it means to go on."""
    spare_until: float | None = None
    """When a spare gives up."""
    store_lost_until: float | None = None
    """The store is away; when the agent gives up on it."""
    store_lost_why: str = ""
    store_spoiled: bool = False
    """The store cannot be used any more; who hosts it serves it only until the others have found that out too."""
    conclude_at: float | None = None
    """ENDING: when to go even if our last word was not acknowledged."""
    seq: int = 0
    record: NodeRecord | None = None
    """The last record published."""
    others_ended: bool = False

    @property
    def restarts_used(self) -> int:
        """Restarts charged to this node so far."""
        return self.charges.total

    @property
    def is_spare(self) -> bool:
        return self.phase is Phase.JOINING and self.spare_until is not None
