"""The stream of one agent's events: what each is called, which one caused it, and what follows from several together.

Ids are the same in the files of all nodes: an announcement is `announced/VERSION`, the failure of a worker
`exit/ROUND/RANK`, the first event of a node `came/NODE`, and everything else `NODE/NUMBER`, NODE being the first
digits of a node's identity. So a chain of causes leads from node to node.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from ..agent.lifecycle.state import Phase, Verdict
from ..agent.report import AgentEvent
from ..proto.frozen import dataclass
from ..rendezvous.failures import EndKind
from ..rendezvous.records import Round, RoundPhase

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..agent.agent import Known
    from ..agent.steps.seen import WorkersSeen


class Entry(NamedTuple):
    """One event in the stream."""

    number: int
    time_s: float
    """In seconds since 1970."""
    at_s: float
    """On the host's monotonic clock."""
    what: object
    id: str
    cause: str
    """The id of the event that caused it; empty: it came from outside, or its cause was not seen."""


VERSION = 2
"""Of the form of events: 1 had no ids. Keys are only ever added."""
NOTICED, STOPPED, AGREED, STARTED, IMPORTED, FIRST_STEP = (
    "noticed",
    "stopped",
    "agreed",
    "started",
    "imported",
    "first step",
)
"""The stages from the end of one round to the first step of the next."""
DROPPED = "no longer watched"
"""The change of a watch that had fired, or could not be read, when this node ceased to watch."""
FAILED = frozenset({"WorkerExited", "StartFailed", "HangFound", "NurseryLost", "WorkerStoreLost"})
"""Events that are a failure of a worker of this node."""
FROM_OUTSIDE = frozenset({"SignalReceived", "LeaveAsked", "ActAsked", "ForwardAsked", "StoreFailed", "StoreWentAway"})
"""Events that nothing which this node knows of has caused."""


@dataclass(frozen=True, slots=True)
class Stage:
    """This node has come to a stage of a recovery, or of the job's start."""

    name: str
    round: int
    """The one that ends, up to `stopped`; then the one that begins."""
    at_s: float
    took_s: float
    """Since the stage before; 0 for the first."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The workers of this node have taken a checkpoint; it may still be on its way to the disk."""

    round: int
    step: int
    at_s: float
    took_s: float
    """How long the one that stood still longest did."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """The time of this job ends then."""

    at_s: float
    until_s: float
    """In seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """A watch fired, was cleared, or can or cannot be read."""

    at_s: float
    watch: str
    change: str
    """fired, still, cleared, blind, sees again: a `Change` of decisions/watches.py; or DROPPED."""
    because: str


class Stream:
    """Names causes, and finds stages and checkpoints. For one agent, in the order of its events."""

    def __init__(self) -> None:
        self._own = self._stage = self._hang = self._outage = ""
        """Ids of this node's newest event, its newest stage, the newest alarm about a hang, and the newest event of a
        store that went away."""
        self._phase = Phase.CONNECTING
        self._stage_s: float | None = None
        self._round = self._saved = 0
        self._saving_s = 0.0
        self._left: list[str] = []
        """Stages that workers of the round have not come to."""

    def entry(self, what: object, number: int, known: Known | None) -> Entry:
        """An event that happens now, with its id and its cause."""
        return Entry(number, time.time(), time.monotonic(), what, *self._named(what, number, known))

    def deadline(self, until_s: float) -> Deadline:
        """The job's time ends then, in seconds since 1970."""
        return Deadline(time.monotonic(), until_s)

    def alarm(self, watch: str, change: str, because: str) -> Alarm:
        """A watch fired, was cleared, or can or cannot be read, now."""
        return Alarm(time.monotonic(), watch, change, because)

    def _named(self, what: object, number: int, known: Known | None) -> tuple[str, str]:
        """The id of an event, and that of its cause."""
        here = known.identity[:8] if known is not None else "0"
        mine = f"{here}/{number}"
        if isinstance(what, Round):
            return f"announced/{what.version}", _cause_of(what, known)
        if isinstance(what, AgentEvent):
            mine, cause = self._of_node(what, mine, here)
            self._own = mine
            return mine, cause
        if isinstance(what, Stage):
            cause = self._stage if what.name in (STARTED, IMPORTED, FIRST_STEP) else self._own
            self._stage = mine
            return mine, cause
        if isinstance(what, Alarm) and what.watch.startswith("hang"):
            self._hang = mine
        return mine, self._own if isinstance(what, Verdict) else ""

    def _of_node(self, event: AgentEvent, mine: str, here: str) -> tuple[str, str]:
        if event.happened in FAILED and event.failure is not None:
            first = self._phase is Phase.WORKING
            cause = self._hang if event.happened == "HangFound" else "" if first else self._own
            return f"exit/{event.round}/{event.failure.rank}", cause
        if not self._own:
            return f"came/{here}", ""
        if event.happened == "RoundSeen" and event.version:
            return mine, f"announced/{event.version}"
        if event.happened == "StoreWentAway":
            self._outage = mine
        elif event.happened == "StoreCameBack" and self._outage:
            return mine, self._outage
        return mine, "" if event.happened in FROM_OUTSIDE else self._own

    def followed(self, event: object) -> list[Stage]:
        """The stages that this event shows; to be called once it has its name."""
        if not isinstance(event, AgentEvent):
            return []
        before, self._phase = self._phase, event.phase
        if before is event.phase:
            return []
        if event.finished:
            return []
        if before is Phase.WORKING:
            self._stage_s = None
            found = [self._at(NOTICED, event.round, event.at_s)]
            return found if event.phase is Phase.STOPPING else [*found, self._at(STOPPED, event.round, event.at_s)]
        if before is Phase.STOPPING:
            return [self._at(STOPPED, event.round, event.at_s)]
        return [self._at(AGREED, event.round, event.at_s)] if event.phase is Phase.WORKING else []

    def seen(self, workers: WorkersSeen) -> list[Stage | Checkpoint]:
        """What workers show of their start and of their checkpoints."""
        if workers.round != self._round:
            self._round, self._saved, self._saving_s = workers.round, 0, 0.0
            self._left = [STARTED, IMPORTED, FIRST_STEP]
        found: list[Stage | Checkpoint] = []
        while self._left and _has_come(workers, self._left[0]):
            found.append(self._at(self._left.pop(0), workers.round, workers.at_s))
        saved = min((each.saved for each in workers.shown), default=0)
        if saved and saved != self._saved:
            saving_s = max(each.saving_s for each in workers.shown)
            found.append(Checkpoint(workers.round, saved, workers.at_s, saving_s - self._saving_s))
            self._saved, self._saving_s = saved, saving_s
        return found

    def _at(self, name: str, round_number: int, at_s: float) -> Stage:
        took_s = 0.0 if self._stage_s is None else max(0.0, at_s - self._stage_s)
        self._stage_s = at_s
        return Stage(name, round_number, at_s, took_s)


def _has_come(workers: WorkersSeen, stage: str) -> bool:
    if stage == STARTED:
        return len(workers.started_s) == workers.nproc
    if len(workers.shown) < workers.nproc:
        return False
    if stage == IMPORTED:
        return all(each.began_s for each in workers.shown)
    return all(each.began_s and each.useful_s + each.repeated_s for each in workers.shown)


def _cause_of(announced: Round, known: Known | None) -> str:
    """The id of what an announcement follows from."""
    ended = announced.unsettled or announced.ended
    if announced.phase in (RoundPhase.OVER, RoundPhase.CLOSED) and ended is not None:
        if ended.round == announced.number and ended.failure is not None:
            return f"exit/{ended.round}/{ended.failure.rank}"
        if announced.phase is RoundPhase.OVER and ended.kind is EndKind.ARRIVAL and known is not None:
            newcomers = (seen.record.node for seen in known.coordinator.nodes.values() if seen.waiting)
            came = next((node for node in newcomers if announced.member(node) is None), "")
            return f"came/{came[:8]}" if came else ""
    if announced.phase is RoundPhase.OVER:
        return ""
    return f"announced/{announced.version - 1}" if announced.version > 1 else ""
