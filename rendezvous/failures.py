"""How workers and rounds end, as values: one worker's failure, what its exit says, who was the cause, whom it charges.

Frozen values and questions about one of them; what many exits say together is judged in `coordinator/root_cause.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

MAX_REPORTED_EXITS = 8
"""Exits of workers in one node's record: one for each of the usual eight devices. It bounds what thousands of nodes may
write at once."""
MAX_ANNOUNCED_EXITS = 16
"""Exits of workers in an announcement; beyond, a round has nothing new to show."""
MAX_SAID_BYTES = 4096
"""`WorkerFailure.said` keeps its end, where an exception is."""


class EndKind(Enum):
    """Why a round ended."""

    FAILURE = "failure"
    DEPARTURE = "departure"
    ARRIVAL = "arrival"


class Sign(Enum):
    """What a worker's end says by itself; `signs.py` reads it."""

    UNCLEAR = "unclear"
    """Its own fault or another's: nothing tells."""
    OWN = "own"
    """It failed on its own: an exception, a crash, a kill from outside."""
    PEER = "peer"
    """It lost a peer, or the store that lives in one."""
    TIMEOUT = "timeout"
    """It waited for the others in vain."""
    STOPPED = "stopped"
    """Its own agent stopped it."""
    STANDING = "standing"
    """It stood still, stopped by a signal, when its agent came to stop it."""
    LEFT = "left"
    """It exited 0."""
    QUIET = "quiet"
    """It chose an exit code and said nothing."""
    HOST = "machine"
    """Its machine took it, or could not start it: nobody's script is to blame, and nobody is charged."""


class Role(Enum):
    """What an end was in the end of its round; `causes.py` judges it."""

    CAUSE = "cause"
    COLLATERAL = "collateral"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """One worker's death, as the node that watched it saw it."""

    node: str
    """Name of the node, for people (host and agent pid)."""
    host: str
    rank: int
    """Global rank in the round that it died in."""
    local_rank: int
    pid: int
    exit_code: int
    """As `subprocess` has it: negative is the signal that killed it."""
    message: str = ""
    """First line of what the worker said in its error file; empty if it said nothing."""
    error_file: str = ""
    """Absolute path of its error file on that node; empty if there is none."""
    at: str = ""
    """Wall-clock time on that node, for people only; never compared."""
    startup: bool = False
    """It died in its start-up."""
    final: bool = False
    """Its node forbids a restart: it exited with a code that says so."""
    order: int = 0
    """Counts the ends of workers on that node, from 1 in each round, as its agent learnt of them."""
    after_s: float = 0.0
    """Seconds since the first of them, on that node's own clock."""
    stopped_by: int = 0
    """The last signal that its agent had sent it before it ended; 0 if none."""
    sign: Sign = Sign.UNCLEAR
    sign_because: str = ""
    """The evidence for `sign`, in a few words."""
    suspects: tuple[int, ...] = ()
    """Global ranks that its error names as missing."""
    said: str = ""
    """Traceback of its error file, else last lines of its stderr, if kept; at most `MAX_SAID_BYTES`."""
    note: str = ""
    """What the machine adds: the kernel's OOM killer, a core dump. One sentence, never without evidence."""

    def __str__(self) -> str:
        died = f"signal {-self.exit_code}" if self.exit_code < 0 else f"exit code {self.exit_code}"
        when = " in its start-up" if self.startup else ""
        said = f": {self.message}" if self.message else ""
        said += f" ({self.note})" if self.note else ""
        return f"rank {self.rank} (local rank {self.local_rank}, pid {self.pid}) on {self.node}, {died}{when}{said}"


@dataclass(frozen=True, slots=True)
class Judged:
    """One end of a worker and what it was in the end of its round."""

    death: WorkerFailure
    role: Role
    because: str


@dataclass(frozen=True, slots=True)
class Ending:
    """How a round ended, settled when all its members have answered or are known dead."""

    round: int
    kind: EndKind
    because: str
    charged: str = ""
    """Identity of the node that this ending costs one restart; empty for a change of membership."""
    failure: WorkerFailure | None = None
    """The cause, or what comes nearest to one; the first failure seen until the ending is settled."""
    role: Role = Role.UNDECIDED
    """Whether `failure` is known to be the cause."""
    judged: tuple[Judged, ...] = ()
    """All ends of workers that the coordinator heard of, in the order in which it did, `failure` among them."""


ECHOES = frozenset({Sign.PEER, Sign.TIMEOUT})
"""Signs of an end that followed another."""
FAULTS = frozenset({Sign.OWN, Sign.HOST})
"""Signs of an end that followed no other."""
PASSIVE = frozenset({Sign.STOPPED, Sign.LEFT, Sign.STANDING})
"""Signs of an end that is no failure by itself."""


def looks_like_an_echo(failure: WorkerFailure) -> bool:
    """Whether this end says that its cause is elsewhere."""
    return failure.sign in ECHOES


def charges(failure: WorkerFailure | None) -> bool:
    """Whether this failure can cost anybody a restart: not where the machine took the worker."""
    return failure is not None and failure.sign is not Sign.HOST


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
