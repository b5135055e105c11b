"""What an agent reports to its caller: what happens, where it stands, how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from os import getpid

from ..proto.frozen import dataclass, field
from ..rendezvous.agreements import Act
from ..rendezvous.driver import events as store_events
from ..rendezvous.failures import Ending, WorkerFailure
from ..rendezvous.records import Member, RoundPhase
from .failures.error_files import ErrorReport
from .lifecycle import events
from .lifecycle.state import Node, Phase, Rules, Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .processes.workers import Workers


@dataclass(frozen=True, slots=True)
class AgentEvent:
    """One thing that happened to this node's agent, and why; sent as it happens."""

    name: str
    """Name of this node."""
    phase: Phase
    """Where the node stands now."""
    because: str
    """Why, in one sentence."""
    round: int
    """The last round this node had a place in; 0 before the first."""
    happened: str
    """Name of the event that led here, such as WorkerExited."""
    at_s: float
    """When, on this host's monotonic clock."""
    failure: WorkerFailure | None = None
    """The worker failure that this event is about: of this node when it is seen, of any node when it ends the job."""
    members: tuple[Member, ...] = ()
    """Nodes of the round running, or of the one just over, by group rank, as far as this node knows: of a round of more
    than 64 nodes some, its own among them."""
    restarts_used: int = 0
    """Restarts charged to this node so far."""
    waits: str = ""
    """While JOINING: what for: `nodes`, a `place` (as a spare), the end of a `pause` (a crash loop); empty: the others'
    answers to the end of the round."""
    ended: Ending | None = None
    """How the last ended round ended, as announced; not final while the others have not answered."""
    version: int = 0
    """Number of the newest announcement that this node knows."""
    finished: bool = False
    """Its workers of the round all exited 0."""


@dataclass(frozen=True, slots=True)
class Status:
    """Where a node stands. A snapshot: asking changes nothing."""

    name: str
    phase: Phase
    because: str
    round: int
    group_rank: int | None
    world_size: int
    members: tuple[Member, ...]
    """As `AgentEvent.members`."""
    restarts_used: int
    max_restarts: int
    spare: bool
    hosting: bool
    """Whether this agent serves the store."""
    coordinating: bool
    """Whether this agent decides which nodes are in which round; on a store that it hosts it always does."""
    worker_pids: Mapping[int, int]
    """Process id by local rank."""
    log_dir: str
    preload: str = ""
    """State of --preload, in the last sentence about it; empty where it was not asked for."""
    run_id: str = ""
    pid: int = 0
    """Of the agent."""
    min_nodes: int = 1
    max_nodes: int = 1
    store_trouble: str = ""
    """Why the store cannot be used; empty while it answers."""
    requests: tuple[str, ...] = ()
    """What this node asked all ranks to do, and what is not done yet."""


@dataclass(frozen=True, slots=True)
class Report:
    """How an agent ended."""

    verdict: Verdict
    failures: tuple[WorkerFailure, ...] = ()
    """This node's own worker failures in its last round, in the order seen; not those that were stopped."""
    reports: Mapping[WorkerFailure, ErrorReport] = field(default_factory=dict)
    """What those workers wrote in their error files."""
    log_dir: str = ""
    temporary_dir: str = ""
    """The temporary directory that `log_dir` is in; empty if the user named a directory."""
    round: int = 0
    member: Member | None = None
    """This node's place in the last round for which it started workers; None if it never did."""
    nodes: int = 0
    """Nodes of that round."""
    pids: Mapping[int, int] = field(default_factory=dict)
    """Process ids of its workers, by local rank."""
    ranks: tuple[int, ...] = ()
    """Global ranks of this node's workers that all exited 0, by local rank; empty if they did not."""

    def said_by(self, failure: WorkerFailure) -> ErrorReport | None:
        """What this worker wrote in its error file, if it was one of this node's; the job's cause may come from the
        store with its texts cut."""
        return next((said for own, said in self.reports.items() if own.identity == failure.identity), None)


_HAPPENED: Mapping[type, str] = {events.SignalNotForwarded: "SignalUnheard"}
"""Events whose name in `AgentEvent.happened`, and so in files of events, is older than that of their class."""


def describe(name: str, before: Node, node: Node, happened: object, now: float) -> AgentEvent | None:
    """The event for observers that a step made; None if it changed nothing they can see."""
    failure = None
    if node.verdict is not None and node.verdict != before.verdict:
        failure = node.verdict.cause
    elif len(node.tally.failures) > len(before.tally.failures):
        failure = node.tally.failures[-1]
    if node.because == before.because and node.phase is before.phase and failure is None:
        return None
    return AgentEvent(
        name=name,
        phase=node.phase,
        because=node.because,
        round=node.round,
        happened=_HAPPENED.get(type(happened), type(happened).__name__),
        at_s=now,
        failure=failure,
        members=node.latest_round.placed if node.latest_round else (),
        restarts_used=node.restarts_used,
        waits=_waits_for(node),
        ended=(node.latest_round.unsettled or node.latest_round.ended) if node.latest_round else None,
        version=node.latest_round.version if node.latest_round else 0,
        finished=node.finished,
    )


def _waits_for(node: Node) -> str:
    """`AgentEvent.waits`."""
    if node.phase is not Phase.JOINING:
        return ""
    if node.paused_until is not None:
        return "pause"
    if node.is_spare:
        return "place"
    seen = node.latest_round
    gathers = seen is None or seen.phase in (RoundPhase.GATHERING, RoundPhase.LAST_CALL)
    return "nodes" if node.round == 0 or gathers else ""


def status_of(node: Node, rules: Rules, workers: Workers, run_id: str) -> Status:
    """The state as a snapshot for observers."""
    seen = node.latest_round
    member = seen.member(rules.node) if seen and seen.begun else None
    return Status(
        name=rules.name,
        phase=node.phase,
        because=node.because,
        round=node.round,
        group_rank=member.group_rank if member else None,
        world_size=seen.world_size if seen and seen.begun else 0,
        members=seen.placed if seen else (),
        restarts_used=node.restarts_used,
        max_restarts=rules.restarts.max_restarts,
        spare=node.is_spare,
        hosting=node.hosting,
        coordinating=node.leading,
        worker_pids=workers.pids if node.tally.running else {},
        log_dir=workers.logs.path,
        preload=workers.preload,
        run_id=run_id,
        pid=getpid(),
        min_nodes=rules.min_nodes,
        max_nodes=rules.max_nodes,
        store_trouble=node.outage.why,
        requests=tuple(f"{each.act.value}: {each.because}" for each in node.requests),
    )


_ROUTINE = (
    store_events.StoreOpened,
    events.PlacePrepared,
    store_events.RoundSeen,
    events.WorkersGone,
    store_events.OthersEnded,
)
"""Events whose consequence is routine, but for what `is_routine` says."""


def is_routine(event: object, before: Node, node: Node) -> bool:
    """Whether the console shows what this event led to only with LOGLEVEL=INFO.

    It always shows that a worker failed, that workers are stopped or paused, that a round re-forms, and, of a wait, for
    which nodes and for how long yet."""
    if node.verdict is not None and node.because == node.verdict.because:
        return True  # the last line of the command line, and the exception of the library, say it
    if isinstance(event, events.WorkerExited):
        return event.failure is None
    if not isinstance(event, _ROUTINE) or node.phase is Phase.STOPPING or node.paused_until is not None:
        return False
    if node.phase is Phase.WORKING and before.phase is not Phase.WORKING:
        return node.round == 1
    if _restart_given_up(before, node):
        return False
    return not _waits(event, before, node)


def _restart_given_up(before: Node, node: Node) -> bool:
    """Whether the round goes on although somebody asked for a restart; of other acts a later line says so."""
    newest = node.agreement
    if newest is None or newest == before.agreement:
        return False
    return newest.act is Act.RESTART and newest.given_up


def _waits(event: object, before: Node, node: Node) -> bool:
    if node.spare_until is not None and before.spare_until is None:
        return True
    if not isinstance(event, store_events.RoundSeen) or before.latest_round is None:
        return False
    return event.round.differs_in_text_only(before.latest_round)
