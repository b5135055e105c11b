"""How workers and rounds end, as values: one worker's failure, what its exit says, who was the cause, whom it charges.

Frozen values and questions about one of them; what many exits say together is judged in `coordinator/root_cause.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from ..proto.endings import PREEMPTED
from ..proto.frozen import dataclass
from .text import duration

MAX_REPORTED_EXITS = 8
"""Exits of workers in one node's record: one for each of the usual eight devices. It bounds what thousands of nodes may
write at once."""
MAX_ANNOUNCED_EXITS = 16
"""Exits of workers in an announcement; beyond, a round has nothing new to show."""
STOOD_STILL = "stood still"
"""`WorkerFailure.sign_because` of a worker that a watch found hanging."""
MAX_SAID_BYTES = 4096
"""`WorkerFailure.said` keeps its end, where an exception is."""


class EndKind(Enum):
    """Why a round ended."""

    FAILURE = "failure"
    DEPARTURE = "departure"
    ARRIVAL = "arrival"
    PLANNED = "planned"
    PREEMPTION = "preemption"
    """A worker asked for the end of the job (`PREEMPTED`)."""


class Sign(Enum):
    """What one worker's exit says by itself; `agent/failures/classify.py` reads it."""

    UNCLEAR = "unclear"
    """Its own fault or another's: there is no evidence."""
    OWN = "own"
    """It failed on its own: an exception, a crash, a kill from outside."""
    PEER = "peer"
    """It lost a peer, or the store that lives in one."""
    TIMEOUT = "timeout"
    """It timed out waiting for its peers."""
    STOPPED = "stopped"
    """Its own agent stopped it."""
    STANDING = "standing"
    """It was frozen by a signal when its agent stopped it."""
    LEFT = "left"
    """It exited 0, unasked."""
    QUIET = "quiet"
    """It exited with a code of its choice and left no text."""
    HOST = "machine"
    """Its host killed it, or could not start it: no script is to blame, and no node is charged. The value is older
    than the name, and stands in summaries."""
    CUT_OFF = "cut_off"
    """It was killed because its node was cut off, or its agent was paused, and a newer round might run elsewhere."""


class Role(Enum):
    """What one worker's exit was in the end of its round; `coordinator/root_cause.py` judges it."""

    CAUSE = "cause"
    COLLATERAL = "collateral"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """How one worker ended, as its node's agent saw it."""

    node: str
    """Name of the node, for people (host and agent pid)."""
    host: str
    rank: int
    """Global rank in the round that it died in."""
    local_rank: int
    pid: int
    """0: it never ran, or its host failed and its end was not seen."""
    exit_code: int
    """As `subprocess` has it: negative is the signal that killed it."""
    message: str = ""
    """First line of the message in its error file; empty if there is none."""
    error_file: str = ""
    """Absolute path of its error file on that node; empty if there is none."""
    at: str = ""
    """Wall-clock time on that node, for people only; never compared."""
    startup: bool = False
    """It died in its start-up: it never ran, or came no further than its imports, or had not reported that it is ready
    as others of the job do."""
    final: bool = False
    """It exited with a code that forbids a restart (--no-restart-codes)."""
    order: int = 0
    """Number of this exit on its node, from 1 in each round, in the order in which the agent saw them."""
    after_s: float = 0.0
    """Seconds since the first exit of the round there, on that node's own clock."""
    stopped_by: int = 0
    """The last signal that its agent sent it before it ended; 0 if none."""
    sign: Sign = Sign.UNCLEAR
    sign_because: str = ""
    """The evidence for `sign`, in a few words."""
    suspects: tuple[int, ...] = ()
    """Global ranks that its error names as missing."""
    said: str = ""
    """Traceback of its error file, else last lines of its stderr, if kept; at most `MAX_SAID_BYTES`."""
    note: str = ""
    """Evidence of the kernel: its OOM killer, a core dump. One sentence; empty without evidence."""
    lived_s: float = 0.0
    """Seconds from its start to its exit, on that node's own clock; 0 if it never ran."""

    @property
    def identity(self) -> tuple[int, int, int, str]:
        """What no two exits of one round share. Names of nodes alone do not tell: in containers that have one host
        name, and in each of which the agent is process 1, all nodes have one name, and pids repeat."""
        return self.rank, self.local_rank, self.pid, self.node

    def __str__(self) -> str:
        process, died = f", pid {self.pid}", f", exit code {self.exit_code}"
        if self.exit_code < 0:
            died = f", signal {-self.exit_code}"
            if not self.pid:
                process = died = ""  # the host failed, with this worker or before it began: no signal was seen
        lived = f", {duration(self.lived_s)} after its start" if self.lived_s > 0 else ""
        when = " in its start-up" if self.startup else lived
        said = f": {self.message}" if self.message else ""
        said += f" ({self.note})" if self.note else ""
        return f"rank {self.rank} (local rank {self.local_rank}{process}) on {self.node}{died}{when}{said}"


@dataclass(frozen=True, slots=True)
class Judged:
    """How one worker ended, and what that was in the end of its round."""

    death: WorkerFailure
    role: Role
    because: str


@dataclass(frozen=True, slots=True)
class Ending:
    """How a round ended; settled when all its members have answered or are lost."""

    round: int
    kind: EndKind
    because: str
    charged: str = ""
    """Identity of the node that this ending charges one restart; empty for a change of membership."""
    failure: WorkerFailure | None = None
    """The cause, or the likeliest failure; the first one seen until the ending is settled."""
    role: Role = Role.UNDECIDED
    """Whether `failure` is known to be the cause."""
    judged: tuple[Judged, ...] = ()
    """All exits of workers that the coordinator read, in that order, with `failure`."""


ECHOES = frozenset({Sign.PEER, Sign.TIMEOUT})
"""Signs of an exit that followed another."""
FAULTS = frozenset({Sign.OWN, Sign.HOST})
"""Signs of an exit that followed no other."""
PASSIVE = frozenset({Sign.STOPPED, Sign.LEFT, Sign.STANDING, Sign.CUT_OFF})
"""Signs of an exit that is no failure by itself."""


def looks_like_an_echo(failure: WorkerFailure) -> bool:
    """Whether this exit says that its cause is elsewhere."""
    return failure.sign in ECHOES


def preempts(failure: WorkerFailure) -> bool:
    """Whether the worker asked for the end of the job by this exit: unasked, and with a code that the user has given no
    other meaning (`WorkerFailure.final`)."""
    return failure.exit_code == PREEMPTED and not failure.stopped_by and not failure.final


def charges(failure: WorkerFailure | None) -> bool:
    """Whether this failure can charge a node a restart: not if the host killed the worker, the node was cut off, or the
    worker asked for the end."""
    return failure is not None and failure.sign not in (Sign.HOST, Sign.CUT_OFF) and not preempts(failure)


def worth_reporting(deaths: Sequence[WorkerFailure]) -> tuple[WorkerFailure, ...]:
    """The exits that a node's record carries, in order: at most `MAX_REPORTED_EXITS`; failures first, then workers
    that were stopped, then those that exited 0."""
    if len(deaths) <= MAX_REPORTED_EXITS:
        return tuple(deaths)
    weight = [Sign.STOPPED, Sign.LEFT]
    ranked = sorted(
        range(len(deaths)), key=lambda at: weight.index(deaths[at].sign) if deaths[at].sign in weight else -1
    )
    return tuple(deaths[at] for at in sorted(ranked[:MAX_REPORTED_EXITS]))


class CausedByWorker:
    """What an error tells of the worker whose failure is its cause."""

    cause: WorkerFailure | None

    @property
    def rank(self) -> int | None:
        return self.cause.rank if self.cause else None

    @property
    def worker_exit_code(self) -> int | None:
        return self.cause.exit_code if self.cause else None

    @property
    def error_file(self) -> str:
        return self.cause.error_file if self.cause else ""
