"""What a node's agent learns and what it does: two closed unions of frozen values."""

from __future__ import annotations

from dataclasses import dataclass

from ...rendezvous.failures import WorkerFailure
from ...rendezvous.records import Member, NodeRecord, Round
from .state import Verdict
from .verdicts import STORE_LOST

# -- what happened ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoreOpened:
    """The store answered and is ours. `hosting`: we serve it. `addr`: how others reach us."""

    hosting: bool
    addr: str


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """The store cannot be used: nobody serves it, what answers is not ours, or the job there is another. `status`: what
    the agent then exits with, as in docs/exit-codes.md."""

    reason: str
    status: int = STORE_LOST


@dataclass(frozen=True, slots=True)
class StoreWentAway:
    """A call to the store broke or did not come back in time."""

    reason: str


@dataclass(frozen=True, slots=True)
class StoreCameBack:
    """The store answers again."""


@dataclass(frozen=True, slots=True)
class RoundSeen:
    """The coordinator's newest word."""

    round: Round


@dataclass(frozen=True, slots=True)
class RecordWritten:
    """Our record number `seq` has reached the store."""

    seq: int


@dataclass(frozen=True, slots=True)
class LeadershipChanged:
    """This node coordinates the job from here on, or no longer."""

    leads: bool


@dataclass(frozen=True, slots=True)
class OthersEnded:
    """We coordinate, the rendezvous is closed, and every node has ended: nobody needs the store any more."""


@dataclass(frozen=True, slots=True)
class PlacePrepared:
    """Room for `nproc` workers was found and `port` is held free for the next round."""

    nproc: int
    port: int


@dataclass(frozen=True, slots=True)
class PlaceFailed:
    """This node cannot offer a place (no device, no port)."""

    reason: str
    machine: bool = False
    """The system refused something, whatever was asked of us."""


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """A worker's process runs; whether its script is ready is another matter."""

    local_rank: int
    pid: int


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """A worker is gone. `failure` is None where its exit code is 0; `end` then says how and when it went."""

    local_rank: int
    failure: WorkerFailure | None
    end: WorkerFailure | None = None


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The workers of this round could not be started at all (files, descriptors), or one of them could not."""

    failure: WorkerFailure


@dataclass(frozen=True, slots=True)
class WorkersGone:
    """No worker, and nothing that a worker had started, is left."""


@dataclass(frozen=True, slots=True)
class NurseryLost:
    """The process between us and the workers died, and the workers with it."""

    reason: str


@dataclass(frozen=True, slots=True)
class SignalReceived:
    """One of the signals that stop the agent."""

    signum: int


@dataclass(frozen=True, slots=True)
class ForwardAsked:
    """One of the signals that are passed on to the workers."""

    signum: int


@dataclass(frozen=True, slots=True)
class SignalUnheard:
    """A signal was not passed on to this worker, which has no handler for it and would have ended of it."""

    local_rank: int
    signum: int


@dataclass(frozen=True, slots=True)
class LeaveAsked:
    """A program that embeds the agent asks it to leave the job politely."""

    reason: str


@dataclass(frozen=True, slots=True)
class DeadlineReached:
    """A time asked for with WakeAt has come, or some other; early or stale ones are harmless."""


Event = (
    StoreOpened
    | StoreFailed
    | StoreWentAway
    | StoreCameBack
    | RoundSeen
    | RecordWritten
    | LeadershipChanged
    | OthersEnded
    | PlacePrepared
    | PlaceFailed
    | WorkerStarted
    | WorkerExited
    | StartFailed
    | WorkersGone
    | NurseryLost
    | SignalReceived
    | ForwardAsked
    | SignalUnheard
    | LeaveAsked
    | DeadlineReached
)

# -- what to do -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenStore:
    """Answered by StoreOpened or StoreFailed."""


@dataclass(frozen=True, slots=True)
class PreparePlace:
    """Count the workers there is room for and hold a fresh port. Answered by PlacePrepared or PlaceFailed."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Write our record. Answered by RecordWritten."""

    record: NodeRecord


@dataclass(frozen=True, slots=True)
class StartWorkers:
    """Answered by WorkerStarted for each, or StartFailed."""

    round: Round
    member: Member
    restart_count: int


@dataclass(frozen=True, slots=True)
class SignalWorkers:
    """To every worker and all it started. Answered, in time, by WorkerExited and WorkersGone."""

    signum: int


@dataclass(frozen=True, slots=True)
class ForwardSignal:
    """To the workers themselves and nothing that they started. Answered by SignalUnheard where it would end one."""

    signum: int


@dataclass(frozen=True, slots=True)
class KillWorkers:
    """SIGKILL to every worker and all it started."""


@dataclass(frozen=True, slots=True)
class RestartNursery:
    """Start another process to own the workers."""


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send DeadlineReached at this time (seconds on this host's monotonic clock)."""

    when: float


@dataclass(frozen=True, slots=True)
class Conclude:
    """The agent is done."""

    verdict: Verdict


Effect = (
    OpenStore
    | PreparePlace
    | Publish
    | StartWorkers
    | SignalWorkers
    | ForwardSignal
    | KillWorkers
    | RestartNursery
    | WakeAt
    | Conclude
)
