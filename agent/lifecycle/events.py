"""What happens to a node's agent and what it does: two closed unions of frozen values.

What the store has to do with is in `rendezvous/driver/events.py`, as it happens in threads that know no agent.
"""

from __future__ import annotations

from ...proto.frozen import dataclass
from ...rendezvous.agreements import Act, Agreement
from ...rendezvous.driver.events import Event as StoreEvent
from ...rendezvous.failures import WorkerFailure
from ...rendezvous.records import Member, NodeRecord, Round
from .state import Verdict

# -- what happened ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlacePrepared:
    """Room for `nproc` workers was found and `port` is held free for the next round."""

    nproc: int
    port: int


@dataclass(frozen=True, slots=True)
class PlaceFailed:
    """This node cannot offer a place (no device, no port)."""

    reason: str
    by_host: bool = False
    """The host refused something that any node needs."""


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """A worker is gone. `failure` is None where its exit code is 0; `end` then describes its exit."""

    local_rank: int
    failure: WorkerFailure | None
    end: WorkerFailure | None = None


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The workers of this round could not be started at all (files, descriptors), or one of them could not."""

    failure: WorkerFailure


@dataclass(frozen=True, slots=True)
class WorkersFenced:
    """The fence is passed, so a newer round may begin elsewhere: the workers are killed, or were not started."""


@dataclass(frozen=True, slots=True)
class WorkersGone:
    """No worker, and nothing that a worker had started, is left."""


@dataclass(frozen=True, slots=True)
class LeftoversNamed:
    """The processes that workers had left behind when that was asked, each as `4711 (python upload.py)`."""

    count: int
    processes: tuple[str, ...]
    """The first of them."""


@dataclass(frozen=True, slots=True)
class NurseryLost:
    """The nursery died, and the workers with it."""

    reason: str


@dataclass(frozen=True, slots=True)
class WorkerStoreLost:
    """The process died that served the workers' store of this round, and the store's keys with it."""

    reason: str


@dataclass(frozen=True, slots=True)
class HangFound:
    """Somebody who watches the workers from outside has found that one of them stands still, and wants the round to
    end as by a failure of that worker. Whoever watches has taken the stacks before."""

    round: int
    """The round that it was found in; another one is left alone."""
    local_rank: int
    because: str
    """The failure's message: one line."""
    said: str = ""
    """The stacks, as far as a failure holds them."""


@dataclass(frozen=True, slots=True)
class SignalReceived:
    """One of the signals that stop the agent."""

    signum: int
    because: str = ""
    """Who asked for the same, and why, where no signal came."""


@dataclass(frozen=True, slots=True)
class ForwardAsked:
    """One of the signals that are passed on to the workers."""

    signum: int


@dataclass(frozen=True, slots=True)
class SignalNotForwarded:
    """A signal was not passed on to this worker, which has no handler for it: it would have ended the worker."""

    local_rank: int
    signum: int


@dataclass(frozen=True, slots=True)
class LeaveAsked:
    """A program that embeds the agent asks it to leave the job."""

    reason: str


@dataclass(frozen=True, slots=True)
class ActAsked:
    """All ranks of the job are to do this at the next step boundary."""

    act: Act
    label: str
    """Of the checkpoint, at most `MAX_LABEL_BYTES` of UTF-8; empty: none."""
    because: str
    """Who asks, in one sentence."""


@dataclass(frozen=True, slots=True)
class BoundFound:
    """No worker of this node passes this boundary before it knows the decision. 0: one has no boundaries."""

    agreement: int
    bound: int


@dataclass(frozen=True, slots=True)
class BoundAwaited:
    """These workers have made no Run yet, so there is no bound."""

    agreement: int
    local_ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Acted:
    """All workers of this node have done what was agreed on."""

    agreement: int


@dataclass(frozen=True, slots=True)
class DeadlineReached:
    """A deadline requested with WakeAt has passed; early or stale ones are harmless."""


Event = (
    StoreEvent
    | PlacePrepared
    | PlaceFailed
    | WorkerExited
    | StartFailed
    | WorkersFenced
    | WorkersGone
    | LeftoversNamed
    | NurseryLost
    | WorkerStoreLost
    | HangFound
    | SignalReceived
    | ForwardAsked
    | SignalNotForwarded
    | LeaveAsked
    | ActAsked
    | BoundFound
    | BoundAwaited
    | Acted
    | DeadlineReached
)

# -- what to do -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenStore:
    """Answered by StoreOpened or StoreFailed."""


@dataclass(frozen=True, slots=True)
class PreparePlace:
    """Count the workers there is room for and hold a free port. Answered by PlacePrepared or PlaceFailed."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Write this node's record. Answered by RecordWritten."""

    record: NodeRecord


@dataclass(frozen=True, slots=True)
class StartWorkers:
    """Answered by StartFailed where one could not be started, and later by WorkerExited and WorkersGone."""

    round: Round
    member: Member
    restart_count: int


@dataclass(frozen=True, slots=True)
class SignalWorkers:
    """To every worker and all it started. Answered, in time, by WorkerExited and WorkersGone."""

    signum: int


@dataclass(frozen=True, slots=True)
class ForwardSignal:
    """To the workers themselves and nothing that they started. Answered by SignalNotForwarded where it would end
    one."""

    signum: int


@dataclass(frozen=True, slots=True)
class AskBound:
    """Ask this node's workers where they are. Answered by BoundFound, which may follow on BoundAwaited."""

    agreement: Agreement


@dataclass(frozen=True, slots=True)
class DecideWorkers:
    """Let this node's workers act at the boundary of this agreement, or go on. Answered by Acted."""

    agreement: Agreement


@dataclass(frozen=True, slots=True)
class ReleaseWorkers:
    """Let workers that wait behind what they did by this agreement go on."""

    agreement: int


@dataclass(frozen=True, slots=True)
class KillWorkers:
    """SIGKILL to every worker and all it started."""


@dataclass(frozen=True, slots=True)
class NameLeftovers:
    """Find out what the workers, all of which have exited, left running. Answered by LeftoversNamed."""


@dataclass(frozen=True, slots=True)
class KeepLeftovers:
    """Let what the workers left behind run on, also after the agent's end. Answered by LeftoversNamed, WorkersGone."""


@dataclass(frozen=True, slots=True)
class RestartNursery:
    """Start another nursery."""


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
    | AskBound
    | DecideWorkers
    | ReleaseWorkers
    | KillWorkers
    | NameLeftovers
    | KeepLeftovers
    | RestartNursery
    | WakeAt
    | Conclude
)
